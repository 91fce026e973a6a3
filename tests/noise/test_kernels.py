"""The compiled kernels move arrays by the very bits of the slow version, wherever they lie."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antipgd.noise import as_law, kernels, laws, stream_key
from antipgd.noise.injection import combine
from antipgd.noise.inplace import Targets, _shares, inject, law_arguments
from antipgd.noise.placement import PIECE_ELEMENTS, Shard, pieces_of
from antipgd.noise.stream import key_draws, key_indices
from stream_backends import LAWS

ALL_LAWS = [as_law(name) for name in LAWS]
KEY = stream_key(11, "layer.weight")
TAPS = {"pgd": (0.3,), "anti": (0.3, -0.2), "long": (0.5, 0.0, -0.3, -0.2)}


def slow(w, key, newest, coefficients, law, elements=None):
    """The reference: w + Σ c_j ξ, elements numbered in logical row-major order."""
    elements = np.arange(w.size) if elements is None else elements
    last = int(elements.max(initial=-1)) + 1
    first = int(elements.min(initial=0))

    def draw(k):
        return key_draws(key, k, first, last, law)[elements - first].reshape(w.shape)

    eps = combine(coefficients, newest, draw, w.dtype)
    return w.copy() if eps is None else w + eps


def weights(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def same_bits(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    integer = np.int32 if a.dtype == np.float32 else np.int64
    return (np.ascontiguousarray(a).view(integer) == np.ascontiguousarray(b).view(integer)).all()


@pytest.fixture
def unheard_of(monkeypatch):
    """A law that is added to `laws` and to nothing else."""
    monkeypatch.setitem(laws.LAWS, "unheard-of", 4)
    return as_law("unheard-of")


def test_every_law_is_compiled():
    assert set(kernels.LAWS) == laws.LAWS.keys()
    assert set(laws.LAWS.values()) <= {2, 4, 128}  # draws per block for which work arrays suffice


def test_a_law_that_is_not_compiled_is_refused(unheard_of):
    w = weights(10)
    before = w.copy()
    with pytest.raises(NotImplementedError, match="'unheard-of' is not compiled; accepted: gau"):
        Targets([w], [KEY]).inject(1, [[1.0]], unheard_of)
    assert same_bits(w, before)


def test_compiled_code_draws_no_law_that_it_lacks():
    with pytest.raises(NotImplementedError, match="not compiled"):
        kernels.draw_into(np.zeros(9, np.float32), np.uint64(KEY), 1, 0,
                          (len(kernels.LAWS), 4, *law_arguments("gaussian")[2:]))  # fmt: skip


@settings(max_examples=60)
@given(law=st.sampled_from(ALL_LAWS), start=st.integers(0, 2**45), length=st.integers(0, 10_000))
def test_draws_at_any_offset(law, start, length):
    out = np.empty(length, np.float32)
    kernels.draw_into(out, np.uint64(KEY), 3, start, law_arguments(law))
    assert same_bits(out, key_draws(KEY, 3, start, start + length, law))


@pytest.mark.parametrize("law", ALL_LAWS, ids=str)
def test_draws_around_every_boundary(law):
    """Block and chunk boundaries: each start and end within 130 of one."""
    chunk = kernels.CHUNK
    whole = key_draws(KEY, 2, 0, 2 * chunk + 400, law)
    for start, stop in product((0, 1, 2, 3, 5, 31, 32, 33, 127, 128, 129), (-129, -1, 0, 1, 130)):
        stop += 2 * chunk
        out = np.empty(stop - start, np.float32)
        kernels.draw_into(out, np.uint64(KEY), 2, start, law_arguments(law))
        assert same_bits(out, whole[start:stop])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("taps", TAPS)
@pytest.mark.parametrize("law", ALL_LAWS, ids=str)
def test_injection_equals_the_reference(law, taps, dtype):
    coefficients = TAPS[taps]
    for newest in (1, 2, 3, 9):  # the first steps have fewer draws than taps
        for size in (0, 1, 127, 128, 1000, kernels.CHUNK + 77):
            w = weights(size, dtype)
            expected = slow(w, KEY, newest, coefficients, law)
            Targets([w], [KEY]).inject(newest, [coefficients], law)
            assert same_bits(w, expected)


def laid_out(w, order):
    """A copy of `w` whose axes lie in memory in the given order, the outermost first."""
    return np.ascontiguousarray(w.copy().transpose(order)).transpose(np.argsort(order))


def layouts(w):
    """The same logical array in several memory formats."""
    axes = list(range(w.ndim))
    yield "contiguous", w.copy()
    yield "fortran", laid_out(w, axes[::-1])
    yield "channels last", laid_out(w, [*axes[:1], *axes[2:], *axes[1:2]])
    yield "outputs last", laid_out(w, [*axes[1:], 0])
    yield "padded", np.pad(w, [(0, 0)] * (w.ndim - 1) + [(0, 3)])[..., : w.shape[-1]]
    yield "every other", np.repeat(w, 2, axis=0)[::2]


@pytest.mark.parametrize("law", [ALL_LAWS[0], ALL_LAWS[1], ALL_LAWS[4]], ids=str)
@pytest.mark.parametrize(
    "shape",
    [(7,), (64, 40), (300, 500), (20, 40, 3, 3), (600, 3, 3, 3), (5, 4, 3, 2, 6), (8, 16, 1, 1)],
)
def test_memory_format_does_not_matter(shape, law):
    w = weights(shape)
    expected = slow(w, KEY, 5, TAPS["anti"], law)
    for name, array in layouts(w):
        assert (array == w).all(), name
        Targets([array], [KEY]).inject(5, [TAPS["anti"]], law)
        assert same_bits(array, expected), name


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "first"),
    [((3, 32, 3, 3), 0), ((5, 96, 3, 3), 1), ((5, 32, 3, 3), 3), ((30, 256, 3, 3), 0),
     ((4, 33, 3, 3), 1), ((4, 64, 3, 2), 1)],
)  # fmt: skip
def test_signs_of_convolutions_in_channels_last(shape, first, dtype):
    """Strips of nine words: alone, from the middle of a block, more than one work array holds,
    and shapes that are not made of strips."""
    whole = weights(shape).astype(dtype)
    part = laid_out(whole[first:], (0, 2, 3, 1))
    for newest, coefficients in ((5, [0.3, -0.2]), (1, [0.3, -0.2]), (5, [0.3, -0.2, 0.1])):
        before = part.copy()
        Targets([part], [KEY], [Shard(shape, (first, 0, 0, 0))]).inject(
            newest, [coefficients], as_law("rademacher")
        )
        added = slow(np.zeros_like(whole), KEY, newest, coefficients, as_law("rademacher"))
        assert same_bits(part, before + added[first:])


@pytest.mark.parametrize("law", ALL_LAWS, ids=str)
def test_draws_by_chunks(law):
    words, signs, _, xi, _ = kernels.workspace(np.empty(0, np.float32))
    for start, count in ((0, 1), (0, 100), (0, kernels.CHUNK), (2 * kernels.CHUNK, 4001)):
        kernels.draw_chunk(np.uint64(KEY), 3, start, count, law_arguments(law), words, signs, xi)
        assert same_bits(xi[:count], key_draws(KEY, 3, start, start + count, law))


@pytest.mark.parametrize("count", [1, 4, 7, 100, 8256, 20_001])
def test_indices(count):
    words, *_ = kernels.workspace(np.empty(0, np.float32))
    out = np.empty(count, np.int64)
    kernels.draw_indices(np.uint64(KEY), 9, 40, words, out)
    expected = key_indices(KEY, 9, count, 40)
    assert (out == expected).all()
    assert (expected[: count // 2] == key_indices(KEY, 9, count // 2, 40)).all()
    assert set(out) <= set(range(40))


@settings(max_examples=60)
@given(data=st.data(), law=st.sampled_from(ALL_LAWS))
def test_any_part_of_a_parameter_gets_its_part_of_the_draw(data, law):
    shape = data.draw(st.lists(st.integers(1, 24), min_size=1, max_size=4))
    cuts = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    region = tuple(slice(a, b) for a, b in cuts)
    whole = weights(shape)
    part = whole[region].copy()
    if data.draw(st.booleans()):
        part = np.asfortranarray(part)
    shard = Shard(tuple(shape), tuple(a for a, _ in cuts))
    Targets([part], [KEY], [shard]).inject(4, [TAPS["anti"]], law)
    assert same_bits(part, slow(whole, KEY, 4, TAPS["anti"], law)[region])


def test_a_shard_of_a_parameter_larger_than_memory():
    shard = Shard((2**20, 2**20), (2**19 + 3, 5))
    part = np.zeros((2, 300), np.float32)
    Targets([part], [KEY], [shard]).inject(2, [[1.0, 0.0]])
    for row in range(2):
        start = (2**19 + 3 + row) * 2**20 + 5
        assert same_bits(part[row], key_draws(KEY, 2, start, start + 300, ALL_LAWS[0]))


@pytest.mark.parametrize("law", ALL_LAWS, ids=str)
def test_many_tensors_on_any_number_of_threads(law):
    shapes = [(3,), (), (0, 4), (64, 3, 3, 3), (PIECE_ELEMENTS + 999,), (1000, 700), (128,)]
    keys = [stream_key(2, name) for name in range(len(shapes))]
    coefficients = [[0.1 * (i + 1), -0.1 * i] for i in range(len(shapes))]
    results = []
    for threads in (1, 2, 3, 8):
        arrays = [weights(shape, seed=i) for i, shape in enumerate(shapes)]
        Targets(arrays, keys).inject(6, coefficients, law, threads=threads)
        results.append(arrays)
    for i, shape in enumerate(shapes):
        expected = slow(weights(shape, seed=i), keys[i], 6, coefficients[i], law)
        for arrays in results:
            assert same_bits(arrays[i], expected)


def test_pieces_cover_each_element_once():
    array = np.zeros((600, 700, 3), np.float32).transpose(1, 0, 2)
    pieces = pieces_of(array)
    assert len(pieces) > 1
    elements, addresses = [], []
    for piece in pieces:
        address, *sizes = piece[:4].tolist()
        steps, start, jumps = piece[4:7], piece[7], [*piece[8:10], 1]
        index = np.indices(sizes).reshape(3, -1)
        addresses.append(address + 4 * (steps @ index))
        elements.append(start + np.array(jumps) @ index)
    elements, addresses = np.concatenate(elements), np.concatenate(addresses)
    order = np.argsort(elements)
    assert (elements[order] == np.arange(array.size)).all()
    at = np.array(np.unravel_index(np.arange(array.size), array.shape))
    assert (addresses[order] == array.ctypes.data + np.array(array.strides) @ at).all()


def test_what_goes_in_comes_out():
    """Injections with a σ that changes every step, then the carried draw taken out."""
    w = weights(1000, np.float64)
    targets, start = Targets([w], [KEY]), w.copy()
    sigmas = [0.0, *(0.1 + 0.01 * k for k in range(1, 31))]
    for n in range(30):
        targets.inject(n + 1, [[sigmas[n + 1], -sigmas[n]]])
    assert np.abs(w - start).max() > 0.5
    targets.inject(30, [[-sigmas[30]]])
    assert np.abs(w - start).max() < 1e-13


def test_nothing_is_added_before_the_first_step_or_with_zero_sigma():
    w = weights(100)
    w[0] = -0.0
    before = w.copy()
    Targets([w], [KEY]).inject(0, [[1.0, -1.0]])
    Targets([w], [KEY]).inject(5, [[0.0, 0.0]])
    Targets([], []).inject(1, np.empty((0, 2)))
    assert same_bits(w, before)


def test_kernels_can_run_side_by_side():
    arrays = [weights(50_000, seed=i) for i in range(8)]
    expected = [slow(w, KEY, 2, TAPS["anti"], ALL_LAWS[0]) for w in arrays]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda w: Targets([w], [KEY]).inject(2, [TAPS["anti"]], threads=2), arrays))
    assert all(same_bits(a, b) for a, b in zip(arrays, expected, strict=True))


DIGEST = """
import hashlib, numpy as np
from antipgd.noise import LAWS, kernels
from antipgd.noise.inplace import Targets, law_arguments
import numba
total = hashlib.sha256()
for law in (name.replace("student-t", "student-t:5") for name in LAWS):
    out = np.empty(20_011, np.float32)
    kernels.draw_into(out, np.uint64(77), 9, 13, law_arguments(law))
    total.update(out.tobytes())
    w = np.linspace(-1, 1, 9_000).astype(np.float32).reshape(10, 3, 3, 100).transpose(0, 3, 1, 2)
    row, strips = w[0].copy(), w.copy("K")[:, :96]
    Targets([w, row, strips], [5, 6, 7]).inject(4, [[0.3, -0.2]] * 3, law)
    for array in (w, row, strips):
        total.update(array.tobytes())
print(numba.config.CPU_NAME, total.hexdigest())
"""
CPUS = {
    "native": {},
    "AVX512": {"NUMBA_CPU_NAME": "skylake-avx512", "NUMBA_CPU_FEATURES": "+avx512f,+avx512vl,+fma"},
    "AVX2": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"},
    "SSE2": {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": "+sse2"},
}


def digest(cpu):
    environment = os.environ | CPUS[cpu]
    result = subprocess.run(
        [sys.executable, "-c", DIGEST], env=environment, capture_output=True, text=True, check=True
    )
    name, _, digest = result.stdout.strip().rpartition(" ")
    assert name == CPUS[cpu].get("NUMBA_CPU_NAME", "None")  # the setting was heard
    return digest


def cpu_flags():
    path = Path("/proc/cpuinfo")
    return path.read_text().split() if path.exists() else []


@pytest.mark.skipif("avx512vl" not in cpu_flags(), reason="this CPU cannot run AVX-512 code")
def test_avx512_gives_the_same_bits():
    assert digest("AVX512") == digest("native")


def test_avx2_and_sse2_give_the_same_bits():
    assert digest("AVX2") == digest("SSE2") == digest("native")


BOUNDS = """
import numpy as np
from antipgd.noise.inplace import Targets
from antipgd.noise.placement import Shard
convolutions = np.zeros((40, 3, 3, 64), np.float32).transpose(0, 3, 1, 2)
for sign in (1.0, -1.0):
    Targets([convolutions], [9]).inject(2, [[sign, -sign]], "rademacher")
assert abs(convolutions).max() == 0
shapes = [(257, 255), (4096, 3), (1024, 12), (512, 96), (2048, 10), (300, 9), (130, 31)]
for law in ("gaussian", "rademacher", "student-t:5"):
    for shape in shapes:
        for dtype in (np.float32, np.float64):
            wider = Shard((shape[0], shape[1] + 2), (0, 1))
            arrays = [np.zeros(shape, dtype, order=order) for order in "CFCF"]
            shards = [None, None, wider, wider]
            for start in (0, 3):
                targets = Targets(arrays, range(4), shards)
                targets.inject(2, [[1.0, -1.0]] * 4, law)
                targets.inject(2, [[-1.0, 1.0, 0.0]] * 4, law)
            assert max(abs(a).max() for a in arrays) < 1e-3, (law, shape)
print("within bounds")
"""


@pytest.mark.slow
def test_no_work_array_is_overrun(tmp_path):
    """Odd panels, compiled anew with every index checked."""
    checked = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", BOUNDS], env=checked, capture_output=True, text=True, check=False
    )
    assert result.stdout.strip() == "within bounds", result.stderr


def test_threads_get_equal_shares():
    for pieces, threads in ((2, 2), (4, 2), (8, 8), (9, 2), (1, 4)):
        targets = Targets([np.zeros(pieces * PIECE_ELEMENTS, np.float32)], [1])
        shares = [s.stop - s.start for s in _shares(targets._ends, threads)]
        assert sum(shares) == pieces
        assert len(shares) == min(pieces, threads)
        assert max(shares) - min(shares) <= 1


FORK = """
import os, numpy as np
from antipgd.noise.inplace import Targets
def run():
    w = np.zeros(600_000, np.float32)
    Targets([w], [5]).inject(1, [[1.0]], threads=2)
    return float(w.sum())
first = run()
child = os.fork()
if child == 0:
    os._exit(0 if run() == first else 1)
assert os.waitpid(child, 0)[1] == 0
print("same")
"""


def test_threads_after_a_fork():
    result = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.stdout.strip() == "same", result.stderr


def test_bad_input_changes_nothing():
    w = weights(10)
    before = w.copy()
    with pytest.raises(ValueError, match=r"step must be .* got -1"):
        inject([w], ["w"], 0, -1, [[1.0]])
    with pytest.raises(ValueError, match="coefficients must be finite in float32; got nan"):
        inject([w], ["w"], 0, 1, [[1.0, float("nan")]])
    with pytest.raises(ValueError, match="must be finite in float32; got 1e\\+300"):
        inject([w], ["w"], 0, 1, [[1e300]])
    with pytest.raises(ValueError, match="coefficients must be numbers"):
        inject([w], ["w"], 0, 1, [["0.5"]])
    with pytest.raises(TypeError, match=r"must be integers; got 1\.5"):
        inject([w], ["w"], 0, 1.5, [[1.0]])
    with pytest.raises(ValueError, match="two arrays have the same key"):
        inject([w, w.copy()], ["w", "module.w"], 0, 1, [[1.0], [1.0]])
    with pytest.raises(ValueError, match=r"one row for each of 1 arrays.*shape \(2, 1\)"):
        inject([w], ["w"], 0, 1, [[1.0], [1.0]])
    with pytest.raises(ValueError, match=r"one key .* got 1 arrays, 2 keys"):
        Targets([w], [1, 2])
    with pytest.raises(ValueError, match="threads must be at least 1; got 0"):
        Targets([w], [1]).inject(1, [[1.0]], threads=0)
    with pytest.raises(ValueError, match="unknown law 'normal'"):
        inject([w], ["w"], 0, 1, [[1.0]], law="normal")
    with pytest.raises(TypeError, match="float32 and float64 arrays; got float16"):
        Targets([w.astype(np.float16)], [1])
    with pytest.raises(TypeError, match="one dtype; got"):
        Targets([w, w.astype(np.float64)], [1, 2])
    with pytest.raises(ValueError, match="read-only"):
        Targets([np.broadcast_to(w, (2, 10))], [1])
    with pytest.raises(ValueError, match="positive strides"):
        Targets([w[::-1]], [1])
    with pytest.raises(ValueError, match="do not overlap"):
        Targets([np.lib.stride_tricks.as_strided(w, (4, 4), (8, 4))], [1])
    with pytest.raises(ValueError, match=r"part of shape \(10,\) at \(5,\) does not lie"):
        Targets([w], [1], [Shard((12,), (5,))])
    assert same_bits(w, before)
