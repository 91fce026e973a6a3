"""The paper in one command: run what is missing, judge every claim, draw every figure, one page.

Everything lies under one folder: store/, figures/, claims.json, verdicts.md, report.html. What is
there and up to date is not made again; what is missing is.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from antipgd.paper.claims import HOLDS, Claim
from antipgd.paper.coverage import (
    KINDS,
    NOT_JUDGED,
    Decided,
    decided,
    verdict_in_row,
)
from antipgd.paper.engines.engine import Engine
from antipgd.paper.engines.on import HERE, On
from antipgd.paper.engines.opening import opened
from antipgd.paper.errata import SLIPS
from antipgd.paper.exhibits import exhibits, origins, row_of
from antipgd.paper.experiments import (
    GROUPS,
    SHOWN_SCALE,
    choose,
    is_scaled,
    load,
    more_runs_of,
    runs_of,
)
from antipgd.paper.files import FilesError, FilesUsageError, write
from antipgd.paper.networks.cost import training_seconds
from antipgd.paper.networks.scales import Scale
from antipgd.paper.networks.shipped import shipped
from antipgd.paper.networks.spec import Training
from antipgd.paper.networks.tuning import scale_to_use
from antipgd.paper.networks.workers import check_start, complete_trainings, forget_all
from antipgd.paper.pipeline import (
    Outcome,
    complete,
    cpu_count,
    open_store,
    steps_of,
    stored,
    write_plan,
)
from antipgd.paper.playground import fragment
from antipgd.paper.progress import spoken
from antipgd.paper.record import Record, Spec
from antipgd.paper.report import Erratum, measured, page
from antipgd.paper.simulation.cost import Pace, seconds_needed
from antipgd.paper.simulation.spec import Run
from antipgd.paper.simulation.sweep import on_threads
from antipgd.paper.store import Store, provenance
from antipgd.paper.trials.spec import Trial
from antipgd.paper.verdict_table import as_markdown, of_kind, tally
from antipgd.paper.verdicts import Desk


def _say(message: str) -> None:
    print(message, file=sys.stderr)


class _Plan:
    """The runs of the chosen experiments: small ones, and trainings of networks, each once."""

    def __init__(self, names: Sequence[str] | None, seeds: int | None, scale: Scale | None) -> None:
        if seeds is not None and seeds < 2:
            raise ValueError(
                f"seeds must be a whole number >= 2, else nothing has an interval; got {seeds}"
            )
        self.scale = scale
        asked = {
            name: runs_of(name, seeds if scale or not is_scaled(name) else None, scale)
            for name in choose(names)
        }
        self.runs: dict[str, list[Spec]] = {
            name: runs for name, runs in asked.items() if runs or not is_scaled(name)
        }
        self.small: list[Any] = self._each_once(scaled=False)

    @property
    def trainings(self) -> list[Any]:
        """Of networks, each once."""
        return self._each_once(scaled=True)

    def extend(self, outcome: Outcome) -> list[Any]:
        """Add the trainings that follow from the records there are: those that have to go on
        because one did not end at a minimum, or what an experiment says; those that are new."""
        known = {run.name for run in self.trainings}
        for name in [name for name in self.runs if is_scaled(name)]:
            more = more_runs_of(name, outcome.in_order(self.runs[name]), self.scale)
            self.runs[name] = [*{run.name: run for run in (*self.runs[name], *more)}.values()]
        return [run for run in self.trainings if run.name not in known]

    def owners(self) -> dict[str, str]:
        """The first experiment that each run belongs to."""
        named = [(run.name, name) for name, runs in self.runs.items() for run in runs]
        return dict(reversed(named))

    def _each_once(self, scaled: bool) -> list[Spec]:
        lists = [runs for name, runs in self.runs.items() if is_scaled(name) == scaled]
        return [*{run.name: run for runs in lists for run in runs}.values()]

    @property
    def wanted(self) -> list[Spec]:
        """What is run: without a scale, trainings come with the package."""
        return self.small + (self.trainings if self.scale else [])


def show_plan(
    names: Sequence[str] | None,
    seeds: int | None,
    out: Path,
    threads: int | None,
    scale: str | None = None,
) -> int:
    """Print what would be run and how long it would take."""
    plan = _Plan(names, seeds, None if scale is None else scale_to_use(scale, out))
    store = Store(out / "store", _say) if (out / "store").is_dir() else None
    to_do: set[str] = set()
    if store is not None:
        _follow(plan, store)
    for name, runs in plan.runs.items():
        if is_scaled(name) and plan.scale is None:
            print(f"{name:22} {len(runs):5} runs, shipped; --scale trains them")
            continue
        new = [r for r in runs if r.name not in to_do]
        missing = [r for r in new if store is None or store.state(r) in ("missing", "stale")]
        to_do |= {run.name for run in missing}
        print(f"{name:22} {len(runs):5} runs, {len(missing):5} to do")
    used = threads or cpu_count()
    small = [run for run in plan.small if run.name in to_do]
    trainings = [run for run in plan.trainings if run.name in to_do]
    print(f"{len(to_do)} runs to do")
    if small:
        time_needed = spoken(seconds_needed(small) / used)
        print(f"{len(small)} small ones: about {time_needed} on {used} threads, and relaxations")
    if trainings:
        hours = training_seconds(trainings) / used / 3600
        print(f"{len(trainings)} trainings: about {hours:.1f} h on {used} processes of one thread")
    open_ended = [
        name for name in plan.runs if to_do and plan.scale and hasattr(load(name), "more")
    ]
    if trainings and open_ended:
        print(f"what follows from their results is not counted: {', '.join(open_ended)}")
    return 0


def _follow(plan: _Plan, store: Store) -> None:
    """Add to a plan what follows from the trainings that are stored."""
    known: dict[str, Record] = {}
    while new := [run for run in plan.trainings
                  if run.name not in known and store.state(run) == "done"]:  # fmt: skip
        known |= {run.name: record for run in new if (record := store.get(run)) is not None}
        plan.extend(Outcome(known))


def read_plan(out: Path) -> list[Spec]:
    """The runs that a folder is about, of a sweep, of trials or of the paper: only trainings
    name data, only trials a function."""
    path = out / "plan.json"
    try:
        specs: list[Spec] = [
            (Training if "data" in values else Trial if "function" in values else Run).from_plain(
                values
            )
            for values in json.loads(path.read_bytes())
        ]
        return [spec for spec in specs if spec.name]  # what has no name is no run
    except FileNotFoundError:
        raise FilesUsageError(f"{out} has no plan.json: no sweep was started there") from None
    except OSError as error:
        raise FilesError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FilesUsageError(f"{path} cannot be understood: {error}") from error


def _write_claims(path: Path, claims: Sequence[Claim]) -> None:
    listed = [asdict(claim) for claim in claims]
    write(path, (json.dumps(listed, indent=1, ensure_ascii=False) + "\n").encode())


def _open_part(part: Claim, control: str) -> str:
    """What is said of a part that does not hold."""
    seeds = f", {part.needed:,} would decide" if part.needed else ""
    return f"{verdict_in_row(part, control)}: {part.statement}: {measured(part)}, n={part.n}{seeds}"


def _print_verdicts(rows: Sequence[Decided]) -> None:
    """Row by row with the paper's words and what does not hold, kind by kind."""
    for kind, words in KINDS.items():
        shown = [one for one in of_kind(rows, kind) if one.verdict != NOT_JUDGED]
        if shown:
            parts = sum(len(one.parts) for one in shown)
            print(f"{words}: {len(shown)}, in {parts} parts; {tally(shown)}")
        for one in shown:
            count = f"{one.held:3} of {len(one.parts):3} parts hold"
            print(f"{one.row.id:20} {one.verdict:10} {count}")
            if one.row.quote:
                print(f"    “{one.row.quote}”")
            for part in one.parts:
                if part.verdict != HOLDS:
                    print(f"    {_open_part(part, one.row.control)}")
    later = [one.row.id for one in rows if one.verdict == NOT_JUDGED]
    if later:
        print(f"not judged here: {', '.join(later)}")


def _shipped(plan: _Plan) -> Outcome:
    """What ships of the trainings; nothing where they are trained."""
    found = None if plan.scale else shipped(SHOWN_SCALE)
    records = {} if found is None else found.records

    def of(runs: Sequence[Any]) -> Outcome:
        return Outcome({run.name: records[run.name] for run in runs if run.name in records})

    return _extended(plan, of(plan.trainings), of)


def _extended(plan: _Plan, outcome: Outcome, find: Callable[[list[Any]], Outcome]) -> Outcome:
    """The same with those trainings that have to go on."""
    while more := plan.extend(outcome):
        outcome.absorb(find(more))
    return outcome


def _completed(
    plan: _Plan,
    store: Store,
    threads: int | None,
    retry: bool,
    device: str,
    engine: Engine | None = None,
) -> Outcome:
    """Small runs on threads, then trainings on as many processes, or all on an engine; what would
    make every training fail is said before the first small run."""
    trainings = plan.trainings if plan.scale else []
    missing: list[Any] = stored(trainings, store, retry).missing(trainings)
    if missing:
        check_start(missing, device if engine is None else "cpu")
    pace, owner = Pace(), plan.owners()
    outcome = complete(
        plan.small, store, on_threads(threads, engine, pace.of_run), retry=retry,
        expect=pace.expect if engine is None else steps_of, called=lambda run: owner[run.name],
    )  # fmt: skip
    if not trainings:
        return outcome

    def train(runs: list[Any]) -> Outcome:
        return complete_trainings(
            runs, store, threads, device, engine=engine, retry=retry, keep=True
        )

    trained = _extended(plan, train(trainings), train)
    forget_all(store, plan.trainings)
    outcome.absorb(trained)
    return outcome


def _command(names: Mapping[str, object], only: bool, seeds: int | None, scale: str | None) -> str:
    parts = ["antipgd paper"]
    parts += [f"--only {','.join(names)}"] if only else []
    parts += [f"--seeds {seeds}"] if seeds is not None else []
    parts += [f"--scale {scale}"] if scale is not None else []
    return " ".join(parts)


def reproduce(
    names: Sequence[str] | None = None,
    *,
    seeds: int | None = None,
    out: Path = Path("results"),
    threads: int | None = None,
    retry: bool = False,
    refresh: bool = False,
    run: bool = True,
    scale: str | None = None,
    device: str = "cpu",
    on: On = HERE,
) -> int:
    """Make or complete the page and return an exit code: 1 if runs failed.

    With `run=False` the page is made from what is stored. With a `scale`, networks are trained at
    that size; without, they are judged from the records that ship with the package. `on` is the
    engine that runs.
    """
    began = time.perf_counter()
    plan = _Plan(names, seeds, None if scale is None else scale_to_use(scale, out))
    store, wanted = open_store(out, _say), plan.wanted
    try:
        if run:
            write_plan(out, wanted)
            count = on.count or threads
            with opened(on, count, out / "jobs", device, _say) as engine:
                outcome = _completed(plan, store, count, retry, device, engine)
            write_plan(out, plan.wanted)
        else:
            outcome = _extended(plan, stored(wanted, store), lambda runs: stored(runs, store))
    except KeyboardInterrupt:
        done = sum(store.state(one) == "done" for one in wanted)
        _say(f"interrupted: {done} of {len(wanted)} runs are stored; the same command goes on")
        return 130
    wanted = plan.wanted
    outcome.absorb(_shipped(plan))
    items, notes = exhibits(plan.runs, outcome, Desk(out / "figures", refresh), plan.scale)
    notes += origins(plan.runs, plan.scale)
    if seeds is not None:
        notes.append(f"made with {seeds} seeds instead of the number fixed in each experiment"
                     " (the map of networks and the arms at one loss keep theirs)")  # fmt: skip
    claims = [claim for item in items for claim in item.claims]
    rows = decided(claims, [item.name for item in items])
    unsaid = ("time", "host")  # a page is shown to others
    made = {key: str(value) for key, value in provenance().items() if key not in unsaid}
    slips = [Erratum(s.where, s.printed, s.right, s.shown_by()) for s in SLIPS] if not names else []
    said = [load(item.name).summary(item.claims) for item in items
            if hasattr(load(item.name), "summary")]  # fmt: skip
    html = page(items, rows=[*map(row_of, rows)], notes=notes, provenance=made, errata=slips,
                said=said, command=_command(plan.runs, bool(names), seeds, scale),
                playground="" if names else fragment())  # fmt: skip
    _write_claims(out / "claims.json", claims)
    tables = [load(item.name).table(item.claims) for item in items
              if hasattr(load(item.name), "table")]  # fmt: skip
    tables += [
        load(name).words(claims)
        for name, claims in (
            (item.name, item.claims) for item in items if item.name in GROUPS["questions"]
        )
    ]
    write(out / "verdicts.md", as_markdown(rows, len(plan.small), [*said, *tables]).encode())
    write(out / "report.html", html.encode())
    _print_verdicts(rows)
    for note in (*said, *notes):
        print(note)
    print(f"{len(wanted)} runs, {len(claims)} claims in {time.perf_counter() - began:.0f} s")
    print(f"the page: {out / 'report.html'}")
    return 1 if outcome.failures else 0
