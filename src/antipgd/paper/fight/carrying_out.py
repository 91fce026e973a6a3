"""Run what a fight lacks, on any engine: tuning, then judged bouts."""

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from antipgd.paper.engines.engine import Result
from antipgd.paper.engines.hearing import Line, results
from antipgd.paper.engines.on import HERE, On
from antipgd.paper.engines.opening import opened
from antipgd.paper.engines.processes import Processes
from antipgd.paper.fight.contestant import Contestant
from antipgd.paper.fight.match import Match
from antipgd.paper.fight.planning import Plan, in_the_middle, seconds, settling
from antipgd.paper.fight.playing import play_one
from antipgd.paper.files import alone, make_folder
from antipgd.paper.pipeline import (
    Made,
    Outcome,
    Tick,
    complete,
    cpu_count,
    open_store,
    write_plan,
)
from antipgd.paper.progress import say
from antipgd.paper.record import Spec

_STAGES = ("learning rates", "everybody's own value", "judged")


class _Weighed:
    """Bouts in their order; what they tick are the seconds that they were expected to take."""

    def __init__(self, line: Line, weights: Mapping[str, float]) -> None:
        self.line, self.weights, self.asked = line, weights, line.asked

    @property
    def ready(self) -> bool:
        """Whether there is another one."""
        return self.line.ready

    def next(self) -> Any:
        """The one that comes next."""
        return self.line.next()

    def done(self, name: str) -> None:
        """Nobody waits for it."""

    def counted(self, name: str, steps: int) -> Any:
        """Seconds, of however many steps."""
        return self.weights[name] if steps else 0


def expected(plan: Plan, matches: Sequence[Match]) -> dict[str, float]:
    """Seconds of each bout by its name."""
    by = _everybody(plan)
    return {match.name: seconds(match, by[match.method]) for match in matches}


def _everybody(plan: Plan) -> dict[str, Contestant]:
    return {**plan.bases, **plan.contestants}


def forecast(plan: Plan) -> tuple[int, float]:
    """How many bouts there will be, and how many seconds of one core they take."""
    matches = plan.following(in_the_middle)
    return len(matches), sum(expected(plan, matches).values())


def carry_out(
    plan: Plan,
    out: Path,
    count: int | None = None,
    retry: bool = False,
    on: On = HERE,
    warn: Callable[[str], None] = say,
    show_progress: bool | None = None,
) -> Outcome:
    """All bouts of a fight; what is stored is not run again, and failures are results."""
    make_folder(out)
    outcome = Outcome()
    with alone(out.absolute() / "checkpoints"):
        store = open_store(out, warn)
        way = partial(_run, plan=plan, on=on, count=on.count or count, out=out, warn=warn)
        for number, stage in enumerate(_STAGES, 1):
            matches = plan.following(settling(outcome.records))
            outcome.absorb(
                complete(
                    outcome.missing(matches), store, way, retry=retry,
                    show_progress=show_progress, stage=f"{number} of {len(_STAGES)}, {stage}",
                    expect=lambda specs: sum(expected(plan, specs).values()), called=_called,
                )
            )  # fmt: skip
        write_plan(out, plan.following(settling(outcome.records)))
    return outcome


def _called(spec: Spec) -> str:
    return f"{spec.method} on {getattr(spec, 'problem', '')}"


def _run(
    missing: Sequence[Match],
    tick: Tick,
    *,
    plan: Plan,
    on: On,
    count: int | None,
    out: Path,
    warn: Callable[[str], None],
) -> Generator[Result | Made]:
    """Results of what is missing as they finish, the longest first."""
    weights = expected(plan, missing)
    ordered = sorted(missing, key=lambda match: -weights[match.name])
    texts = {one.source: one.text for one in _everybody(plan).values()}
    work = partial(play_one, texts=texts)
    with opened(on, count, out / "jobs", warn=warn) as engine:
        where = engine or Processes(count or cpu_count())
        yield from results(_Weighed(Line(ordered), weights), where, work, tick, warn)
