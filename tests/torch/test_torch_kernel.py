"""The plain-torch kernel against the reference, bit for bit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from antipgd.noise import as_law, stream_key
from antipgd.noise.injection import combine
from antipgd.noise.placement import Shard
from antipgd.noise.stream import key_draws
from antipgd.torch import kernel
from stream_backends import LAWS

KEY = stream_key(3, "weight")


def expected(w, newest, coefficients, law):
    def draw(k):
        return key_draws(KEY, k, 0, w.size, law).reshape(w.shape)

    eps = combine(coefficients, newest, draw, w.dtype)
    return w if eps is None else w + eps


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("law", LAWS)
def test_injection_equals_the_reference(law, dtype, monkeypatch):
    monkeypatch.setattr(kernel, "CHUNK", 100)
    for shape in [(), (0,), (1,), (257,), (30, 7), (4, 3, 3, 3)]:
        for newest in (1, 2, 7):
            w = np.random.default_rng(0).normal(size=shape).astype(dtype)
            for layout in (w.copy(), w.T.copy().T):
                tensor = torch.from_numpy(layout)
                kernel.inject(tensor, KEY, newest, (0.3, -0.2, 0.1), as_law(law))
                wanted = expected(w, newest, (0.3, -0.2, 0.1), as_law(law))
                assert np.array_equal(tensor.numpy(), wanted)
                assert tensor.numpy().dtype == dtype


@settings(max_examples=40)
@given(data=st.data(), law=st.sampled_from(LAWS))
def test_any_part_gets_its_part_of_the_draw(data, law):
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    cuts = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    region = tuple(slice(a, b) for a, b in cuts)
    whole = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    part = torch.tensor(whole[region].copy())
    shard = Shard(tuple(shape), tuple(a for a, _ in cuts))
    kernel.inject(part, KEY, 5, (0.3, -0.2), as_law(law), shard)
    wanted = expected(whole, 5, (0.3, -0.2), as_law(law))[region]
    assert np.array_equal(part.numpy(), wanted)


# √ without float64: x and 4x have the same root but for its exponent, so two binades are all

BINADES = (0x3F800000, 0x40000000)  # the bits of 1 and of 2
EVERY = 2**23  # floats of a binade


def wrong_roots(bits, error):
    """How many roots differ from NumPy's, if torch's were so many ulp off."""
    x = torch.from_numpy(bits.astype(np.int32)).view(torch.float32)
    wanted = torch.from_numpy(np.sqrt(x.numpy())).view(torch.int32)
    found = kernel.correct_sqrt(x, (wanted + error).view(torch.float32))
    return int((found.view(torch.int32) != wanted).sum())


@pytest.mark.parametrize("error", [0, 1, -1, 4, -4, 500, -500])
def test_the_root_is_correctly_rounded(error):
    for first in BINADES:
        assert wrong_roots(first + np.arange(0, EVERY, 97), error) == 0
        assert wrong_roots(first + np.arange(1000), error) == 0
        assert wrong_roots(first + EVERY - 1 - np.arange(1000), error) == 0


@pytest.mark.slow
@pytest.mark.parametrize("error", [0, 1, -1])
def test_every_root_is_correctly_rounded(error):
    for first in BINADES:
        for part in range(0, EVERY, 2**20):
            assert wrong_roots(first + part + np.arange(2**20), error) == 0


def test_roots_of_all_sizes_and_of_what_has_none():
    x = np.float32(1.1) * np.float32(2.0) ** np.arange(-125, 127).astype(np.float32)
    assert wrong_roots(x.view(np.int32), 2) == 0
    odd = torch.tensor([0.0, -0.0, np.inf, np.nan, -1.0])
    found = kernel.correct_sqrt(odd, odd.sqrt())
    assert torch.equal(found.view(torch.int32), odd.sqrt().view(torch.int32))


class NoFloat64(TorchDispatchMode):
    """A device without float64, as MPS is."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            assert getattr(tensor, "dtype", None) != torch.float64, func
        return out


@pytest.mark.parametrize("law", LAWS)
def test_no_float64_is_needed(law):
    with pytest.raises(AssertionError), NoFloat64():
        torch.zeros(3).double()
    w = torch.zeros(1000)
    with NoFloat64():
        kernel.inject(w, KEY, 3, (0.3, -0.2), as_law(law))
        part = torch.zeros(4, 5)
        kernel.inject(part, KEY, 3, (0.3, -0.2), as_law(law), Shard((8, 9), (1, 2)))
    wanted = expected(np.zeros(1000, np.float32), 3, (0.3, -0.2), as_law(law))
    assert np.array_equal(w.numpy(), wanted)
