"""What the page is given: each experiment judged, drawn and captioned, and each row decided.

The desk judges and draws, `report` writes; here is what they say of each other.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from antipgd.paper.coverage import Decided, judged_together, paper_claims
from antipgd.paper.experiments import (
    SHOWN_SCALE,
    about,
    chapter_of,
    is_scaled,
    load,
    title_of,
)
from antipgd.paper.networks.scales import Scale, scale_named
from antipgd.paper.networks.shipped import shipped
from antipgd.paper.networks.spec import Training
from antipgd.paper.pipeline import Outcome
from antipgd.paper.progress import progress
from antipgd.paper.record import Spec
from antipgd.paper.report import Item, Row
from antipgd.paper.settings import NETWORKS
from antipgd.paper.simulation.tuned import HELD_OUT
from antipgd.paper.verdicts import Desk

QUICK = 0.7
"""Seconds to judge and draw an experiment; one that takes many more has them as `JUDGING`. Only
the bar depends on them."""


def exhibits(
    planned: Mapping[str, Sequence[Spec]], outcome: Outcome, desk: Desk, scale: Scale | None
) -> tuple[list[Item], list[str]]:
    """Every experiment judged, drawn and captioned, the parts of each row judged together; notes
    name those of which runs failed."""
    items, notes = [], []
    size = scale or scale_named(SHOWN_SCALE)
    shown = f" Shown at scale `{size.name}`: {size.about}."
    own = [name for name in planned if hasattr(load(name), "more")]  # sizes of their own
    seconds = {name: getattr(load(name), "JUDGING", QUICK) for name in planned}
    with progress("judging and drawing", sum(seconds.values()), len(planned)) as bar:
        for name, runs in planned.items():
            bar.finish(name)
            absent = [run for run in runs if run.name not in outcome.records]
            if absent:
                why = _why_absent(absent, outcome)
                notes.append(f"{name}: not judged, {len(absent)} of {len(runs)} runs {why}")
            else:
                claims, files = desk.judge(name, runs, outcome)
                text = about(name) + (shown if is_scaled(name) and name not in own else "")
                item = Item(name, title_of(name), text, claims, files["svg"], files["png"],
                            caption(name, runs), chapter_of(name), on_network(runs))  # fmt: skip
                items.append(item)
            bar.tick(seconds[name])
    return _together(items), notes


def _why_absent(runs: Sequence[Spec], outcome: Outcome) -> str:
    failure = outcome.failures.get(runs[0].name)
    if failure is None:
        return "missing"
    return f"failed ({failure.reason}); --retry tries them again"


def caption(name: str, runs: Sequence[Any]) -> str:
    """What an experiment's figure shows, with the number of seeds that were run to be judged."""
    seeds = {run.seed for run in runs if not _tunes(run)}
    return load(name).SHOWS.format(seeds=len(seeds) or getattr(load(name), "SEEDS", 0))


def _tunes(run: Any) -> bool:
    """Whether a run only serves to choose a value."""
    if isinstance(run, Training):
        return bool(run.tuned_on)
    return dict(run.settings).get("held_out") == HELD_OUT[True]


def on_network(runs: Sequence[Any]) -> bool:
    """Whether any of these runs trains a network."""
    return any(run.problem in NETWORKS for run in runs)


def _together(items: Sequence[Item]) -> list[Item]:
    """The same items, the parts of every row of the table judged together."""
    claims = [claim for item in items for claim in item.claims]
    found = {claim.id: claim for claim in judged_together(claims, paper_claims())}
    judged = []
    for item in items:
        own = [found[claim.id] for claim in item.claims]
        words = getattr(load(item.name), "words", lambda claims: "")(own)
        judged.append(replace(item, claims=own, about=f"{words}\n\n{item.about}".strip()))
    return judged


def origins(planned: Iterable[str], scale: Scale | None) -> list[str]:
    """Where the records of the network experiments come from."""
    shown = ", ".join(name for name in planned if is_scaled(name))
    if not shown:
        return []
    if scale is not None:
        return [f"{shown}: scale {scale.name} ({scale.about})"]
    found = shipped(SHOWN_SCALE)
    if found is None:
        return []
    made = ", ".join(f"{key} {value}" for key, value in found.made.items())
    return [f"{shown}: from records that ship with the package, by `{found.command}` ({made})"]


def row_of(one: Decided) -> Row:
    """A decided row as the page shows it."""
    row = one.row
    return Row(row.id, row.reference, row.says, one.verdict, row.experiments, row.kind, row.quote,
               row.title, one.held, len(one.parts))  # fmt: skip
