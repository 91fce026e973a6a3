"""The desk: an experiment's records become claims and a figure, made again only if need be.

Also draws and lists what has been trained of a scale, complete or not. As a script it writes the
file of records that ships: `python -m antipgd.paper.verdicts SCALE STORE FILE
rules=COMMIT commit=COMMIT`.
"""

import hashlib
import json
import lzma
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from antipgd.checks import whole
from antipgd.paper.claims import Claim, worst
from antipgd.paper.experiments import (
    SHOWN_SCALE,
    load,
    more_runs_of,
    runs_of,
    scaled_experiments,
)
from antipgd.paper.figures import Figure, rendered
from antipgd.paper.files import make_folder, write
from antipgd.paper.networks.scales import Scale
from antipgd.paper.networks.shipped import lines, records_digest
from antipgd.paper.networks.spec import Training
from antipgd.paper.networks.tuning import scale_to_use
from antipgd.paper.pipeline import Outcome
from antipgd.paper.record import Record, Spec
from antipgd.paper.results import Results
from antipgd.paper.simulation.spec import RESULTS_VERSION
from antipgd.paper.store import Store, code_digest

KINDS = ("png", "svg")
# What reading a stamp of arbitrary content raises.
_DAMAGED = (
    OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip


class Judged(NamedTuple):
    """What an experiment says of its records."""

    claims: list[Claim]
    files: dict[str, bytes]  # the figure, by kind


class Desk:
    """Claims and figures, made again only if they or what they depend on has changed.

    They depend on the runs, on the code and on the records that ship with it alone. Beside the
    figure lies a stamp with the digest of that, the claims, and the digests of the figure's files.
    """

    def __init__(self, folder: Path, refresh: bool) -> None:
        self.folder = folder
        self.refresh = refresh
        self._records = records_digest(SHOWN_SCALE)
        make_folder(folder)

    def judge(self, name: str, specs: Sequence[Spec], outcome: Outcome) -> Judged:
        """The claims and the figure of an experiment."""
        shown = "".join(sorted(run.name for run in specs))
        parts = f"{code_digest()} {RESULTS_VERSION} {self._records} {shown}"
        key = hashlib.sha256(parts.encode()).hexdigest()
        found = None if self.refresh else self._read(name, key)
        if found is None:
            results = Results(outcome.in_order(specs))
            figure = load(name).plot(results)
            files = {kind: rendered(figure, kind) for kind in KINDS}
            found = Judged(load(name).claims(results), files)
            self._keep(name, key, found)
        return found

    def _keep(self, name: str, key: str, judged: Judged) -> None:
        stamp: dict[str, Any] = {"key": key, "claims": [asdict(claim) for claim in judged.claims]}
        for kind, content in judged.files.items():
            write(self.folder / f"{name}.{kind}", content)
            stamp[kind] = hashlib.sha256(content).hexdigest()
        write(self.folder / f".{name}.json", json.dumps(stamp).encode())

    def _read(self, name: str, key: str) -> Judged | None:
        try:
            stamp = json.loads((self.folder / f".{name}.json").read_bytes())
            files = {kind: (self.folder / f"{name}.{kind}").read_bytes() for kind in KINDS}
            same = all(hashlib.sha256(files[kind]).hexdigest() == stamp[kind] for kind in KINDS)
            if not same or stamp["key"] != key:
                return None
            return Judged([_claim(values) for values in stamp["claims"]], files)
        except _DAMAGED:
            return None


def _claim(values: Mapping[str, Any]) -> Claim:
    """A claim as it was kept, or an error: the page relies on the kinds of its values."""
    claim = Claim(**values)
    worst([claim.verdict])
    for text in (claim.id, claim.statement, claim.reference, claim.tested):
        text.encode()  # half a character cannot be written
    if not {type(claim.value), type(claim.low), type(claim.high)} <= {float, int}:
        raise ValueError(f"value, low and high must be numbers; got {claim}")
    float(claim.value + claim.low + claim.high)  # a whole number may be too large for one
    whole("n", claim.n, 0)
    if claim.p is not None and not 0 <= float(claim.p) <= 1:
        raise ValueError(f"p must lie between 0 and 1; got {claim}")
    if claim.needed is not None:
        whole("needed", claim.needed, 2)
    return claim


def network_runs(scale: Scale) -> list[Training]:
    """All trainings of a scale, as its experiments ask for them."""
    found: list[Any] = [run for name in scaled_experiments() for run in runs_of(name, scale=scale)]
    return found


def reached(scale: Scale, store: Store) -> list[Training]:
    """All trainings of a scale that its experiments ask for, also those that they ask for because
    of what a store has of the others."""
    found: dict[str, Training] = {}
    for name in scaled_experiments():
        own: dict[str, Any] = {run.name: run for run in runs_of(name, scale=scale)}
        known = 0
        while len(own) > known:
            known = len(own)
            there = [record for run in own.values() if (record := store.get(run)) is not None]
            own |= {run.name: run for run in more_runs_of(name, there, scale)}
        found |= own
    return [*found.values()]


def drawn(records: Iterable[Record], scale: Scale) -> dict[str, Figure]:
    """The figure of each experiment whose arms have all been trained, from the seeds there are."""
    known = {record.run.name: record for record in records}
    found = {}
    for name in scaled_experiments():
        planned: list[Any] = runs_of(name, scale=scale)
        own = {run.name: known[run.name] for run in planned if run.name in known}
        if _arms(r.run for r in own.values()) != _arms(planned):
            continue
        while more := [run for run in more_runs_of(name, [*own.values()], scale)
                       if run.name in known and run.name not in own]:  # fmt: skip
            own |= {run.name: known[run.name] for run in more}
        whole = all(run.name in own for run in more_runs_of(name, [*own.values()], scale))
        if whole or not hasattr(load(name), "more"):
            found[name] = load(name).plot(Results(own.values()))
    return found


def _arms(runs: Iterable[Training]) -> set[tuple[str, str, int]]:
    return {(run.method, run.norm, run.batch) for run in runs if not run.tuned_on}


if __name__ == "__main__":
    name, root, path = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    store, commits = Store(root), dict(word.split("=") for word in sys.argv[4:])
    runs: list[Any] = reached(scale_to_use(name, root.parent), store)
    runs += store.runs(Training.from_plain)  # also of a search that is not over
    text = "\n".join(lines(name, store, runs, commits)) + "\n"
    write(path, lzma.compress(text.encode(), preset=9))
