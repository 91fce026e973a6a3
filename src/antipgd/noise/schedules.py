"""How σ changes over the steps: a factor per step, multiplied into `sigma`.

A schedule is any callable step → factor. Steps count from 1: the factor at step n scales the
draw ξ_n. The ones here are plain values, so they pickle and compare; `Plateau` alone remembers
what it was told. Knows nothing about σ.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

from antipgd import checks

Schedule = Callable[[int], float]
"""A function of the step: what σ is multiplied by."""


def factor(schedule: Schedule | None, step: int) -> float:
    """The schedule's factor at `step`, refused unless it is finite and not negative."""
    if schedule is None:
        return 1.0
    value = schedule(step)
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError(
            f"the schedule returned {value!r} at step {step}; a factor must be finite and >= 0"
        )
    return number


def _check_span(begin: int, end: int, initial: float, final: float) -> None:
    if not 0 <= begin < end:
        raise ValueError(f"a ramp needs 0 <= begin < end; got begin={begin}, end={end}")
    if not (0 <= initial < math.inf and 0 <= final < math.inf):
        raise ValueError(f"a ramp needs finite factors >= 0; got initial={initial}, final={final}")


@dataclass(frozen=True)
class Constant:
    """The same factor at every step."""

    value: float = 1.0

    def __call__(self, step: int) -> float:
        return self.value


@dataclass(frozen=True)
class Linear:
    """A straight line from `initial` at step `begin` to `final` at step `end`, flat outside."""

    begin: int
    end: int
    initial: float = 1.0
    final: float = 0.0

    def __post_init__(self) -> None:
        _check_span(self.begin, self.end, self.initial, self.final)

    def __call__(self, step: int) -> float:
        done = min(max((step - self.begin) / (self.end - self.begin), 0.0), 1.0)
        return (1 - done) * self.initial + done * self.final


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from `initial` at step `begin` to `final` at step `end`, flat outside."""

    begin: int
    end: int
    initial: float = 1.0
    final: float = 0.0

    def __post_init__(self) -> None:
        _check_span(self.begin, self.end, self.initial, self.final)

    def __call__(self, step: int) -> float:
        done = min(max((step - self.begin) / (self.end - self.begin), 0.0), 1.0)
        return self.final + (self.initial - self.final) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class Steps:
    """Multiplied by `gamma` after each milestone: step m is the last with the old factor."""

    milestones: tuple[int, ...]
    gamma: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.gamma < math.inf:
            raise ValueError(f"gamma must be finite and >= 0; got gamma={self.gamma}")

    def __call__(self, step: int) -> float:
        return self.gamma ** sum(step > milestone for milestone in self.milestones)


@dataclass(frozen=True)
class Window:
    """Noise at steps start < n ≤ stop and none outside; `stop=None` means to the end.

    With taps that sum to zero the draws still in the weights are taken out right after `stop`.
    """

    start: int = 0
    stop: int | None = None

    def __post_init__(self) -> None:
        if self.start < 0 or (self.stop is not None and self.stop <= self.start):
            raise ValueError(
                f"a window needs 0 <= start < stop; got start={self.start}, stop={self.stop}"
            )

    def __call__(self, step: int) -> float:
        return float(step > self.start and (self.stop is None or step <= self.stop))


def advise_on_hold(schedule: object, hold: int, depth: int) -> None:
    """Warn of a window that begins or ends while a draw is held, which it does not end then."""
    if not isinstance(schedule, Window):
        return
    if schedule.start % hold == 0 and (schedule.stop or 0) % hold == 0:
        return
    first = -(-schedule.start // hold) * hold
    last = math.inf if schedule.stop is None else -(-schedule.stop // hold) * hold
    acts = f"acts at steps {first} < n" + (f" <= {last}" if last < math.inf else "")
    warnings.warn(
        f"hold={hold} with {schedule}: each draw keeps the factor of the step that it comes with, "
        f"so the noise {acts if first < last else 'never acts'}; give start and stop that are "
        f"multiples of hold",
        stacklevel=depth,
    )


PlateauState = tuple[float | None, int, int | None]


@dataclass
class Plateau:
    """No noise until a loss that is reported stops falling, then all of it.

    A report that is not below the best one by more than the share `threshold` of it counts; when
    `patience` of them have come in a row, noise begins with the next step, over `ramp` steps in
    equal parts if there are any. Tell it by `noise.report(loss)`, an epoch's mean or a validation
    loss (those of single batches scatter too much), with the same number on all ranks; what it was
    told is saved with the optimizer.

    >>> schedule = Plateau(patience=2)
    >>> [schedule.report(loss, step) for step, loss in enumerate([3.0, 2.0, 2.1, 1.99, 1.5])]
    [False, False, False, True, True]
    >>> schedule(3), schedule(4)
    (0.0, 1.0)
    """

    patience: int = 5
    threshold: float = 0.01
    ramp: int = 0
    state: PlateauState = field(default=(None, 0, None), repr=False)  # best, waited, begun

    def __post_init__(self) -> None:
        self.patience = checks.whole("patience", self.patience, 1)
        self.threshold = checks.number("threshold", self.threshold, 0, 1)
        self.ramp = checks.whole("ramp", self.ramp, 0)

    @property
    def begun(self) -> int | None:
        """The last step without noise, None before the plateau."""
        return self.state[2]

    def report(self, loss: float, step: int) -> bool:
        """Take in the loss after a step; whether noise acts from the next one on."""
        value = float(loss)
        if not math.isfinite(value):
            raise ValueError(f"a reported loss must be a finite number; got {value!r}")
        best, waited, begun = self.state
        if best is None or value < best - self.threshold * abs(best):
            waited = 0
        else:
            waited += 1
        best = value if best is None else min(best, value)
        if begun is None and waited >= self.patience:
            begun = step
        self.state = best, waited, begun
        return begun is not None

    def __call__(self, step: int) -> float:
        if self.begun is None or step <= self.begun:
            return 0.0
        return min(1.0, (step - self.begun) / (self.ramp + 1))


_NAMED: dict[str, type[Linear] | type[Cosine]] = {"linear": Linear, "cosine": Cosine}


def as_schedule(text: str) -> Schedule:
    """A schedule from its written form, which is how experiments store and compare them.

    "linear:BEGIN:END[:INITIAL:FINAL]", "cosine:…" likewise, "steps:M1:M2:…[:gamma=0.1]".

    >>> as_schedule("linear:0:1000")(250)
    0.75
    >>> as_schedule("steps:10:20:gamma=0.5")(21)
    0.25
    """
    name, *parts = str(text).split(":")
    try:
        if name in _NAMED and len(parts) in (2, 4):
            begin, end, *values = parts
            return _NAMED[name](int(begin), int(end), *map(float, values))
        if name == "steps" and parts:
            gamma = [float(p.removeprefix("gamma=")) for p in parts if p.startswith("gamma=")]
            milestones = tuple(int(p) for p in parts if not p.startswith("gamma="))
            return Steps(milestones, *gamma)
    except (TypeError, ValueError) as error:
        raise ValueError(f"schedule {text!r}: {error}") from None
    raise ValueError(
        f"unknown schedule {text!r}; accepted: linear:BEGIN:END[:INITIAL:FINAL], "
        f"cosine:BEGIN:END[:INITIAL:FINAL], steps:STEP:STEP:…[:gamma=FACTOR]"
    )
