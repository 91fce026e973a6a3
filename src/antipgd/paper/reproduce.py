"""The paper in one command: run what is missing, judge every claim, draw every figure, one page.

Everything lies under one folder: store/, figures/, claims.json, report.html. What is there and up
to date is not made again; what is missing is.
"""

import hashlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from antipgd.paper.claims import Claim, worst
from antipgd.paper.coverage import paper_claims
from antipgd.paper.errata import SLIPS
from antipgd.paper.experiments import about, choose, load, title_of
from antipgd.paper.figures import rendered
from antipgd.paper.pipeline import Outcome, complete, stored
from antipgd.paper.report import Erratum, Item, Row, number, page
from antipgd.paper.results import Results
from antipgd.paper.run.local import cpu_count
from antipgd.paper.run.timing import seconds_needed
from antipgd.paper.spec import RESULTS_VERSION, Run
from antipgd.paper.store import Store, StoreError, code_digest, make_folder, provenance
from antipgd.paper.store import write_atomically as _write
from antipgd.paper.sweep import write_plan

KINDS = ("png", "svg")
NOT_JUDGED = "not judged"


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def _plan(names: Sequence[str] | None, seeds: int | None) -> dict[str, list[Run]]:
    """The runs of each chosen experiment."""
    if seeds is not None and seeds < 2:
        raise ValueError(
            f"seeds must be a whole number >= 2, else nothing has an interval; got {seeds}"
        )
    plan = {}
    for name in choose(names):
        module = load(name)
        plan[name] = module.runs(module.SEEDS if seeds is None else seeds)
    return plan


def show_plan(
    names: Sequence[str] | None, seeds: int | None, out: Path, threads: int | None
) -> int:
    """Print what would be run and how long it would take."""
    plan = _plan(names, seeds)
    store = Store(out / "store", _say) if (out / "store").is_dir() else None
    everything: dict[str, Run] = {}
    for name, runs in plan.items():
        new = [r for r in runs if r.name not in everything]
        missing = [r for r in new if store is None or store.state(r) in ("missing", "stale")]
        everything |= {run.name: run for run in missing}
        print(f"{name:22} {len(runs):5} runs, {len(missing):5} to do")
    used = threads or cpu_count()
    seconds = seconds_needed(everything.values()) / used
    print(f"{len(everything)} runs to do, about {seconds:.0f} s on {used} threads, and relaxations")
    return 0


class _Judged(NamedTuple):
    claims: list[Claim]
    files: dict[str, bytes]  # the figure, by kind


class _Desk:
    """Claims and figures, made again only if they or what they depend on has changed.

    They depend on the runs and on the code alone. Beside the figure lies a stamp with the digest of
    that, the claims, and the digests of the figure's files.
    """

    def __init__(self, folder: Path, refresh: bool) -> None:
        self.folder = folder
        self.refresh = refresh
        make_folder(folder)

    def judge(self, name: str, runs: Sequence[Run], outcome: Outcome) -> _Judged:
        """The claims and the figure of an experiment."""
        shown = "".join(sorted(run.name for run in runs))
        key = hashlib.sha256(f"{code_digest()} {RESULTS_VERSION} {shown}".encode()).hexdigest()
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
    plan: dict[str, list[Run]], outcome: Outcome, desk: _Desk
) -> tuple[list[Item], list[str]]:
    """Every experiment judged and drawn; those of which runs failed only named."""
    items, notes = [], []
    for name, runs in plan.items():
        absent = [run for run in runs if run.name not in outcome.records]
        if absent:
            failure = outcome.failures.get(absent[0].name)
            why = "missing" if failure is None else f"failed ({failure.reason})"
            notes.append(f"{name}: not judged, {len(absent)} of {len(runs)} runs {why}")
            continue
        claims, files = desk.judge(name, runs, outcome)
        items.append(Item(name, title_of(name), about(name), claims, files["svg"], files["png"]))
    return items, notes


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
) -> int:
    """Make or complete the page and return an exit code: 1 if runs failed.

    With `run=False` the page is made from what is stored.
    """
    began = time.perf_counter()
    plan = _plan(names, seeds)
    make_folder(out)
    store = Store(out / "store", _say)
    unique = {run.name: run for runs in plan.values() for run in runs}
    try:
        if run:
            write_plan(out, list(unique.values()))
            outcome = complete(list(unique.values()), store, threads=threads, retry=retry)
        else:
            outcome = stored(list(unique.values()), store)
    except KeyboardInterrupt:
        done = sum(store.state(run) == "done" for run in unique.values())
        _say(f"interrupted: {done} of {len(unique)} runs are stored; the same command goes on")
        return 130
    items, notes = _items(plan, outcome, _Desk(out / "figures", refresh))
    if seeds is not None:
        notes.append(f"made with {seeds} seeds instead of the number fixed in each experiment")
    rows = _rows(items)
    claims = [claim for item in items for claim in item.claims]
    command = "antipgd paper" + (f" --only {','.join(plan)}" if names else "")
    command += f" --seeds {seeds}" if seeds is not None else ""
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
    print(f"{len(unique)} runs, {len(claims)} claims in {time.perf_counter() - began:.0f} s")
    print(f"the page: {out / 'report.html'}")
    return 1 if outcome.failures else 0
