"""The generator against its published answers; keys and counters that never meet."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from antipgd.noise import PURPOSES, as_law, canonical_name, draws, stream_key
from antipgd.noise.stream import philox, stream_words
from stream_backends import LAWS

ALL_LAWS = [as_law(name) for name in LAWS]


# philox4x32-10 of Random123's kat_vectors: counter, key, result.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers_of_random123(counter, key, expected):
    words = np.array([int(word, 16) for word in counter.split()], np.uint32)
    low, high = (int(word, 16) for word in key.split())
    assert [f"{word:08x}" for word in philox(words, low | high << 32)] == expected.split()


def test_counter_layout():
    """The low 64 bits are the block, the high 64 the step."""
    words = stream_words(key=7, step=2**33 + 5, first_block=2**32 - 1, blocks=2)
    for i, block in enumerate((2**32 - 1, 2**32)):
        counter = [block & 0xFFFFFFFF, block >> 32, 5, 2]
        assert (words[i] == philox(np.array(counter, np.uint32), 7)).all()


@given(
    law=st.sampled_from(ALL_LAWS),
    begin=st.integers(0, 2**40),
    length=st.integers(0, 600),
    cut=st.tuples(st.integers(0, 600), st.integers(0, 600)),
)
def test_a_slice_of_draws_is_a_slice_of_the_whole(law, begin, length, cut):
    a, b = sorted(min(c, length) for c in cut)
    whole = draws(3, "w", 4, begin, begin + length, law)
    part = draws(3, "w", 4, begin + a, begin + b, law)
    assert part.dtype == np.float32
    assert (part.view(np.int32) == whole[a:b].view(np.int32)).all()


def test_a_million_places_are_distinct():
    """(purpose, seed, name, step) → (key, counter): 10⁶ combinations, no two alike.

    The step is in the counter, 64 bits of it unaltered, so what can collide are the keys: all
    1,008,000 of them differ.
    """
    names = [f"layer{i}.weight" for i in range(400)]
    keys = {stream_key(s, n, p) for p, s, n in product(PURPOSES, range(420), names)}
    assert len(keys) == len(PURPOSES) * 420 * 400 == 1_008_000
    steps = [1, 2, 2**32, 2**32 + 1, 2**33, 2**63 - 1]
    words = {tuple(stream_words(5, step, block, 1)[0]) for step in steps for block in range(9)}
    assert len(words) == len(steps) * 9


def test_every_part_of_the_place_matters():
    base = draws(1, "a", 1, 0, 64)
    others = [
        draws(2, "a", 1, 0, 64),
        draws(1, "b", 1, 0, 64),
        draws(1, "a", 2, 0, 64),
        draws(1, "a", 1, 64, 128),
        draws(1, "a", 2**32 + 1, 0, 64),
        *(draws(1, "a", 1, 0, 64, purpose=p) for p in PURPOSES[1:]),
    ]
    for i, a in enumerate([base, *others]):
        for b in others[i:]:
            assert (a != b).mean() > 0.9


def test_streams_are_uncorrelated():
    n = 200_000
    first = draws(0, "a", 1, 0, n)
    for second in (draws(1, "a", 1, 0, n), draws(0, "b", 1, 0, n), draws(0, "a", 2, 0, n)):
        r = np.corrcoef(first, second)[0, 1]
        assert abs(r) * math.sqrt(n) < 4.5
    across_steps = np.concatenate([draws(0, "a", step, 0, 4) for step in range(1, 20_001)])
    assert stats.kstest(across_steps, "norm").pvalue > 1e-4


def test_step_zero_has_no_noise():
    assert (draws(0, "a", 0, 0, 10) == 0).all()


def test_global_generators_are_untouched():
    import torch

    np.random.seed(3)  # noqa: NPY002
    torch.manual_seed(3)
    before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    draws(0, "a", 1, 0, 1000)
    after = np.random.get_state()[1], torch.get_rng_state()  # noqa: NPY002
    assert (before[0] == after[0]).all()
    assert torch.equal(before[1], after[1])


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("layer1.0.weight", "layer1.0.weight"),
        ("module.layer1.weight", "layer1.weight"),
        ("_orig_mod.module.layer1.weight", "layer1.weight"),
        ("module._orig_mod.layer1.weight", "layer1.weight"),
        ("blocks.0._checkpoint_wrapped_module.attn.q", "blocks.0.attn.q"),
        ("_fsdp_wrapped_module.a._fsdp_wrapped_module.b", "a.b"),
        ("encoder.module.weight", "encoder.module.weight"),
        ("module", "module"),
        (3, "3"),
    ],
)
def test_canonical_names(name, canonical):
    assert canonical_name(name) == canonical
    assert stream_key(0, name) == stream_key(0, canonical)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, "0", None, True])
def test_bad_seed(seed):
    with pytest.raises(ValueError, match=r"seed must be an integer from 0"):
        draws(seed, "a", 1, 0, 1)


def test_bad_step_slice_and_purpose():
    with pytest.raises(ValueError, match=r"step must be .* got -1"):
        draws(0, "a", -1, 0, 1)
    with pytest.raises(ValueError, match="got start=5, stop=4"):
        draws(0, "a", 1, 5, 4)
    with pytest.raises(ValueError, match="got start=-1, stop=4"):
        draws(0, "a", 1, -1, 4)
    with pytest.raises(ValueError, match=r"unknown purpose 'dropout'; accepted: noise"):
        draws(0, "a", 1, 0, 1, purpose="dropout")
    for bad in (3.0, "3", None, True):
        with pytest.raises(TypeError, match="step, start and stop must be integers"):
            draws(0, "a", bad, 0, 1)
    with pytest.raises(ValueError, match="unknown law 'normal'"):
        draws(0, "a", 1, 0, 1, law="normal")


def test_numpy_integers_are_integers():
    expected = draws(3, "a", 7, 2, 9)
    for kind in (np.int32, np.uint32, np.uint64, np.int8):
        got = draws(kind(3), "a", kind(7), kind(2), kind(9))
        assert (got == expected).all()
