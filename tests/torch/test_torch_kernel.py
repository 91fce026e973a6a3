"""The plain-torch kernel against the reference, bit for bit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
