"""A fight as a page: one figure, a paragraph for each question, a table for each problem.

Everything is made from the standings; nothing here has a favourite.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from antipgd.paper.claims import Claim
from antipgd.paper.coverage import together
from antipgd.paper.fight.comparing import compared, verdict
from antipgd.paper.fight.contestant import RATE
from antipgd.paper.fight.planning import GRADIENTS, RANKINGS, STEPS
from antipgd.paper.fight.problem import LOSS
from antipgd.paper.fight.problems import sizes
from antipgd.paper.fight.ranking import Array
from antipgd.paper.fight.standings import Standing, Table, overall, survivors
from antipgd.paper.fight.surviving import markdown, paragraph

PAIRS = (
    ("anti_pgd", "gd"), ("anti_pgd", "pgd"), ("anti_sgd", "sgd"), ("anti_sgd", "two_point"),
    ("anti_sgd", "sam"), ("anti_sgd", "sgd_weight_decay"),
)  # fmt: skip
"""Who is compared with whom, seed by seed, at equal gradients."""


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return "\n".join([_row(head), _row("---" for _ in head), *map(_row, rows)])


def _value(one: Standing) -> str:
    shown = f"η {one.settled.lr:.3g}" if one.method.tunes == RATE else f"{one.settled.value:g}"
    return shown + (" (end of grid)" if one.settled.at_end else "")


def _kept(one: Standing) -> str:
    return f"{one.mean('bytes') / 1000:.3g} kB" if one.mean("bytes") else "0"


def problem_table(table: Table) -> str:
    """Who stands where on a problem."""
    what = "test loss" if table.kind == LOSS else "test accuracy, %"
    head = ("method", f"{what}, {GRADIENTS}", "rank", f"{what}, {STEPS}", "rank", "tuned value",
            "seconds", "kept between steps")  # fmt: skip
    rows = [
        (one.method.title, one.score(table.kind), one.ranks[GRADIENTS],
         "the same" if one.method.gradients == 1 else one.score(table.kind, STEPS),
         one.ranks[STEPS], _value(one), f"{one.mean('seconds'):.2g}", _kept(one))
        for one in table.standings
    ]  # fmt: skip
    return _markdown(head, rows)


def _first(table: Table, ranking: str) -> str:
    """The winners of a problem: the first, and those that may be it as far as intervals tell."""
    ordered = sorted(table.standings, key=lambda one: one.ranks[ranking].rank)
    best, rest = ordered[0], ordered[1:]
    reach = best.ranks[ranking].high
    near = [one.method.title for one in rest if one.ranks[ranking].low <= reach]
    beside = f", not to be told from {_listed(near)}" if near else ", ahead of all others"
    score = best.score(table.kind, ranking)
    return f"{table.card.problem}: {best.method.title} ({score}, {_seeds(table)}{beside})"


def _seeds(table: Table) -> str:
    return f"{table.card.seeds} seeds"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def who_wins(tables: Sequence[Table], ranking: str) -> str:
    """A paragraph."""
    told = [_first(table, ranking) for table in tables if len(table.standings) > 1]
    over = overall(tables, ranking)
    titles = {one.method.name: one.method.title for table in tables for one in table.standings}
    mean = "; ".join(f"{titles[name]} {rank}" for name, rank in list(over.items())[:3])
    last = "; ".join(f"{titles[name]} {rank}" for name, rank in list(over.items())[-2:])
    whole = f" Mean ranks over the problems that carry all: {mean}; last {last}." if over else ""
    return f"**Who wins, at {ranking}?** {'. '.join(told)}.{whole}"


def _samples(table: Table, pair: tuple[str, str]) -> tuple[Array, Array] | None:
    """Goodness by seed at equal gradients; None where one of the two is not there."""
    by = table.by_name()
    if not {*pair} <= by.keys():
        return None
    one, other = (by[name].samples[GRADIENTS] for name in pair)
    return one, other


def _named(table: Table, pair: tuple[str, str]) -> str:
    return f"{pair[0]} against {pair[1]} on {table.card.problem}"


def _lost(samples: tuple[Array, Array]) -> int:
    """Seeds in which one of the two diverged."""
    return int(np.isinf(samples).any(axis=0).sum())


def comparisons(tables: Sequence[Table]) -> dict[str, Claim]:
    """All pairs on all problems, judged together by Holm's step-down. Not compared is who diverged,
    and who has one seed only."""
    found = []
    for pair in PAIRS:
        for table in tables:
            samples = _samples(table, pair)
            if samples and not _lost(samples) and table.card.seeds > 1:
                found.append(compared(table.kind, *samples, _named(table, pair)))
    return {claim.id: claim for claim in together(found)}


def _told(table: Table, pair: tuple[str, str], judged: Mapping[str, Claim]) -> str | None:
    """A comparison in words; None where there is nothing to be compared."""
    samples, claim = _samples(table, pair), judged.get(_named(table, pair))
    if claim is None:
        lost = _lost(samples) if samples else 0
        said = f"{table.card.problem} diverged in {lost} of {table.card.seeds} seeds"
        return said if lost else None
    unit, sign = ("×", "") if table.kind == LOSS else (" points", "+")
    interval = f"[{claim.low:{sign}.2g}, {claim.high:{sign}.2g}]"
    return (
        f"{table.card.problem} {verdict(claim)} "
        f"({claim.value:{sign}.2g}{unit} {interval}, {_seeds(table)})"
    )


def who_beats_whom(tables: Sequence[Table]) -> str:
    """A paragraph: paired comparisons; empty if there are none."""
    titles = {one.method.name: one.method.title for table in tables for one in table.standings}
    judged, told = comparisons(tables), []
    for pair in PAIRS:
        found = [text for table in tables if (text := _told(table, pair, judged)) is not None]
        if found:
            told.append(f"{titles[pair[0]]} against {titles[pair[1]]}: {'; '.join(found)}")
    if not told:
        return ""
    return (
        "**Does anticorrelated noise help, and is it what helps?** Seed by seed, at equal "
        "gradients; ratios of test losses or points of accuracy, with plain intervals. An interval "
        "within 5 % or 1 point is level; verdicts are by Holm's step-down over all comparisons "
        f"here ({len(judged)}). {'. '.join(told)}."
    )


def what_survives(tables: Sequence[Table]) -> str:
    """A paragraph: what flatness is bought for."""
    told = [paragraph(found) for found in map(survivors, tables) if found.methods]
    if not told:
        return "**What is flatness bought for?** No network was trained: nothing was measured."
    return (
        "**What is flatness bought for?** What rounding, noise and a second task take from the "
        f"networks. {' '.join(told)}"
    )


def what_it_costs(tables: Sequence[Table]) -> str:
    """A paragraph: seconds, in units of the base's."""
    ratios: dict[str, list[float]] = {}
    for table in tables:
        by = table.by_name()
        base = by.get("sgd") or by.get("adamw")
        for one in table.standings if base else ():
            assert base is not None
            per = one.mean("seconds") / one.mean("gradients") * one.method.gradients
            ratios.setdefault(one.method.title, []).append(
                per / (base.mean("seconds") / base.mean("gradients"))
            )
    told = "; ".join(f"{title} {np.exp(np.mean(np.log(r))):.2g}" for title, r in ratios.items())
    return (
        "**What does a step cost?** Seconds a step in units of SGD's (of AdamW's where that is the "
        f"base), geometric mean over problems: {told}."
    )


def who_is_out(tables: Sequence[Table]) -> str:
    """A paragraph, empty if nobody is."""
    told = [f"{name} on {table.card.problem}: {why}"
            for table in tables for name, why in table.out.items()]  # fmt: skip
    return "**Who is not ranked, and why?** " + "; ".join(told) + "." if told else ""


def paragraphs(tables: Sequence[Table]) -> list[str]:
    """One for each question."""
    told = [*(who_wins(tables, ranking) for ranking in RANKINGS), who_beats_whom(tables),
            what_survives(tables), what_it_costs(tables), who_is_out(tables)]  # fmt: skip
    return [text for text in told if text]


def _heading(table: Table) -> str:
    card, it = table.card, sizes(table.card.problem)
    marked = " **Few methods, few seeds: fixed beforehand, a direction.**" if card.few else ""
    return (
        f"### {card.problem}\n\n{it.about[:1].upper()}{it.about[1:]}; {it.steps:,} gradients; "
        f"judged on {card.seeds} seeds, each value tuned on {card.tuning} others.{marked}"
    )


def overall_table(tables: Sequence[Table]) -> str:
    """Mean ranks over the problems that carry all methods."""
    titles = {one.method.name: one.method.title for table in tables for one in table.standings}
    both = {ranking: overall(tables, ranking) for ranking in RANKINGS}
    rows = [(titles[name], *(both[ranking][name] for ranking in RANKINGS))
            for name in both[GRADIENTS]]  # fmt: skip
    return _markdown(("method", *(f"mean rank, {ranking}" for ranking in RANKINGS)), rows)


def tables_text(tables: Sequence[Table]) -> str:
    """The tables of all problems."""
    parts = []
    if any(not table.card.few and table.standings for table in tables):
        parts.append(f"### All problems that carry all methods\n\n{overall_table(tables)}")
    for table in tables:
        if table.standings:
            parts += [_heading(table), problem_table(table)]
            if survivors(table).methods:
                parts.append(markdown(survivors(table)))
    return "\n\n".join(parts)


def page(
    budget: str,
    tables: Sequence[Table],
    skipped: Mapping[str, str],
    figure: str,
    survival: str | None = None,
) -> str:
    """The whole of it in Markdown, with the figures of these names."""
    missing = [f"- not fought: {name}: {why}" for name, why in skipped.items()]
    return "\n\n".join([
        f"# The fight, budget {budget}",
        "Ranks are 1 for the best; brackets hold 95 % of the ranks when these seeds are resampled, "
        "which fresh seeds leave more often, or Student's interval of a mean (test losses: "
        "geometric).",
        f"![Ranks on each problem]({figure})",
        *paragraphs(tables),
        *([f"![What is lost against the scaled trace]({survival})"] if survival else []),
        *(["\n".join(missing)] if missing else []),
        tables_text(tables),
    ]) + "\n"  # fmt: skip


def frame(tables: Sequence[Table]) -> pd.DataFrame:
    """The same as rows: problem × method × ranking."""
    return pd.DataFrame(
        {
            "problem": table.card.problem, "method": one.method.name, "ranking": ranking,
            "value": one.settled.value, "lr": one.settled.lr, "end of grid": one.settled.at_end,
            "seeds": table.card.seeds, "goodness": float(np.mean(one.samples[ranking])),
            "rank": one.ranks[ranking].rank, "rank low": one.ranks[ranking].low,
            "rank high": one.ranks[ranking].high,
            **{name: one.mean(name, ranking) for name in one.measures[ranking]},
        }
        for table in tables for one in table.standings for ranking in RANKINGS
    )  # fmt: skip
