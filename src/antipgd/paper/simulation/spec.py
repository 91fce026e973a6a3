"""What a run is: problem × method × seed × steps × measurements, as plain values.

The hash of its canonical JSON is its name; its result is a function of it alone. Seeds are derived
from named parts, so that methods that are compared share data, starting point and draws.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from antipgd import checks
from antipgd.noise.injection import check_sigma
from antipgd.noise.laws import as_law
from antipgd.noise.schedules import Schedule, Window, as_schedule, factor
from antipgd.noise.stream import stream_key
from antipgd.noise.taps import Taps, as_taps, telescopes
from antipgd.paper.methods import SIMULATED
from antipgd.paper.record import canonical, name_of
from antipgd.paper.simulation.orders import ORDERS, REPLACEMENT
from antipgd.paper.simulation.problems import (
    Problem,
    Setting,
    make_problem,
    problem_class,
    settings_of,
)

# Raise it when a change to problems or simulator changes results: stored records of another
# version are stale. The golden records of the tests tell when.
RESULTS_VERSION = 1

MEASURES = ("train_loss", "test_loss", "trace", "norm", "watched")
AVERAGED = ("train_loss", "norm", "watched")
PLACES = ("w", "z", "relaxed", "average")
OPTIMIZERS = ("sgd", "adam")
POINTS = 40


def measured_steps(steps: int, points: int = POINTS) -> tuple[int, ...]:
    """0, `steps`, and about `points` steps between them, equally far apart in the logarithm.

    >>> measured_steps(1000, 7)
    (0, 1, 3, 10, 32, 100, 316, 1000)
    """
    between = np.geomspace(1, steps, max(points, 1)) if steps > 1 else np.ones(1)
    return tuple(sorted({0, steps, *(round(float(step)) for step in between)}))


@dataclass(frozen=True)
class Run:
    """One run. Make it with `make_run`, which fills in defaults and refuses what has no meaning.

    `sigma` is the standard deviation of the noise on the weights, for method `label` on the
    labels. `taps` is empty without noise on the weights. `batch` is None for full gradients.
    `start` and `stop` are the noise's: it acts at steps start < n ≤ stop. `leave` ends the run
    when the problem's watched quantity leaves that open interval. `noisy` names the part of the
    weights that gets noise.

    `momentum`, with `nesterov` or without, is that of torch's SGD; `optimizer` "adam" is torch's
    Adam. A draw on the weights stays for `hold` steps; `antithetic` ones come in pairs +ξ, −ξ. With
    `average`, means over the last so many steps are measured too, at the weights where their
    gradients are taken. Draws of the first `uncorrelated` steps stay in the weights for good, as
    uncorrelated noise does; the taps take back later ones only. `order` is one of `orders.ORDERS`,
    for mini-batches. With `layers` "one" each draw is on one of the problem's parts, and the next
    on the next; with `relative` "filter" σ is in units of each filter's root mean square at the
    start.
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
    momentum: float = 0.0
    nesterov: bool = False
    optimizer: str = "sgd"
    hold: int = 1
    antithetic: bool = False
    average: int | None = None
    uncorrelated: int = 0
    order: str = REPLACEMENT
    layers: str = "all"
    relative: str = ""

    measures = MEASURES
    places = PLACES

    def canonical(self) -> str:
        """The run as JSON with one spelling, the text its name is the hash of."""
        return canonical(self)

    @cached_property
    def name(self) -> str:
        """32 hexadecimal digits."""
        return name_of(self.canonical())

    @property
    def versions(self) -> dict[str, int]:
        """The versions of the code that the result depends on."""
        return {"results": RESULTS_VERSION, "problem": problem_class(self.problem).version}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> "Run":
        """A run from its parsed JSON."""
        fixed = dict(values)
        fixed["settings"] = tuple((name, value) for name, value in fixed["settings"])
        for name in ("taps", "measure", "leave"):
            if fixed.get(name) is not None:
                fixed[name] = tuple(fixed[name])
        return cls(**fixed)

    def measured_at(self, place: str) -> bool:
        """Whether a run like this is measured at a place."""
        there = {"z": self.has_clean_weights, "relaxed": self.relax, "average": bool(self.average)}
        return there.get(place, True)

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

    def draws_by(self, step: int) -> int:
        """How many draws have come by the end of a step, each being held: ⌈n/hold⌉."""
        return -(-step // self.hold)

    @property
    def kept(self) -> int:
        """The last draw that stays in the weights for good."""
        return self.draws_by(self.uncorrelated)

    def draw_factor(self, draw: int) -> float:
        """What σ of a draw is multiplied by: it keeps the factor of the step it came with."""
        return self.factor((draw - 1) * self.hold + 1)

    def factor(self, step: int) -> float:
        """What σ is multiplied by at a step: the schedule inside the noise's window."""
        if not Window(self.start, self.stop)(step):
            return 0.0
        return factor(self._schedule, step)

    @cached_property
    def _schedule(self) -> Schedule | None:
        return None if self.schedule is None else as_schedule(self.schedule)


def _check_leave(problem: Problem, name: str, leave: Any) -> tuple[float, float] | None:
    if leave is None:
        return None
    limits = checks.interval("leave", leave)
    if type(problem).watch is Problem.watch:
        raise ValueError(f"{name} has no watched quantity that could leave an interval")
    return limits


def _check_fit(
    problem: Problem, name: str, method: str, taps: Taps | None, batch: int | None
) -> None:
    """Refuse what a method does not take, or what it asks of a problem that has none."""
    kind = SIMULATED[method]
    if taps is not None and method != "noise":
        raise ValueError(f"taps are for method 'noise'; got taps={taps!r} for {method!r}")
    if batch is not None and not kind.batches and method != "noise":
        takers = ", ".join(one for one, other in SIMULATED.items() if other.batches)
        raise ValueError(f"batch is for {takers} and noise; got batch={batch} for {method!r}")
    if (kind.batches or kind.labels or batch is not None) and problem.examples == 0:
        raise ValueError(f"{name} has no examples, which method {method!r} needs")


def _check_noise(
    problem: Problem, name: str, noisy: str, schedule: str | None, start: int, stop: int | None
) -> None:
    """Refuse noise in a part that is not there, or at times that are none."""
    if noisy != "all" and noisy not in problem.parts:
        raise ValueError(
            f"unknown part {noisy!r} of {name}; {checks.nearest(noisy, ['all', *problem.parts])}"
        )
    if schedule is not None:
        as_schedule(schedule)
    Window(start, stop)


def _check_shape(problem: Problem, name: str, layers: str, relative: str, noisy: str) -> None:
    """Refuse layers or filters that are not there."""
    checks.one_of("layers", layers, ("all", "one"))
    checks.one_of("relative", relative, ("", "filter"))
    if layers == "one" and (len(problem.parts) < 2 or noisy != "all"):
        raise ValueError(
            f"layers='one' needs two parts or more of {name}, all of them noisy; it has "
            f"{list(problem.parts)}, and noisy={noisy!r}"
        )
    if relative and problem.filters is None:
        raise ValueError(f"{name} has no filters, which relative={relative!r} needs")


def _check_optimizer(optimizer: str, momentum: float, nesterov: bool) -> None:
    """Refuse what torch's optimizers refuse, and settings without any effect."""
    checks.one_of("optimizer", optimizer, OPTIMIZERS)
    if optimizer == "adam" and (momentum or nesterov):
        given = f"momentum={momentum!r}, nesterov={nesterov!r}"
        raise ValueError(f"adam has betas of its own (0.9, 0.999), and no momentum; got {given}")
    if nesterov and not momentum:
        raise ValueError(f"nesterov needs momentum > 0; got momentum={momentum!r}")


def _check_average(average: int | None, steps: int, leave: object) -> int | None:
    if average is None:
        return None
    if leave is not None:
        raise ValueError(f"average needs runs that go to their end; got leave={leave!r}")
    return checks.whole("average", average, 1, steps)


def _check_order(problem: Problem, order: str, batch: int | None) -> str:
    """Refuse epochs that would not take every example once."""
    checks.one_of("order", order, ORDERS)
    if batch is None:
        return REPLACEMENT
    if order != REPLACEMENT and problem.examples % batch:
        raise ValueError(
            f"order {order!r} needs batches that divide the {problem.examples} examples; got "
            f"batch={batch}"
        )
    return order


def _check_measure(steps: int, measure: tuple[int, ...] | None) -> tuple[int, ...]:
    """The steps after which it is measured, the first and the last among them."""
    if measure is None:
        return measured_steps(steps)
    wanted = tuple(sorted({*measure, 0, steps}))
    if not all(0 <= step <= steps for step in wanted):
        raise ValueError(f"measured steps must lie between 0 and {steps}; got {wanted}")
    return tuple(map(int, wanted))


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
    momentum: float = 0.0,
    nesterov: bool = False,
    optimizer: str = "sgd",
    hold: int = 1,
    antithetic: bool = False,
    average: int | None = None,
    uncorrelated: int = 0,
    order: str = REPLACEMENT,
    layers: str = "all",
    relative: str = "",
) -> Run:
    """A run with defaults filled in, in the one spelling that its name depends on."""
    made = make_problem(problem, settings)
    kind = SIMULATED[checks.one_of("method", method, SIMULATED)]
    _check_fit(made, problem, method, taps, batch)
    _check_noise(made, problem, noisy, schedule, start, stop)
    _check_shape(made, problem, layers, relative, noisy)
    steps = checks.whole("steps", steps, 1)
    momentum = checks.number("momentum", momentum, 0, 1)
    _check_optimizer(optimizer, momentum, nesterov)
    hold = checks.whole("hold", hold, 1)
    batched = kind.batches or bool(batch)
    batch = checks.whole("batch", 1 if batch is None else batch, 1) if batched else None
    taps = kind.taps if taps is None else as_taps(taps)
    uncorrelated = checks.whole("uncorrelated", uncorrelated, 0, steps)
    return Run(
        problem=problem,
        settings=tuple(sorted(settings_of(made).items())),
        method=method,
        lr=checks.number("lr", lr, 0, above=True),
        sigma=check_sigma(sigma) if kind.has_sigma else 0.0,
        taps=taps,
        law=str(as_law(law)) if kind.draws else "",
        batch=batch,
        seed=checks.whole("seed", seed, 0),
        steps=steps,
        measure=_check_measure(steps, measure),
        schedule=schedule if kind.draws else None,
        start=checks.whole("start", start, 0) if kind.draws else 0,
        stop=stop if kind.draws else None,
        leave=_check_leave(made, problem, leave),
        relax=bool(relax),
        noisy=noisy if kind.taps else "all",
        momentum=momentum,
        nesterov=bool(nesterov),
        optimizer=optimizer,
        hold=hold if kind.taps else 1,
        antithetic=bool(antithetic) and bool(kind.taps),
        average=_check_average(average, steps, leave),
        uncorrelated=uncorrelated if len(taps) > 1 else 0,
        order=_check_order(made, order, batch),
        layers=layers if kind.taps else "all",
        relative=relative if kind.taps else "",
    )
