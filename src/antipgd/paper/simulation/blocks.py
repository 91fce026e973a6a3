"""Which runs go together: up to eight that share data, draws, batches and measured steps.

A block is what the steppers work on: lanes of runs that differ only in how they use the same
gradient and the same draws. No lane influences another one.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipgd.noise.injection import whose_turn
from antipgd.noise.laws import Law, as_law
from antipgd.noise.stream import stream_key
from antipgd.paper.methods import SIMULATED
from antipgd.paper.simulation.orders import BALANCED, visited_rows
from antipgd.paper.simulation.problems import PROBLEMS, Problem
from antipgd.paper.simulation.problems.problem import Array
from antipgd.paper.simulation.spec import Run

LANES = 8


@dataclass(frozen=True)
class Block:
    """Runs in lanes; a lane that holds no run is None."""

    lanes: tuple[Run | None, ...]

    @cached_property
    def runs(self) -> list[tuple[int, Run]]:
        """The lanes that hold a run."""
        return [(lane, run) for lane, run in enumerate(self.lanes) if run is not None]

    @property
    def shared(self) -> Run:
        """Any run of the block, for what all of them share."""
        return self.runs[0][1]

    @cached_property
    def problem(self) -> Problem:
        return self.shared.make_problem()

    @cached_property
    def data(self) -> Any:
        return self.shared.make_data(self.problem)

    @cached_property
    def has_kernel(self) -> bool:
        """Whether compiled code does the steps: only where it is the problem's very own, gradients
        are taken at the weights, and no layers take turns."""
        own = type(self.problem)
        there = own in PROBLEMS.values() and own.compiled is not Problem.compiled
        return there and self.gradient == "plain" and self.shared.layers == "all"

    @property
    def gradient(self) -> str:
        """Where gradients are taken, the same for all runs."""
        return SIMULATED[self.shared.method].gradient

    @cached_property
    def start(self) -> Array:
        """w_0, the same for all runs."""
        w = np.asarray(self.shared.make_start(self.problem), np.float64)
        if w.ndim != 1 or not w.size or not np.isfinite(w).all():
            raise ValueError(
                f"{self.shared.problem}: start must give a finite vector; got shape {w.shape}"
            )
        return w

    @cached_property
    def law(self) -> Law:
        """The law of the draws; nothing is drawn where no run names one."""
        return as_law(next((run.law for _, run in self.runs if run.law), "gaussian"))

    @cached_property
    def keys(self) -> tuple[int, int, int]:
        """Of the noise on the weights, the mini-batches, and the noise on the labels.

        The first is that of a torch parameter named "w" under `antipgd.torch.attach`.
        """
        seed = self.shared.seed
        return (
            stream_key(seed, "w"),
            stream_key(seed, "rows", "batch"),
            stream_key(seed, "labels", "label"),
        )

    def per_lane(self, value: Any, empty: float = 0.0) -> Array:
        """An array of `value(run)` for each lane, `empty` where there is no run."""
        numbers = np.full(LANES, empty)
        for lane, run in self.runs:
            numbers[lane] = value(run)
        return numbers

    @cached_property
    def labelled(self) -> Array:
        """1 for lanes with noise on the labels."""
        return self.per_lane(lambda run: SIMULATED[run.method].labels)

    @cached_property
    def taps(self) -> Array:
        """Taps by lag and lane, zeros where a run has fewer."""
        table = np.zeros((max(len(run.taps) for _, run in self.runs), LANES))
        for lane, run in self.runs:
            table[: len(run.taps), lane] = run.taps
        return table

    @cached_property
    def mask(self) -> Array:
        """What the noise of each weight is multiplied by: 1, or its filter's root mean square at
        the start; 0 for those that get none."""
        mask = np.ones(len(self.start))
        if self.shared.relative:
            mask = self._filter_sizes()
        if self.shared.noisy != "all":
            own = self.problem.parts[self.shared.noisy]
            mask[: own.start], mask[own.stop :] = 0, 0
        return mask

    def _filter_sizes(self) -> Array:
        filters = self.problem.filters
        assert filters is not None
        squares = np.bincount(filters, self.start**2) / np.bincount(filters)
        return np.sqrt(squares)[filters]

    def mask_of(self, draw: int) -> Array:
        """The mask of one draw, which is on one layer where they take turns."""
        if self.shared.layers == "all":
            return self.mask
        parts = list(self.problem.parts.values())
        mask, own = np.zeros_like(self.mask), parts[whose_turn(draw, len(parts))]
        mask[own] = self.mask[own]
        return mask

    def rows(self, first: int, last: int) -> NDArray[np.int64]:
        """Of the steps after first … last−1; none where steps find their own."""
        run = self.shared
        return visited_rows(run.order, run.seed, self.problem.examples, run.batch or 0, first, last)

    def sigmas(self, first: int, last: int) -> Array:
        """σ of the draws first … last−1 by lane; zero for draws before the first."""
        table = np.zeros((last - first, LANES))
        shapes: dict[tuple[object, ...], Array] = {}
        for lane, run in self.runs:
            shape = (run.schedule, run.start, run.stop)
            if shape not in shapes:
                shapes[shape] = _factors(run, first, last)
            table[:, lane] = run.sigma * shapes[shape]
        return table


def _factors(run: Run, first: int, last: int) -> Array:
    """What σ of the draws first … last−1 is multiplied by; zero before the first."""
    steps = (np.arange(first, last) - 1) * run.hold + 1  # at which they come
    inside = steps > max(run.start, 0)
    if run.stop is not None:
        inside &= steps <= run.stop
    factors = inside.astype(np.float64)
    if run.schedule is not None:
        factors[inside] = [run.factor(int(step)) for step in steps[inside]]
    return factors


# What lanes of one block may differ in; `noisy` where a run has no noise on its weights, too.
LANE_FIELDS = (
    "method", "lr", "sigma", "taps", "law", "schedule", "start", "stop", "momentum", "nesterov",
)  # fmt: skip
_SHARED_FIELDS = tuple(f.name for f in fields(Run) if f.name not in LANE_FIELDS)


def _company(run: Run) -> tuple[object, ...]:
    """Runs in one block agree in this: every field that is not a lane's own, the gradient, and
    whether there is momentum. Where gradients decide on the next batch, a run is alone."""
    silent = run if run.taps else replace(run, noisy="all", layers="all", relative="")
    shared = tuple(getattr(silent, name) for name in _SHARED_FIELDS)
    alone = run.name if run.order == BALANCED else ""
    return (*shared, SIMULATED[run.method].gradient, run.momentum > 0, alone)


def _by_law(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs of one law each; those that draw nothing join the first."""
    laws: dict[str, list[Run]] = defaultdict(list)
    silent = [run for run in runs if not run.law]
    for run in runs:
        if run.law:
            laws[run.law].append(run)
    if not laws:
        return [silent]
    first, *others = laws.values()
    return [silent + first, *others]


def _fixed_lanes(runs: Sequence[Run]) -> list[Block]:
    """Each run in the lane that its own name says.

    A user's NumPy code may round the rows of one array differently, as BLAS does. With all lanes
    always there and a run always in the same one, its bits are still its own.
    """
    waiting: dict[int, list[Run]] = defaultdict(list)
    for run in runs:
        waiting[int(run.name, 16) % LANES].append(run)
    depth = max(map(len, waiting.values()))
    return [
        Block(tuple(waiting[k][i] if i < len(waiting[k]) else None for k in range(LANES)))
        for i in range(depth)
    ]


def blocks_of(runs: Iterable[Run], compiled: bool) -> list[Block]:
    """All runs in blocks, as few as their differences allow."""
    together: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in runs:
        # Only compiled code is known to treat a shift of zero like none.
        labelled = not compiled and SIMULATED[run.method].labels
        together[*_company(run), labelled].append(run)
    blocks: list[Block] = []
    for group in together.values():
        for same in _by_law(group):
            if compiled:
                blocks += [
                    Block(tuple((same[i : i + LANES] + [None] * LANES)[:LANES]))
                    for i in range(0, len(same), LANES)
                ]
            else:
                blocks += _fixed_lanes(same)
    return blocks
