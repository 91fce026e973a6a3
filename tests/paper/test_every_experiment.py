"""Every experiment's claims and figure, on made-up records: that the code runs to its end.

Records have the form that a run of the spec would leave, with random numbers in it; once all are
finite, once every second seed diverged half way; networks once more at a minimum, and with one seed
that missed it and went on. What comes out is a verdict on nothing, but an
error anywhere in `claims` or `plot` is found in seconds instead of after minutes of runs.
"""

import math
import re
import warnings
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from antipgd.paper.claims import NOT_AT_MINIMUM, SEVERITY
from antipgd.paper.coverage import decided, paper_claims
from antipgd.paper.errata import SLIPS
from antipgd.paper.exhibits import caption, on_network, row_of
from antipgd.paper.experiments import (
    EXPERIMENTS,
    about,
    chapter_of,
    is_scaled,
    load,
    more_runs_of,
    runs_of,
    title_of,
)
from antipgd.paper.figures import rendered
from antipgd.paper.networks.scales import scale_named
from antipgd.paper.networks.spec import MEASURES
from antipgd.paper.record import Record
from antipgd.paper.report import Erratum, Item, page
from antipgd.paper.results import Results
from antipgd.paper.simulation.problems import make_problem

RELAX_STEPS = 10
SMOKE = scale_named("smoke")
DOCS = Path(__file__).parents[2] / "docs"


@cache
def size_of(problem, settings):
    return len(make_problem(problem, dict(settings)).start(np.random.default_rng(0)))


def places_of(run, step):
    if run.problem != "network":
        average = ("average",) if run.average and step == run.steps else ()
        return (*(("w", "z") if run.has_clean_weights else ("w",)), *average)
    noisy = run.taps and run.has_clean_weights and run.noise_acts(step)
    average = ("ema",) if run.ema else ()
    return ("running", "w", "w_bn", *(("z", "z_bn") if noisy else ()), *average)


def end_of(run, diverged):
    """Status, the step where it diverged, the step where it left its interval."""
    if diverged:
        return "diverged", run.measure[len(run.measure) // 2] or 1, None
    if getattr(run, "leave", None) is not None:
        return ("left low", "left high")[run.seed % 2], None, run.steps // 2
    return "ok", None, None


def at_a_minimum(points):
    """The same with every image of training right at the cleanest weights, and their loss small."""
    fits = {2 + MEASURES.index("train_loss"): 0.001, 2 + MEASURES.index("train_accuracy"): 1.0}
    return tuple(
        point if point[1] == "running" else
        tuple(fits.get(place, value) for place, value in enumerate(point))
        for point in points
    )  # fmt: skip


def made_up(run, diverged, fits=False):
    """A record of this run with random numbers, a function of the run's name."""
    draw = np.random.default_rng(int(run.name, 16))
    status, diverged_at, left_at = end_of(run, diverged)
    last = diverged_at or left_at or run.steps + 1
    steps = [step for step in run.measure if step < last] + ([left_at] if left_at else [])
    count = len(run.measures)
    where = [(step, place) for step in steps for place in places_of(run, step)]
    weights, relaxed = {}, None
    if run.problem != "network":
        relaxed = not diverged if run.relax else None
        where += [(steps[-1], "relaxed")] if relaxed else []
        size = size_of(run.problem, run.settings)
        weights = {place: tuple(draw.standard_normal(size).tolist()) for _, place in where}
    points = tuple((*at, *draw.uniform(0.1, 1, count).tolist()) for at in where)
    points = at_a_minimum(points) if fits else points
    taken = RELAX_STEPS if relaxed else None
    return Record(run, status, diverged_at, left_at, points, weights, taken, relaxed)


@cache
def planned(name):
    return runs_of(name, 2, SMOKE if is_scaled(name) else None)


FITS = {
    "finite": lambda run: False,  # nor does what goes on
    "half-diverged": lambda run: False,
    "at-a-minimum": lambda run: True,
    "one-went-on": lambda run: run.seed != 1 or bool(run.extends),
}


def results_of(name, kind):
    """Records of an experiment's runs, and of those that follow from them."""
    records, more = {}, planned(name)
    while more:
        for run in more:
            lost = kind == "half-diverged" and run.seed % 2 == 1
            records[run.name] = made_up(run, lost, is_scaled(name) and FITS[kind](run))
        following = more_runs_of(name, [*records.values()], SMOKE) if is_scaled(name) else []
        more = [run for run in following if run.name not in records]
    return Results(records.values())


def check_page_of_verdicts(name, claims):
    """Rows that this experiment decides alone have as many parts on the page of verdicts."""
    for row in paper_claims():
        if row.experiments == [name]:
            start = "| " + row.title.replace("|", "\\|") + " | "
            page = DOCS / ("questions.md" if row.kind == "question" else "verdicts.md")
            (line,) = [one for one in page.read_text("utf-8").splitlines() if one.startswith(start)]
            assert f" of {len(row.deciding(claims))} | " in line


CASES = [(name, kind) for name in EXPERIMENTS for kind in list(FITS)[: 4 if is_scaled(name) else 2]]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_claims_and_figure_of_any_records(name, kind):
    results, half_diverged = results_of(name, kind), kind == "half-diverged"
    longer = {record.run.seed for record in results.records if getattr(record.run, "extends", 0)}
    if is_scaled(name):
        assert longer == {"at-a-minimum": set(), "one-went-on": {1}}.get(kind, {0, 1})
    claims = load(name).claims(results)
    missed = {claim.id for claim in claims if claim.verdict == NOT_AT_MINIMUM}
    if is_scaled(name):
        assert bool(missed) == (kind in ("finite", "half-diverged"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rendered(load(name).plot(results), "png").startswith(b"\x89PNG")
    patterns = [pattern for row in paper_claims() for pattern in row.parts]
    ids = [claim.id for claim in claims]
    assert ids
    assert len(set(ids)) == len(ids)
    for claim in claims:
        assert claim.verdict in SEVERITY
        assert claim.statement
        assert claim.tested
        assert sum(row.decides(claim) for row in paper_claims()) == 1, claim.id  # judged once
        if not half_diverged and claim.n >= 2:  # of fewer seeds there is no interval
            assert math.isfinite(claim.value), claim
            assert claim.low <= claim.value <= claim.high, claim
    if not is_scaled(name):
        check_page_of_verdicts(name, claims)
    for pattern in patterns:
        if pattern.partition(".")[0] == name and ".full_" not in pattern:  # of the larger scale
            assert any(fnmatchcase(id_, pattern) for id_ in ids), pattern


LARGEST = 3_000_000  # bytes of the page


def an_item(name):
    results = results_of(name, "finite")
    svg = rendered(load(name).plot(results), "svg")
    runs = [record.run for record in results.records]
    return Item(name, title_of(name), about(name), load(name).claims(results), svg, None,
                caption(name, runs), chapter_of(name), on_network(runs))  # fmt: skip


@pytest.mark.slow
def test_the_page_of_all_experiments_is_small():
    """Of random numbers, whose lines go up and down at every point: real ones are smoother."""
    items = [an_item(name) for name in EXPERIMENTS]
    rows = decided([claim for item in items for claim in item.claims], EXPERIMENTS)
    slips = [Erratum(s.where, s.printed, s.right, s.shown_by()) for s in SLIPS]
    html = page(items, rows=[*map(row_of, rows)], notes=[], provenance={}, command="antipgd paper",
                errata=slips)  # fmt: skip
    assert len(html.encode()) < LARGEST
    assert html.count("<figure") == len(EXPERIMENTS) + 1


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_caption_says_how_many_seeds_were_judged(name):
    shows = load(name).SHOWS
    assert shows.endswith(".")
    assert set(re.findall(r"\{(\w*)\}", shows)) <= {"seeds"}
    if not is_scaled(name):
        seeds = load(name).SEEDS
        assert ("{seeds}" in shows) == (seeds > 1)
        assert caption(name, runs_of(name)) == shows.format(seeds=seeds)
        fewer = shows.format(seeds=2 if runs_of(name) else seeds)
        assert caption(name, planned(name)) == fewer


def test_networks_are_those_in_which_one_is_trained():
    found = {name for name in EXPERIMENTS if on_network(runs_of(name))}
    assert found >= {name for name in EXPERIMENTS if is_scaled(name)}
    assert found >= {"student_teacher", "digits_networks", "pac_bayes_digits", "one_hidden_unit"}
    assert not found & {"regression", "sensing", "valley_exit", "moments", "pac_bayes"}
