"""The Triton kernel in its interpreter: bit for bit the reference."""

import numpy as np
import pytest
import torch

from antipgd.noise import as_law, stream_key
from antipgd.noise.placement import Shard
from antipgd.torch import kernel
from antipgd.torch.gpu import launching, tables
from interpreted import KEY, TYPES, expected, injected, same, weights
from stream_backends import LAWS

SIZES = (0, 1, 127, 128, 129)
LARGE = 10**5 + 3  # several programs, the last of them not full
TAPS = (
    (0.3,),
    (0.3, -0.3),
    (0.3, 0.0, -0.2, -0.1),
    (0.0, 0.25),
    (0.01, -0.02, 0.03, -0.04, 0.05, -0.06, 0.07),
)


def is_right(size, law):
    w = weights(size, torch.float32)
    return same(injected(w, KEY, 5, (0.3, -0.2), law), expected(w, KEY, 5, (0.3, -0.2), law))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("size", SIZES)
def test_every_size(law, size):
    assert is_right(size, law)


@pytest.mark.parametrize("law", ["gaussian", "rademacher"])
def test_many_elements(law):
    assert is_right(LARGE, law)


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_many_elements_of_every_law(law):
    assert is_right(LARGE, law)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("law", LAWS)
def test_every_type(law, dtype):
    w = weights(300, dtype)
    found = injected(w, KEY, 4, (0.3, -0.2, 0.1), law)
    assert same(found, expected(w, KEY, 4, (0.3, -0.2, 0.1), law))
    assert not torch.equal(found, w)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("taps", TAPS, ids=str)
def test_every_colour_from_the_first_step_on(taps, dtype):
    w = weights(70, dtype)
    for newest in (0, 1, 2, 5, 2**32 + 1):  # before step 1 there is nothing to add
        assert same(injected(w, KEY, newest, taps, "gaussian"),
                    expected(w, KEY, newest, taps, "gaussian"))  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
def test_every_offset_within_a_block(law):
    """All in one launch: part i of a parameter begins at element i, and has its own key."""
    count, size = as_law(law).per_block + 1, 40
    parts = [weights(size, torch.float32, i) for i in range(count)]
    keys = [stream_key(1, str(i)) for i in range(count)]
    shards = [Shard((count + size,), (i,)) for i in range(count)]
    rows = np.outer(np.arange(1, count + 1), (0.01, -0.02))
    wanted = [
        expected(w, key, 3, tuple(row), law, start=i)
        for i, (w, key, row) in enumerate(zip(parts, keys, rows, strict=True))
    ]
    launching.Targets(parts, keys, shards, as_law(law)).inject(3, rows)
    assert all(same(a, b) for a, b in zip(parts, wanted, strict=True))


def test_elements_beyond_32_bits():
    start = 2**34 + 3
    w = weights(50, torch.float32)
    shard = Shard((start + 50,), (start,))
    for law in LAWS:
        wanted = expected(w, KEY, 3, (0.3, -0.2), law, start=start)
        assert same(injected(w, KEY, 3, (0.3, -0.2), law, shard), wanted)


def laid_out(dtype):
    """Tensors that lie in many ways, and the part of its parameter that each is."""

    def make(*shape):
        return weights(shape, dtype)

    convolution = make(8, 5, 3, 3).to(memory_format=torch.channels_last)
    return [
        (make(5, 7), None),
        (make(), None),
        (make(0, 3), None),
        (convolution, None),
        (make(40, 6).t(), None),
        (make(9, 9)[2:6, 1:8:2], None),
        (make(4, 5, 6, 2, 3).permute(4, 0, 2, 1, 3), None),
        (make(300)[::3], None),
        (make(130), Shard((5000,), (777,))),
        (make(2, 3), Shard((9, 50), (3, 11))),
        (make(4, 2, 3), Shard((4, 7, 3), (0, 5, 0))),
        (make(3, 50).t(), Shard((50, 9), (0, 4))),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("law", LAWS)
def test_every_layout_and_shard_in_few_launches(law, dtype, monkeypatch):
    tensors, shards = zip(*laid_out(dtype), strict=True)
    keys = [stream_key(1, str(i)) for i in range(len(tensors))]
    rows = np.outer(np.arange(1, len(tensors) + 1), (0.01, 0.0, -0.03))
    wanted = []
    for w, key, row, shard in zip(tensors, keys, rows, shards, strict=True):
        wide = w.double() if dtype == torch.float64 else w.float()
        kernel.inject(wide, key, 7, row.tolist(), as_law(law), shard)
        wanted.append(wide.to(dtype))
    grids = []
    real = launching.add_draws
    monkeypatch.setattr(launching, "add_draws", Counted(real, grids))
    launching.Targets(tensors, keys, shards, as_law(law)).inject(7, rows)
    assert all(map(torch.equal, tensors, wanted))
    assert len(grids) == 2  # what lies without gaps, and the rest


class Counted:
    """A kernel whose launches are counted."""

    def __init__(self, kernel, grids):
        self.kernel, self.grids = kernel, grids

    def __getitem__(self, grid):
        self.grids.append(grid)
        return self.kernel[grid]


def test_what_lies_between_is_left_alone():
    whole = weights((9, 9), torch.float32)
    before, part = whole.clone(), whole[2:6, 1:8:2]
    launching.Targets([part], [KEY], [None], as_law("gaussian")).inject(2, np.array([[0.3]]))
    changed = whole != before
    assert changed[2:6, 1:8:2].all()
    assert int(changed.sum()) == part.numel()


def test_a_negative_zero_stays_where_nothing_is_added():
    w = torch.full((64,), -0.0)
    assert same(injected(w, KEY, 5, (0.0, 0.0), "gaussian"), w)
    assert same(injected(w, KEY, 0, (0.3, 0.3), "gaussian"), w)
    tiny = injected(w, KEY, 5, (1e-60,), "rademacher")  # rounds to ±0 in float32
    assert same(tiny, expected(w, KEY, 5, (1e-60,), "rademacher"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sixteen_bits_are_rounded_to_nearest_ties_to_even(dtype):
    """±half an ulp on every mantissa of two binades: ties, of which half go up."""
    step = torch.finfo(dtype).eps
    w = torch.arange(1, 4, step, dtype=torch.float64).to(dtype)
    for half in (step / 2, step, 0.75 * step):
        found = injected(w, KEY, 1, (half,), "rademacher")
        assert same(found, expected(w, KEY, 1, (half,), "rademacher"))
    largest = torch.full((40,), torch.finfo(dtype).max, dtype=dtype)
    assert same(injected(largest, KEY, 1, (0.5,), "gaussian"), largest)
    odd = torch.tensor([np.inf, -np.inf, np.nan], dtype=dtype)
    found = injected(odd, KEY, 1, (0.5,), "gaussian")
    assert torch.equal(found[:2], odd[:2])
    assert found[2].isnan()


def test_the_step_is_read_from_memory():
    """As a captured graph would: the same launch, with nothing changed but that memory."""
    w = weights(50, torch.float32)
    template = launching.Template(w, None, as_law("gaussian"))
    place = tables.place_of(KEY, 3, (0.3, -0.2), w.device)
    for newest in (3, 4, 9, 2**40):
        place.newest.fill_(newest)
        assert same(template.form(w, place), expected(w, KEY, newest, (0.3, -0.2), "gaussian"))
    place.table.copy_(torch.tensor([[0.1, 0.7]]))
    assert same(template.form(w, place), expected(w, KEY, 2**40, (0.1, 0.7), "gaussian"))


def test_keys_of_all_64_bits():
    assert [tables.as_signed(k) for k in (0, 2**63 - 1, 2**63, 2**64 - 1)] == [
        0,
        2**63 - 1,
        -(2**63),
        -1,
    ]
    w = weights(20, torch.float32)
    for key in (0, 2**63 + 5, 2**64 - 1, 2**32):
        assert same(
            injected(w, key, 1, (0.3,), "gaussian"), expected(w, key, 1, (0.3,), "gaussian")
        )


@pytest.mark.parametrize("wrong", [2 / 3, 3 / 2, -1])
def test_another_scale_is_told_apart(wrong):
    w = weights(50, torch.float32)
    assert not same(injected(w, KEY, 2, (0.3 * wrong, 0.2), "gaussian"),
                    expected(w, KEY, 2, (0.3, 0.2), "gaussian"))  # fmt: skip
    assert not same(injected(w, KEY, 2, (0.2, 0.3), "gaussian"),
                    expected(w, KEY, 2, (0.3, 0.2), "gaussian"))  # fmt: skip
