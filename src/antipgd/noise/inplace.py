"""Adding injections to NumPy arrays in place, many at once, on several threads.

The Python side of `kernels`: checks, threads, and nothing else. Any array that shares memory with
something (a torch tensor, say) changes that too. Needs numba (the `numba` extra).
"""

import operator
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from antipgd.noise import kernels
from antipgd.noise.laws import Law, as_law
from antipgd.noise.placement import Shard, pieces_of
from antipgd.noise.stream import check_slice, stream_key
from antipgd.noise.transforms import student_constants

_pools: dict[int, ThreadPoolExecutor] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)  # threads do not survive a fork


def _pool(threads: int) -> ThreadPoolExecutor:
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads, thread_name_prefix="antipgd")
    return _pools[threads]


def law_arguments(law: Law | str) -> tuple[int, int, *tuple[np.float32, ...]]:
    """A law as the kernels take it: its code, its draws per block, the constants of student-t."""
    law = as_law(law)
    if law.name not in kernels.LAWS:
        raise NotImplementedError(
            f"law {law.name!r} is not compiled; accepted: {', '.join(kernels.LAWS)}"
        )
    constants = (0.0,) * 4 if law.df is None else astuple(student_constants(law.df))
    return kernels.LAWS.index(law.name), law.per_block, *map(np.float32, constants)


def _check_coefficients(coefficients: object, rows: int, dtype: np.dtype) -> NDArray[np.float64]:
    """Coefficients as a table, refused unless each is a finite number in the weights' type."""
    table = np.asarray(coefficients)
    if table.ndim != 2 or len(table) != rows or table.dtype.kind not in "fiu":
        raise ValueError(
            f"coefficients must be numbers, one row for each of {rows} arrays and one column per "
            f"tap; got {table.dtype} of shape {table.shape}"
        )
    bad = table[~(np.abs(table.astype(np.float64)) <= np.finfo(dtype).max)]
    if bad.size:
        raise ValueError(f"coefficients must be finite in {dtype}; got {bad[0]}")
    return np.ascontiguousarray(table, np.float64)


def _check_keys(keys: Sequence[int] | NDArray[np.uint64]) -> NDArray[np.uint64]:
    return np.array([operator.index(key) for key in keys], np.uint64)


def _shares(ends: NDArray[np.int64], threads: int) -> list[slice]:
    """Consecutive pieces for each thread, about as many elements in every share."""
    total = int(ends[-1]) if len(ends) else 0
    goals = [total * i // threads for i in range(1, threads)]
    cuts = [0, *np.searchsorted(ends, goals, side="right").tolist(), len(ends)]
    return [slice(a, b) for a, b in pairwise(cuts) if a < b]


def _on_threads(run: Callable[[slice], None], shares: list[slice], threads: int) -> None:
    if len(shares) == 1:
        run(shares[0])
    elif shares:
        list(_pool(threads).map(run, shares))


class Targets:
    """Arrays that take noise together, with their keys; made once, used at every step.

    `shards[i]` says which part of its parameter `arrays[i]` is, None where it is the whole. The
    arrays are kept alive; all must have one dtype, float32 or float64.
    """

    def __init__(
        self,
        arrays: Sequence[NDArray],
        keys: Sequence[int],
        shards: Sequence[Shard | None] | None = None,
    ) -> None:
        self.arrays = list(arrays)
        shards = [None] * len(self.arrays) if shards is None else list(shards)
        if not len(self.arrays) == len(keys) == len(shards):
            raise ValueError(
                f"one key (and shard) for each array; got {len(self.arrays)} arrays, "
                f"{len(keys)} keys, {len(shards)} shards"
            )
        dtypes = {array.dtype for array in self.arrays}
        if len(dtypes) > 1:
            raise TypeError(f"arrays of one call need one dtype; got {sorted(map(str, dtypes))}")
        self._like = np.empty(0, dtypes.pop() if dtypes else np.float32)
        self._keys = _check_keys(keys)
        if len(set(self._keys.tolist())) < len(self._keys):
            raise ValueError("two arrays have the same key, so they would get the same noise")
        pieces = [pieces_of(array, shard) for array, shard in zip(self.arrays, shards, strict=True)]
        self._pieces = np.concatenate([np.empty((0, 10), np.int64), *pieces])
        self._owners = np.repeat(np.arange(len(pieces)), [len(rows) for rows in pieces])
        self._ends = np.cumsum(self._pieces[:, 1:4].prod(axis=1))

    def inject(
        self,
        newest: int,
        coefficients: Sequence[Sequence[float]] | NDArray[np.float64],
        law: Law | str = "gaussian",
        *,
        threads: int = 1,
    ) -> None:
        """`arrays[i] += Σ_j coefficients[i][j] · ξ_{newest−j}`, draws before step 1 being zero."""
        newest, _, _ = check_slice(newest, 0, 0)
        if threads < 1:
            raise ValueError(f"threads must be at least 1; got {threads}")
        table = _check_coefficients(coefficients, len(self.arrays), self._like.dtype)
        constants = law_arguments(law)

        def run(share: slice) -> None:
            kernels.inject_pieces(self._pieces[share], self._owners[share], self._keys, newest,
                                  table, constants, self._like)  # fmt: skip

        _on_threads(run, _shares(self._ends, threads), threads)


class Template:
    """How arrays of one layout lie, to add noise to memory that is made anew at every step.

    Made from one such array; nothing of it is kept. `inject` trusts the address that it is given.
    """

    def __init__(self, array: NDArray, shard: Shard | None = None) -> None:
        self._pieces = pieces_of(array, shard)
        self._pieces[:, 0] -= array.ctypes.data
        self._like = np.empty(0, array.dtype)
        self._ends = np.cumsum(self._pieces[:, 1:4].prod(axis=1))

    def on_one_thread(self, law: tuple[int, int, *tuple[np.float32, ...]]) -> Callable[..., None]:
        """`inject` for one law, with no more between it and the kernel."""
        return partial(kernels.inject_layout, self._pieces, law, self._like)

    def inject(
        self,
        address: int,
        key: NDArray[np.uint64],
        newest: int,
        coefficients: NDArray[np.float64],
        law: tuple[int, int, *tuple[np.float32, ...]],
        threads: int = 1,
    ) -> None:
        """array += Σ_j coefficients[0, j] · ξ_{newest−j} for an array that begins at `address`.

        As the kernels take them, because they are the same for many calls: `key` is one of them,
        `coefficients` a checked row, `law` what `law_arguments` gives.
        """
        if threads == 1 or len(self._pieces) < 2:
            self.on_one_thread(law)(address, key, newest, coefficients)
            return

        def run(share: slice) -> None:
            kernels.inject_layout(
                self._pieces[share], law, self._like, address, key, newest, coefficients
            )

        _on_threads(run, _shares(self._ends, threads), threads)


def inject(
    arrays: Sequence[NDArray],
    names: Sequence[str | int],
    seed: int,
    newest: int,
    coefficients: Sequence[Sequence[float]] | NDArray[np.float64],
    law: Law | str = "gaussian",
    *,
    threads: int = 1,
) -> None:
    """Add one injection to whole parameters, once: see `Targets` for every step.

    >>> from antipgd.noise import draws
    >>> w = np.zeros(5, np.float32)
    >>> inject([w], ["w"], seed=0, newest=1, coefficients=[[0.1, -0.1]])  # ξ_0 = 0
    >>> bool((w == np.float32(0.1) * draws(0, "w", 1, 0, 5)).all())
    True
    """
    keys = [stream_key(seed, name) for name in names]
    Targets(arrays, keys).inject(newest, coefficients, law, threads=threads)
