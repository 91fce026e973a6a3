"""What a run is: problem × method × seed × steps × measurements, as plain values.

The hash of its canonical JSON is its name; its result is a function of it alone. Seeds are derived
from named parts, so that methods that are compared share data, starting point and draws.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from antipgd.noise.injection import check_sigma
from antipgd.noise.laws import as_law
from antipgd.noise.schedules import Schedule, Window, as_schedule, factor
from antipgd.noise.stream import stream_key
from antipgd.noise.taps import ANTI, WHITE, Taps, as_taps, telescopes
from antipgd.paper.problems import Problem, Setting, make_problem, nearest, settings_of

# Raise it when a change to problems or simulator changes results: stored records of another
# version are stale. The golden records of the tests tell when.
RESULTS_VERSION = 1

# method: (taps of its noise on the weights, mini-batches, noise on the labels)
METHODS: dict[str, tuple[Taps, bool, bool]] = {
    "gd": ((), False, False),
    "sgd": ((), True, False),
    "pgd": (WHITE, False, False),
    "anti": (ANTI, False, False),
    "antisgd": (ANTI, True, False),
    "label": ((), False, True),
    "noise": (ANTI, False, False),
}
POINTS = 40


def measured_steps(steps: int, points: int = POINTS) -> tuple[int, ...]:
    """0, `steps`, and about `points` steps between them, equally far apart in the logarithm.

    >>> measured_steps(1000, 7)
    (0, 1, 3, 10, 32, 100, 316, 1000)
    """
    between = np.geomspace(1, steps, max(points, 1)) if steps > 1 else np.ones(1)
    return tuple(sorted({0, steps, *(round(float(step)) for step in between)}))


def _natural(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}; got {value!r}")
    return int(value)


@dataclass(frozen=True)
class Run:
    """One run. Make it with `make_run`, which fills in defaults and refuses what has no meaning.

    `sigma` is the standard deviation of the noise on the weights, for method `label` on the
    labels. `taps` is empty without noise on the weights. `batch` is None for full gradients.
    `start` and `stop` are the noise's: it acts at steps start < n ≤ stop. `leave` ends the run
    when the problem's watched quantity leaves that open interval. `noisy` names the part of the
    weights that gets noise.
    """

    problem: str
    settings: tuple[tuple[str, Setting], ...]
    method: str
    lr: float
    sigma: float
    taps: Taps
    law: str
    batch: int | None
    seed: int
    steps: int
    measure: tuple[int, ...]
    schedule: str | None = None
    start: int = 0
    stop: int | None = None
    leave: tuple[float, float] | None = None
    relax: bool = True
    noisy: str = "all"

    def canonical(self) -> str:
        """The run as JSON with one spelling, the text its name is the hash of.

        Fields at their default are left out, so a new one will not rename the runs of today.
        """
        defaults = {one.name: one.default for one in fields(self)}
        values = {k: v for k, v in asdict(self).items() if v != defaults[k]}
        return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @cached_property
    def name(self) -> str:
        """32 hexadecimal digits."""
        return hashlib.blake2b(self.canonical().encode(), digest_size=16).hexdigest()

    def make_problem(self) -> Problem:
        """The problem with this run's settings."""
        return make_problem(self.problem, dict(self.settings))

    def make_data(self, problem: Problem) -> Any:
        """The data of this run's seed."""
        return problem.data(self._generator("data"))

    def make_start(self, problem: Problem) -> np.ndarray:
        """w_0 of this run's seed."""
        return problem.start(self._generator("start"))

    def _generator(self, purpose: str) -> np.random.Generator:
        """NumPy's generator on its own named part of the seed."""
        key = stream_key(self.seed, self.problem, purpose)
        return np.random.Generator(np.random.Philox(key=key))

    @property
    def has_clean_weights(self) -> bool:
        """Whether z exists: there is no noise on the weights, or its taps sum to zero."""
        return not self.taps or telescopes(self.taps)

    def factor(self, step: int) -> float:
        """What σ is multiplied by at a step: the schedule inside the noise's window."""
        if not Window(self.start, self.stop)(step):
            return 0.0
        return factor(self._schedule, step)

    @cached_property
    def _schedule(self) -> Schedule | None:
        return None if self.schedule is None else as_schedule(self.schedule)


def run_from(values: Mapping[str, Any]) -> Run:
    """A run from its parsed JSON."""
    fixed = dict(values)
    fixed["settings"] = tuple((name, value) for name, value in fixed["settings"])
    for name in ("taps", "measure", "leave"):
        if fixed.get(name) is not None:
            fixed[name] = tuple(fixed[name])
    return Run(**fixed)


def _check_leave(problem: Problem, name: str, leave: object) -> tuple[float, float] | None:
    if leave is None:
        return None
    low, high = map(float, leave)  # type: ignore[call-overload]
    if not low < high:
        raise ValueError(f"leave must be an interval low < high; got {leave!r}")
    if type(problem).watch is Problem.watch:
        raise ValueError(f"{name} has no watched quantity that could leave an interval")
    return low, high


def make_run(
    problem: str,
    settings: Mapping[str, Setting],
    method: str,
    *,
    lr: float,
    steps: int,
    seed: int,
    sigma: float = 0.0,
    taps: Taps | None = None,
    law: str = "gaussian",
    batch: int | None = None,
    measure: tuple[int, ...] | None = None,
    schedule: str | None = None,
    start: int = 0,
    stop: int | None = None,
    leave: tuple[float, float] | None = None,
    relax: bool = True,
    noisy: str = "all",
) -> Run:
    """A run with defaults filled in, in the one spelling that its name depends on."""
    made = make_problem(problem, settings)
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; {nearest(method, list(METHODS))}")
    usual, batched, labelled = METHODS[method]
    if taps is not None and method != "noise":
        raise ValueError(f"taps are for method 'noise'; got taps={taps!r} for {method!r}")
    if batched is False and batch is not None and method != "noise":
        raise ValueError(f"batch is for sgd, antisgd and noise; got batch={batch} for {method!r}")
    if (batched or labelled or batch is not None) and made.examples == 0:
        raise ValueError(f"{problem} has no examples, which method {method!r} needs")
    if not (isinstance(lr, int | float) and 0 < lr < math.inf):
        raise ValueError(f"lr must be a finite number > 0; got {lr!r}")
    steps = _natural("steps", steps, 1)
    measure = measured_steps(steps) if measure is None else tuple(sorted({*measure, 0, steps}))
    if not all(0 <= step <= steps for step in measure):
        raise ValueError(f"measured steps must lie between 0 and {steps}; got {measure}")
    drawing = bool(usual) or labelled
    if noisy != "all" and noisy not in made.parts:
        raise ValueError(
            f"unknown part {noisy!r} of {problem}; {nearest(noisy, ['all', *made.parts])}"
        )
    if schedule is not None:
        as_schedule(schedule)
    written_law = str(as_law(law))
    Window(start, stop)
    return Run(
        problem=problem,
        settings=tuple(sorted(settings_of(made).items())),
        method=method,
        lr=float(lr),
        sigma=check_sigma(sigma) if drawing else 0.0,
        taps=usual if taps is None else as_taps(taps),
        law=written_law if drawing else "",
        batch=_natural("batch", 1 if batch is None else batch, 1) if batched or batch else None,
        seed=_natural("seed", seed, 0),
        steps=steps,
        measure=tuple(map(int, measure)),
        schedule=schedule if drawing else None,
        start=_natural("start", start, 0) if drawing else 0,
        stop=stop if drawing else None,
        leave=_check_leave(made, problem, leave),
        relax=bool(relax),
        noisy=noisy if usual else "all",
    )
