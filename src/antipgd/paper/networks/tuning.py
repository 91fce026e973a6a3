"""Learning rate and σ of each arm, by its accuracy on images that it is not trained on.

First the learning rates of the arms without noise, then σ (or the like) of the others, each at the
learning rate of the arm that its noise is added to. Every arm is tried with as many values and
seeds: where the best value of one is at the end of its grid, all get one value more. The seeds are
no experiment's. Judged is the place at which the experiments judge, the end of the training; one
that is at no minimum there counts for nothing, for it could not be judged. What wins is written to
a file beside the store, and experiments at that scale use it from then on.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pandas as pd

from antipgd.checks import number, whole
from antipgd.paper.engines.on import HERE, On
from antipgd.paper.engines.opening import opened
from antipgd.paper.files import make_folder, write
from antipgd.paper.networks.arms import Values, value
from antipgd.paper.networks.minima import accuracy_at_minimum
from antipgd.paper.networks.scales import ARMS, TUNED, Scale, scale_named
from antipgd.paper.networks.spec import Training
from antipgd.paper.networks.workers import complete_trainings
from antipgd.paper.record import Record
from antipgd.paper.store import Store

POINTS = 1.5  # of accuracy, which the number of seeds is to tell with a power of 80 %
_QUANTILES = 1.960 + 0.842  # of the normal law: 5 % on both sides, and 80 %
_COLUMNS = ["arm", "value", "batch", "seed", "status", "accuracy"]

Train = Callable[[list[Training]], list[Record]]


class MissingError(Exception):
    """Trainings failed, and without them nothing can be chosen."""


def _path(scale: str, out: Path) -> Path:
    return out / f"tuned-{scale}.json"


def arm_of(run: Training) -> str:
    """The arm of a scale that a training to be tuned on belongs to."""
    small = {name: one for name, one in ARMS.items() if one.tuned}
    return next(n for n, one in small.items() if (one.method, one.norm) == (run.method, run.norm))


def accuracy(record: Record) -> float:
    """What is chosen by: the accuracy on the held-out images at the end."""
    return value(record, "test_accuracy")


def tuning_table(
    records: Iterable[Record],
    fields: Mapping[str, str] = TUNED,
    named: Callable[[Training], str] = arm_of,
    score: Callable[[Record], float] = accuracy,
) -> pd.DataFrame:
    """A row for each tuning run: its value and its accuracy, as `score` tells it."""
    rows = []
    for record in records:
        run, arm = record.run, named(record.run)
        rows.append((arm, getattr(run, fields[arm]), run.batch, run.seed, record.status,
                     score(record)))  # fmt: skip
    return pd.DataFrame(rows, columns=_COLUMNS)


def means(table: pd.DataFrame, arm: str) -> dict[float, float]:
    """The mean accuracy of an arm by value, ascending."""
    found = table[table["arm"] == arm].groupby("value")["accuracy"].mean().sort_index()
    return {float(key): float(mean) for key, mean in found.items()}


def best(accuracies: Mapping[float, float]) -> float:
    """The value with the highest mean accuracy; the smaller of equal ones."""
    return max(sorted(accuracies), key=lambda one: accuracies[one])


def at_the_end(accuracies: Mapping[float, float]) -> bool:
    """Whether the best value is the first or the last."""
    return best(accuracies) in (min(accuracies), max(accuracies))


def longer(accuracies: Mapping[float, float]) -> tuple[float, ...]:
    """The grid with one value more, on the side of the best; or of the better of its neighbours,
    if it has two. By the factor of the grid, to three digits."""
    grid = sorted(accuracies)
    place = grid.index(best(accuracies))
    factor = (grid[-1] / grid[0]) ** (1 / (len(grid) - 1))
    below = accuracies[grid[place - 1]] if place else math.inf
    above = accuracies[grid[place + 1]] if place < len(grid) - 1 else math.inf
    new = grid[0] / factor if below >= above else grid[-1] * factor
    return tuple(sorted([*grid, float(f"{new:.3g}")]))


def seeds_needed(differences: Iterable[Sequence[float] | Values], points: float = POINTS) -> int:
    """Seeds that tell a difference of so many points with a power of 80 %, from paired differences
    in points by seed, whose variances are pooled."""
    groups = [np.asarray(one, np.float64) for one in differences]
    squares = sum(float(((one - one.mean()) ** 2).sum()) for one in groups)
    freedom = sum(len(one) - 1 for one in groups)
    return math.ceil(squares / freedom * (_QUANTILES / points) ** 2) + 2  # Student's law for normal


def paired(table: pd.DataFrame, chosen: Mapping[str, float], norm: str) -> list[Values]:
    """Anti-PGD minus each other arm of a norm, both at their chosen values, in points by seed."""
    by = {
        arm: table[(table["arm"] == arm) & (table["value"] == chosen[arm])].sort_values("seed")
        for arm, one in ARMS.items()
        if arm in chosen and one.norm == norm
    }
    ours = next(arm for arm in by if ARMS[arm].method == "anti")
    accuracy = {arm: 100 * rows["accuracy"].to_numpy() for arm, rows in by.items()}
    return [accuracy[ours] - accuracy[arm] for arm in by if arm != ours]


class Tunable(Protocol):
    """What is searched: a frozen dataclass with grids, values chosen from them, and trainings."""

    @property
    def grids(self) -> Mapping[str, tuple[float, ...]]:
        """The values that are tried, by arm."""

    @property
    def chosen(self) -> Mapping[str, float]:
        """The values that won, by arm."""

    @property
    def most_values(self) -> int:
        """How long a grid may become."""

    def tuning(self, arm: str) -> list[Training]:
        """An arm with every value of its grid, by the values chosen for others."""


T = TypeVar("T", bound=Tunable)


class Search(Generic[T]):
    """Trains what is missing until no best value is at the end of its grid: first the arms whose
    learning rate is tuned, by `fields`, then the others; `named` tells the arm of a run, `score`
    how good it was."""

    def __init__(
        self, searched: T, train: Train, fields: Mapping[str, str] = TUNED,
        named: Callable[[Training], str] = arm_of, score: Callable[[Record], float] = accuracy,
    ) -> None:  # fmt: skip
        self.found: T = replace(searched, chosen={})  # type: ignore[type-var]
        self._train, self._fields, self._named, self._score = train, fields, named, score
        self.table = pd.DataFrame(columns=_COLUMNS)

    def run(self) -> T:
        """The same with its grids and the values that were chosen."""
        self._search()
        while short := self._short():
            self._lengthen(short)
            self._search()  # a better learning rate is one at which σ has not been tried
        return self.found

    def _search(self) -> None:
        """Learning rates, then the rest, until the best of each is inside its grid."""
        for rates in (True, False):
            arms = [arm for arm, what in self._fields.items() if (what == "lr") == rates]
            self._choose(arms)
            while any(at_the_end(means(self.table, arm)) for arm in arms) and self._lengthen(arms):
                self._choose(arms)

    def _short(self) -> list[str]:
        """The arms with fewer values than others."""
        most = max(len(self.found.grids[arm]) for arm in self._fields)
        return [arm for arm in self._fields if len(self.found.grids[arm]) < most]

    def _choose(self, arms: Sequence[str]) -> None:
        """Train the grids of these arms and take the best values."""
        records = self._train([run for arm in arms for run in self.found.tuning(arm)])
        others = self.table[~self.table["arm"].isin(arms)]
        new = tuning_table(records, self._fields, self._named, self._score)
        self.table = new if others.empty else pd.concat([others, new], ignore_index=True)
        chosen = {arm: best(means(self.table, arm)) for arm in arms}
        self._set(chosen={**self.found.chosen, **chosen})

    def _lengthen(self, arms: Sequence[str]) -> bool:
        """One value more for each of these arms; whether there may be one."""
        if max(len(self.found.grids[arm]) for arm in arms) >= self.found.most_values:
            return False
        more = {arm: longer(means(self.table, arm)) for arm in arms}
        self._set(grids={**self.found.grids, **more})
        return True

    def _set(self, **fields: Any) -> None:
        self.found = replace(self.found, **fields)  # type: ignore[type-var]


def with_seeds(scale: Scale, table: pd.DataFrame) -> Scale:
    """A tuned scale with as many seeds as its tuning calls for, and no fewer than it had."""
    if scale.tuning_seeds < 2:  # one seed has no deviation
        return scale
    seeds = {
        norm: max(least, seeds_needed(paired(table, scale.chosen, norm)))
        for norm, least in scale.seeds.items()
    }
    return replace(scale, seeds=seeds)


def _grid(arm: str, values: Sequence[object]) -> tuple[float, ...]:
    found = tuple(number(arm, value, 0, above=True) for value in values)
    if len(found) < 2:
        raise ValueError(f"the grid of {arm} must have at least two values; got {values}")
    return found


def scale_to_use(name: str, out: Path) -> Scale:
    """A scale with what `antipgd tune` chose in this folder, else with its own."""
    scale, path = scale_named(name), _path(name, out)
    if not path.is_file():
        return scale
    try:
        there = json.loads(path.read_text("utf-8"))
        chosen = {arm: number(f"{arm}", one, 0, above=True) for arm, one in there["chosen"].items()}
        seeds = {norm: whole(f"seeds of {norm}", n, 2) for norm, n in there["seeds"].items()}
        grids = {arm: _grid(arm, grid) for arm, grid in there["grids"].items()}
    except (ValueError, AttributeError, TypeError, KeyError, OverflowError, RecursionError) as why:
        raise ValueError(f"{path} is not what `antipgd tune` writes: {why}") from why
    for unknown in (chosen.keys() | grids.keys()) - TUNED.keys():
        raise ValueError(f"{path} names {unknown!r}; accepted: {', '.join(TUNED)}")
    for unknown in seeds.keys() - scale.seeds.keys():
        raise ValueError(f"{path} names norm {unknown!r}; accepted: {', '.join(scale.seeds)}")
    return replace(scale, chosen={**scale.chosen, **chosen}, seeds={**scale.seeds, **seeds},
                   grids={**scale.grids, **grids})  # fmt: skip


def _written(scale: Scale) -> bytes:
    found: dict[str, Any] = {"chosen": {**scale.chosen}, "seeds": {**scale.seeds},
                             "grids": {**scale.grids}}  # fmt: skip
    return (json.dumps(found) + "\n").encode()


def tune(
    name: str,
    out: Path,
    threads: int | None = None,
    retry: bool = False,
    device: str = "cpu",
    on: On = HERE,
) -> int:
    """Train what is missing, print the table and write what won; 1 if trainings failed."""
    untuned = scale_named(name)  # refused before anything is made
    make_folder(out)
    store = Store(out / "store", lambda message: print(message, file=sys.stderr))
    began = time.perf_counter()
    trained: set[str] = set()
    there: set[str] = set()  # stored before this command

    def train(runs: list[Training]) -> list[Record]:
        there.update(r.name for r in runs if r.name not in trained and store.state(r) == "done")
        outcome = complete_trainings(runs, store, count, device, engine=engine, retry=retry)
        for failure in outcome.failures.values():
            print(f"failed: {arm_of(failure.run)}: {failure.reason}")
        if len(outcome.records) < len(runs):
            raise MissingError(f"{len(runs) - len(outcome.records)} of {len(runs)} missing")
        trained.update(run.name for run in runs)
        return outcome.in_order(runs)

    search, count = Search(untuned, train, score=accuracy_at_minimum), on.count or threads
    try:
        with opened(on, count, out / "jobs", device) as engine:
            scale = with_seeds(search.run(), search.table)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    except MissingError as error:
        print(f"{error}; --retry tries again")
        return 1
    write(out / f"tuning-{name}.csv", search.table.to_csv(index=False).encode())
    write(_path(name, out), _written(scale))
    _show(scale, search.table)
    print(f"{len(trained)} trainings, {len(there)} found stored, in "
          f"{time.perf_counter() - began:.0f} s")  # fmt: skip
    print(f"experiments with --out {out} use these from now on: {_path(name, out)}")
    return 0


def _show(scale: Scale, table: pd.DataFrame) -> None:
    """Accuracies by arm and value, what was chosen, and how many seeds that asks for."""
    print("accuracy on held-out images")
    for arm, field in TUNED.items():
        found = means(table, arm)
        row = "  ".join(f"{one:g}: {100 * accuracy:.1f} %" for one, accuracy in found.items())
        print(f"{arm:10} {field:5}  {row}")
        if at_the_end(found):
            print(
                f"the best {field} of {arm} is at the end of the grid: a better one may lie beyond"
            )
    chosen = ", ".join(f"{arm} {one:g}" for arm, one in scale.chosen.items())
    print(f"best: {chosen}")
    for norm, count in scale.seeds.items():
        print(f"seeds with norm {norm!r}: {count}, for {POINTS} points at 80 %")
