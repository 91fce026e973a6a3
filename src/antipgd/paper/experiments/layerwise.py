"""Noise on all layers at once, or on one at a time?

(Ours; the claims judged are those of Orvieto, Raj, Kersting and Bach 2023, arXiv 2206.04613.) Where
all layers of a wide network get noise of one size, noise meets noise: of two layers, the product of
their draws adds a loss of order σ⁴ × width, which no training takes away ("the same perturbations
can cause variance explosion"). Noise on one layer at a time has no such term ("independent
layer-wise perturbations … allow for explicit regularization without variance explosion").
Anti-PGD on deep linear sensing (a 6 × 6 matrix of rank 1, 24 measurements) of width 8, 32, 128 and
of depth 2, 3, 5 at width 16, and on a student with its teacher (two layers of ReLU) of width 8,
32, 128: noise from the first step on, on all layers with σ, on all with σ/√depth, on one layer
after the other with σ, or in units of each filter; and GD. The mean training loss under noise over
the last quarter explodes if it is more than doubled from the narrowest to the widest (from depth 2
to 5), seed by seed. Regularisation: at z test loss, trace and, of linear networks, nuclear norm of
the product below GD's; and test loss under noise on one layer, compared with that under σ/√depth on
all, whose regulariser is the same to first order. Settings were chosen on seeds below FRESH.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import FAILS, HOLDS, LEVEL, UNDECIDED, Claim, compare_ratio, smaller
from antipgd.paper.results import Results, Values
from antipgd.paper.simulation.problems import Setting
from antipgd.paper.simulation.spec import Run, make_run

SHOWS = (
    "Mean training loss under noise over the last quarter of the steps, and test loss at z, "
    "against width and depth: geometric means of {seeds} seeds with two standard errors. Noise on "
    "all layers at once, on all with σ/√depth, on one after the other, in units of each filter."
)
SEEDS = 10
FRESH = 1000
TWICE = 2.0
MARGIN = 0.1
STEPS = 2_000
ALL, SHARED, ONE, FILTER, GD = "all", "σ/√depth", "one", "filter", "GD"
NOISY = (ALL, SHARED, ONE, FILTER)
KEYS = {ALL: "all", SHARED: "shared", ONE: "one", FILTER: "filter"}
SAID = {ALL: "noise on all layers", SHARED: "noise of σ/√depth on all layers",
        ONE: "noise on one layer after the other", FILTER: "noise in units of filters"}  # fmt: skip
COLOURS = {ALL: "#c2402a", SHARED: "#c27c00", ONE: "#1f6fb4", FILTER: "#7a4fa3", GD: "#555555"}


class Family(NamedTuple):
    """Networks that differ in one size."""

    words: str
    problem: str
    size: str
    sizes: tuple[int, ...]
    fixed: dict[str, Setting]
    lr: float
    sigma: float
    of_filters: float  # σ in units of filters

    def settings(self, size: int) -> dict[str, Setting]:
        return {**self.fixed, self.size: size}

    def depth(self, size: int) -> int:
        return int(self.settings(size).get("depth", 2))


FAMILIES = {
    "width": Family("deep linear, against width", "deep_linear", "width", (8, 32, 128),
                    {"depth": 2}, 0.02, 0.1, 0.4),
    "depth": Family("deep linear, against depth", "deep_linear", "depth", (2, 3, 5),
                    {"width": 16}, 0.02, 0.1, 0.4),
    "relu": Family("student and teacher, against width", "student_teacher", "hidden",
                   (8, 32, 128), {"teacher": 2, "n": 60, "test": 500}, 0.05, 0.08, 0.25),
}  # fmt: skip


def _arm(family: Family, size: int, arm: str) -> dict[str, Any]:
    sigma = {SHARED: family.sigma / family.depth(size) ** 0.5, FILTER: family.of_filters, GD: 0.0}
    shape = {ONE: {"layers": "one"}, FILTER: {"relative": "filter"}}
    method = "gd" if arm == GD else "anti"
    return {"method": method, "sigma": sigma.get(arm, family.sigma), **shape.get(arm, {})}


def _run(family: Family, size: int, arm: str, seed: int) -> Run:
    return make_run(
        family.problem, family.settings(size), lr=family.lr, steps=STEPS, seed=seed, measure=(0,),
        relax=False, average=STEPS // 4, **_arm(family, size, arm),
    )  # fmt: skip


def runs(seeds: int) -> list[Run]:
    found = [
        _run(family, size, arm, seed)
        for family in FAMILIES.values()
        for size in family.sizes
        for arm in (*NOISY, GD)
        for seed in range(FRESH, FRESH + seeds)
    ]
    return list({run.name: run for run in found}.values())  # two families share a network


def _final(
    results: Results, family: Family, size: int, arm: str, measure: str, place: str
) -> Values:
    wanted = {"layers": "all", "relative": "", **_arm(family, size, arm)}
    return results.final(measure, place, problem=family.problem, **family.settings(size), **wanted)


def _under_noise(results: Results, family: Family, size: int, arm: str) -> Values:
    return _final(results, family, size, arm, "train_loss", "average")


def _explosions(results: Results, key: str) -> list[Claim]:
    """Whether the loss under noise is more than doubled from the smallest to the largest."""
    family, found = FAMILIES[key], []
    small, large = family.sizes[0], family.sizes[-1]
    for arm in NOISY:
        least, most = (_under_noise(results, family, size, arm) for size in (small, large))
        quantity = f"training loss under noise, {family.size} {{}} over {family.size} {{}}"
        if arm in (ALL, SHARED):
            found.append(
                smaller(f"layerwise.explodes_{key}_{KEYS[arm]}", f"{family.words}: {SAID[arm]}: "
                        f"the loss is more than doubled from {small} to {large}", "Conclusion",
                        quantity.format(small, large), least, most, 1 / TWICE)
            )  # fmt: skip
        else:
            found.append(
                smaller(f"layerwise.stays_{key}_{KEYS[arm]}", f"{family.words}: {SAID[arm]}: the "
                        f"loss is less than doubled from {small} to {large}", "Conclusion",
                        quantity.format(large, small), most, least, TWICE)
            )  # fmt: skip
    return found


def _beside_gd(results: Results, key: str) -> list[Claim]:
    """Noise on one layer after the other beside none, at z."""
    family, found = FAMILIES[key], []
    measures = {"test_loss": "test loss", "trace": "trace"}
    if family.problem == "deep_linear":
        measures["watched"] = "nuclear norm"
    for size in family.sizes:
        for measure, words in measures.items():
            ours, theirs = (_final(results, family, size, arm, measure, "z") for arm in (ONE, GD))
            found.append(
                smaller(f"layerwise.{measure}_{key}_{size}", f"{family.words}, {family.size} "
                        f"{size}: {SAID[ONE]} ends with a lower {words} than GD", "Conclusion",
                        f"{words} at z", ours, theirs)
            )  # fmt: skip
    return found


def _beside_all(results: Results, key: str) -> list[Claim]:
    """Beside noise on all layers, with a regulariser that is the same to first order."""
    family = FAMILIES[key]

    def test_loss(size: int, arm: str) -> Values:
        return _final(results, family, size, arm, "test_loss", "z")

    return [
        compare_ratio(f"layerwise.beside_{key}_{size}", f"(ours) {family.words}, {family.size} "
                      f"{size}: {SAID[ONE]} ends with a lower test loss than {SAID[SHARED]}",
                      "Conclusion", "test loss at z", test_loss(size, ONE),
                      test_loss(size, SHARED), MARGIN)
        for size in family.sizes
    ]  # fmt: skip


def claims(results: Results) -> list[Claim]:
    return [
        claim
        for key in FAMILIES
        for judge in (_explosions, _beside_gd, _beside_all)
        for claim in judge(results, key)
    ]


def words(claims: Sequence[Claim]) -> str:
    """The answer, from what was judged."""
    if not claims:
        return ""
    by_id = {claim.id.partition(".")[2]: claim for claim in claims}

    def grown(kind: str, arm: str) -> str:
        key = f"{'stays' if arm in ('one', 'filter') else 'explodes'}_{kind}_{arm}"
        claim = by_id[key]
        if claim.unit:
            return "until runs diverge"
        grows = claim.value if key.startswith("stays") else 1 / claim.value
        return f"{grows:.2g} ×"

    def among(start: str, verdict: str) -> str:
        some = [claim for name, claim in by_id.items() if name.startswith(start)]
        return f"{sum(claim.verdict == verdict for claim in some)} of {len(some)}"

    sizes = {key: f"{f.size} {f.sizes[0]} to {f.sizes[-1]}" for key, f in FAMILIES.items()}
    grew = "; ".join(
        f"{FAMILIES[key].words.partition(',')[0]}, {sizes[key]}: {grown(key, 'all')} with "
        f"noise on all layers, {grown(key, 'shared')} with σ/√depth on all, "
        f"{grown(key, 'one')} on one after the other, {grown(key, 'filter')} in units of "
        f"filters"
        for key in FAMILIES
    )
    return (
        f"Noise on all layers at once, or on one at a time? The training loss under noise grows, "
        f"{grew}. That noise on all layers explodes with size: {among('explodes', HOLDS)} hold, "
        f"{among('explodes', FAILS)} fail; that noise on one layer, or in units of filters, does "
        f"not: {among('stays', HOLDS)} hold, {among('stays', FAILS)} fail. Beside GD, noise on one "
        f"layer at a time ends with a lower test loss in {among('test_loss', HOLDS)} networks, a "
        f"lower trace in {among('trace', HOLDS)}, a lower nuclear norm in "
        f"{among('watched', HOLDS)}. Beside σ/√depth on all layers its test loss is lower in "
        f"{among('beside', HOLDS)}, level within {MARGIN:.0%} in {among('beside', LEVEL)}, higher "
        f"in {among('beside', FAILS)}, undecided in {among('beside', UNDECIDED)}."
    )


def _series(results: Results, family: Family, arm: str, measure: str, place: str) -> figures.Series:
    logs = []
    for size in family.sizes:
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.log(_final(results, family, size, arm, measure, place))
        logs.append(found[np.isfinite(found)])
    mean = np.array([one.mean() if len(one) else np.nan for one in logs])
    error = np.array([2 * one.std(ddof=1) / len(one) ** 0.5 if len(one) > 1 else np.nan
                      for one in logs])  # fmt: skip
    low, high = np.exp(mean - error), np.exp(mean + error)
    return figures.Series(np.array(family.sizes, float), np.exp(mean), arm, COLOURS[arm], "-", "o",
                          low, high, bars=True)  # fmt: skip


def plot(results: Results) -> figures.Figure:
    panels = []
    for family in FAMILIES.values():
        noisy = [_series(results, family, arm, "train_loss", "average") for arm in NOISY]
        clean = [_series(results, family, arm, "test_loss", "z") for arm in (*NOISY, GD)]
        ticks = [(float(size), str(size)) for size in family.sizes]
        panels += [
            figures.Panel(f"{family.words}: {title}", series, family.size, "", "log", "log",
                          ticks=ticks)
            for title, series in (("loss under noise", noisy), ("test loss at z", clean))
        ]  # fmt: skip
    return figures.draw(panels, columns=2, width=5.2)
