"""The paper in one command: run what is missing, judge every claim, draw every figure, one page.

Everything lies under one folder: store/, figures/, claims.json, report.html. What is there and up
to date is not made again; what is missing is.
"""

import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from antipgd.paper.claims import Claim, worst
from antipgd.paper.coverage import paper_claims
from antipgd.paper.errata import SLIPS
from antipgd.paper.experiments import (
    NETWORKS,
    SHOWN_SCALE,
    about,
    choose,
    load,
    runs_of,
    title_of,
)
from antipgd.paper.experiments.scales import Scale, scale_named
from antipgd.paper.figures import rendered
from antipgd.paper.pipeline import Outcome, complete, stored
from antipgd.paper.record import Record, Spec
from antipgd.paper.report import Erratum, Item, Row, number, page
from antipgd.paper.results import Results
from antipgd.paper.run.local import cpu_count
from antipgd.paper.run.timing import seconds_needed
from antipgd.paper.shipped import records_digest, shipped
from antipgd.paper.spec import RESULTS_VERSION, Run
from antipgd.paper.store import Store, StoreError, code_digest, make_folder, provenance
from antipgd.paper.store import write_atomically as _write
from antipgd.paper.sweep import write_plan
from antipgd.paper.training import Training
from antipgd.paper.tuning import scale_to_use, training_seconds

KINDS = ("png", "svg")
NOT_JUDGED = "not judged"


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def _plan(
    names: Sequence[str] | None, seeds: int | None, scale: Scale | None = None
) -> dict[str, list[Spec]]:
    """The runs of each chosen experiment."""
    if seeds is not None and seeds < 2:
        raise ValueError(
            f"seeds must be a whole number >= 2, else nothing has an interval; got {seeds}"
        )
    return {
        name: runs_of(name, seeds if scale or name not in NETWORKS else None, scale)
        for name in choose(names)
    }


def show_plan(
    names: Sequence[str] | None,
    seeds: int | None,
    out: Path,
    threads: int | None,
    scale: str | None = None,
) -> int:
    """Print what would be run and how long it would take."""
    size = None if scale is None else scale_to_use(scale, out)
    plan = _plan(names, seeds, size)
    store = Store(out / "store", _say) if (out / "store").is_dir() else None
    everything: dict[str, Spec] = {}
    for name, runs in plan.items():
        if name in NETWORKS and size is None:
            print(f"{name:22} {len(runs):5} runs, shipped; --scale trains them")
            continue
        new = [r for r in runs if r.name not in everything]
        missing = [r for r in new if store is None or store.state(r) in ("missing", "stale")]
        everything |= {run.name: run for run in missing}
        print(f"{name:22} {len(runs):5} runs, {len(missing):5} to do")
    used = threads or cpu_count()
    small = [run for run in everything.values() if isinstance(run, Run)]
    trainings = [run for run in everything.values() if isinstance(run, Training)]
    print(f"{len(everything)} runs to do")
    if small:
        seconds = seconds_needed(small) / used
        print(f"{len(small)} small ones: about {seconds:.0f} s on {used} threads, and relaxations")
    if trainings:
        hours = training_seconds(trainings) / used / 3600
        print(f"{len(trainings)} trainings: about {hours:.1f} h on {used} processes of one thread")
    return 0


class _Judged(NamedTuple):
    claims: list[Claim]
    files: dict[str, bytes]  # the figure, by kind


class _Desk:
    """Claims and figures, made again only if they or what they depend on has changed.

    They depend on the runs, on the code and on the records that ship with it alone. Beside the
    figure lies a stamp with the digest of that, the claims, and the digests of the figure's files.
    """

    def __init__(self, folder: Path, refresh: bool) -> None:
        self.folder = folder
        self.refresh = refresh
        self._records = records_digest(SHOWN_SCALE)
        make_folder(folder)

    def judge(self, name: str, runs: Sequence[Spec], outcome: Outcome) -> _Judged:
        """The claims and the figure of an experiment."""
        shown = "".join(sorted(run.name for run in runs))
        parts = f"{code_digest()} {RESULTS_VERSION} {self._records} {shown}"
        key = hashlib.sha256(parts.encode()).hexdigest()
        found = None if self.refresh else self._read(name, key)
        if found is None:
            results = Results(outcome.in_order(runs))
            figure = load(name).plot(results)
            files = {kind: rendered(figure, kind) for kind in KINDS}
            found = _Judged(load(name).claims(results), files)
            self._keep(name, key, found)
        return found

    def _keep(self, name: str, key: str, judged: _Judged) -> None:
        stamp: dict[str, Any] = {"key": key, "claims": [asdict(claim) for claim in judged.claims]}
        for kind, content in judged.files.items():
            _write(self.folder / f"{name}.{kind}", content)
            stamp[kind] = hashlib.sha256(content).hexdigest()
        _write(self.folder / f".{name}.json", json.dumps(stamp).encode())

    def _read(self, name: str, key: str) -> _Judged | None:
        try:
            stamp = json.loads((self.folder / f".{name}.json").read_bytes())
            files = {kind: (self.folder / f"{name}.{kind}").read_bytes() for kind in KINDS}
            same = all(hashlib.sha256(files[kind]).hexdigest() == stamp[kind] for kind in KINDS)
            if not same or stamp["key"] != key:
                return None
            return _Judged([Claim(**values) for values in stamp["claims"]], files)
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _items(
    plan: dict[str, list[Spec]], outcome: Outcome, desk: _Desk, size: Scale
) -> tuple[list[Item], list[str]]:
    """Every experiment judged and drawn; those of which runs failed only named."""
    items, notes = [], []
    shown = f" Shown at scale `{size.name}`: {size.about}."
    for name, runs in plan.items():
        absent = [run for run in runs if run.name not in outcome.records]
        if absent:
            failure = outcome.failures.get(absent[0].name)
            why = "missing"
            if failure is not None:
                why = f"failed ({failure.reason}); --retry tries them again"
            notes.append(f"{name}: not judged, {len(absent)} of {len(runs)} runs {why}")
            continue
        claims, files = desk.judge(name, runs, outcome)
        text = about(name) + (shown if name in NETWORKS else "")
        items.append(Item(name, title_of(name), text, claims, files["svg"], files["png"]))
    return items, notes


def _shipped_records(wanted: Mapping[str, Spec]) -> dict[str, Record]:
    found = shipped(SHOWN_SCALE)
    return {} if found is None else {k: r for k, r in found.records.items() if k in wanted}


def _network_notes(plan: Mapping[str, object], size: Scale | None) -> list[str]:
    """Where the records of the network experiments come from."""
    shown = ", ".join(name for name in NETWORKS if name in plan)
    if not shown:
        return []
    if size is not None:
        return [f"{shown}: scale {size.name} ({size.about})"]
    found = shipped(SHOWN_SCALE)
    if found is None:
        return []
    made = ", ".join(f"{key} {value}" for key, value in found.made.items())
    return [f"{shown}: from records that ship with the package, by `{found.command}` ({made})"]


def _rows(items: Sequence[Item]) -> list[Row]:
    """The paper's claims with the worst verdict of their parts."""
    claims = [claim for item in items for claim in item.claims]
    judged = {item.name for item in items}
    rows = []
    for row in paper_claims():
        parts = row.deciding(claims)
        complete_row = bool(parts) and all(name in judged for name in row.experiments)
        verdict = worst(part.verdict for part in parts) if complete_row else NOT_JUDGED
        rows.append(Row(row.id, row.reference, row.says, verdict, row.experiments))
    return rows


def _write_claims(path: Path, claims: Sequence[Claim]) -> None:
    fields = ("id", "statement", "reference", "verdict", "value", "low", "high", "n", "tested")
    listed = [{name: asdict(claim)[name] for name in fields} for claim in claims]
    _write(path, (json.dumps(listed, indent=1, ensure_ascii=False) + "\n").encode())


def _print_verdicts(rows: Sequence[Row], claims: Sequence[Claim]) -> None:
    parts = {row.id: row.deciding(claims) for row in paper_claims()}
    for row in rows:
        if row.verdict == NOT_JUDGED:
            continue
        held = sum(part.verdict == "holds" for part in parts[row.id])
        print(f"{row.id:20} {row.verdict:10} {held:3} of {len(parts[row.id]):3} parts hold")
        for part in parts[row.id]:
            if part.verdict != "holds":
                value = f"{number(part.value)} [{number(part.low)}, {number(part.high)}]"
                print(f"    {part.verdict}: {part.statement}: {value}, n={part.n}")
    later = [row.id for row in rows if row.verdict == NOT_JUDGED]
    if later:
        print(f"not judged here: {', '.join(later)}")


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
) -> int:
    """Make or complete the page and return an exit code: 1 if runs failed.

    With `run=False` the page is made from what is stored. With a `scale`, networks are trained at
    that size; without, they are judged from the records that ship with the package.
    """
    began = time.perf_counter()
    size = None if scale is None else scale_to_use(scale, out)
    plan = _plan(names, seeds, size)
    make_folder(out)
    store = Store(out / "store", _say)
    unique = {run.name: run for runs in plan.values() for run in runs}
    ready = _shipped_records(unique) if size is None else {}
    wanted = [run for run in unique.values() if size or not isinstance(run, Training)]
    try:
        if run:
            write_plan(out, wanted)
            outcome = complete(wanted, store, threads=threads, retry=retry, device=device)
        else:
            outcome = stored(wanted, store)
    except KeyboardInterrupt:
        done = sum(store.state(run) == "done" for run in unique.values())
        _say(f"interrupted: {done} of {len(unique)} runs are stored; the same command goes on")
        return 130
    outcome.records = ready | outcome.records
    desk = _Desk(out / "figures", refresh)
    items, notes = _items(plan, outcome, desk, size or scale_named(SHOWN_SCALE))
    notes += _network_notes(plan, size)
    if seeds is not None:
        notes.append(f"made with {seeds} seeds instead of the number fixed in each experiment")
    rows = _rows(items)
    claims = [claim for item in items for claim in item.claims]
    command = "antipgd paper" + (f" --only {','.join(plan)}" if names else "")
    command += f" --seeds {seeds}" if seeds is not None else ""
    command += f" --scale {scale}" if scale is not None else ""
    made = {key: str(value) for key, value in provenance().items() if key != "time"}
    slips = [Erratum(s.where, s.printed, s.right, s.shown_by()) for s in SLIPS] if not names else []
    html = page(items, rows=rows, notes=notes, provenance=made, command=command, errata=slips)
    try:
        _write_claims(out / "claims.json", claims)
        _write(out / "report.html", html.encode())
    except OSError as error:
        raise StoreError(f"cannot write into {out}: {error.strerror}") from error
    _print_verdicts(rows, claims)
    for note in notes:
        print(note)
    print(f"{len(wanted)} runs, {len(claims)} claims in {time.perf_counter() - began:.0f} s")
    print(f"the page: {out / 'report.html'}")
    return 1 if outcome.failures else 0
