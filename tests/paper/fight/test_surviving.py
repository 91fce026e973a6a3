"""Who loses least, and whether flatness is why: of made-up numbers whose answer is known."""

import re

import numpy as np
import pytest
from scipy.stats import spearmanr

from antipgd.paper.fight.problem import ACCURACY, LOSS
from antipgd.paper.fight.surviving import (
    FEWEST,
    JUDGED,
    Survivors,
    correlation,
    flat_against,
    markdown,
    panels,
    paragraph,
    spearman,
)


def _survivors(sign=1.0, methods=6, kind=ACCURACY, seeds=8):
    """Damage that is `sign` times the trace, and a little noise."""
    draw = np.random.default_rng(0)
    found = {}
    for number in range(methods):
        score = 0.9 + 0.01 * draw.normal(size=seeds)
        lost = 0.1 + sign * 0.01 * number + 0.001 * draw.normal(size=seeds)
        after = score - lost if kind == ACCURACY else score + lost
        found[f"method {number}"] = {
            "score": list(score), **{key: list(after) for key in JUDGED},
            "scaled_trace": [1.0 + number] * seeds, "seconds": [2.0] * seeds,
        }  # fmt: skip
    return Survivors("made up", kind, found)


def test_spearman_is_scipys():
    draw = np.random.default_rng(1)
    for _ in range(5):
        a, b = draw.integers(5, size=(2, 9)).astype(float)
        assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert spearman(np.ones(4), np.arange(4.0)) == 0


@pytest.mark.parametrize("kind", [ACCURACY, LOSS])
@pytest.mark.parametrize(("sign", "verdict"), [(1, "lose less"), (-1, "lose more")])
def test_flatness_is_judged_by_the_interval(kind, sign, verdict):
    found = flat_against(_survivors(sign, kind=kind), "int4")
    assert found is not None
    assert found.value == pytest.approx(sign)
    assert verdict in found.verdict


def test_noise_is_undecided():
    draw = np.random.default_rng(2)
    assert correlation(draw.random((6, 5)), draw.random((6, 5))).verdict == "undecided"


def test_few_methods_say_nothing_about_flatness():
    """Of a card of six, one of whom is out, either."""
    assert flat_against(_survivors(methods=5), "int4") is None
    said = paragraph(_survivors(methods=5))
    assert "too few methods" in said
    assert "correlation" not in said
    assert "lose less" not in said


def test_the_paragraph_names_who_loses_least_and_its_score():
    assert "bits method 5 (" in paragraph(_survivors(-1))
    said = paragraph(_survivors(1))
    assert "bits method 0 (9.9" in said
    assert re.search(r"method 0 \(9\.\S+ \[.*?\] points of 90\.\S+ \[.*?\] %", said)
    said = paragraph(_survivors(methods=3, kind=LOSS))
    assert re.search(r"method 0 \(0\.\S+ \[.*?\] nats of 0\.9\S+ \[.*?\] nats", said)


@pytest.mark.parametrize(("kind", "untrained"), [(ACCURACY, 0.1), (LOSS, 2.3)])
def test_who_learned_nothing_has_nothing_to_lose(kind, untrained):
    survivors = _survivors(methods=3, kind=kind)
    chance = untrained + 0.001 * np.random.default_rng(5).normal(size=8)
    survivors.methods["at chance"] = {key: list(chance) for key in ("score", *JUDGED)}
    assert survivors.beaten() == ["at chance"]
    said = paragraph(survivors)
    assert "not asked who loses least, for their scores are worse: at chance)" in said
    assert said.count("method 0 (") == len(JUDGED)
    assert "at chance (" not in said


def test_scores_that_are_level_or_undecided_are_not_beaten():
    survivors = _survivors(methods=1)
    score = np.array(survivors.methods["method 0"]["score"])
    wave = np.tile([1.0, -1.0], 4)
    for name, less in (("level", 0.002), ("undecided", 0.03 + 0.06 * wave), ("worse", 0.03)):
        survivors.methods[name] = {"score": list(score - less)}
    assert survivors.beaten() == ["worse"]


def test_one_seed_beats_nobody_and_no_method_none():
    assert _survivors(seeds=1).beaten() == []
    assert Survivors("made up", ACCURACY, {}).beaten() == []
    assert "nothing was measured" in paragraph(Survivors("made up", ACCURACY, {}))


def test_who_is_alone_with_its_score_is_compared_with_nobody():
    survivors = _survivors(methods=2)
    survivors.methods["method 1"]["score"] = [0.5] * 8
    assert "%) is compared with nobody" in paragraph(survivors)


def test_damage_is_in_points_or_nats():
    assert _survivors(kind=ACCURACY).damage("int4")["method 0"].mean() == pytest.approx(10, abs=0.2)
    assert _survivors(kind=LOSS).damage("int4")["method 0"].mean() == pytest.approx(0.1, abs=2e-3)


def test_a_method_without_a_column_has_a_dash_and_takes_no_part():
    survivors = _survivors(methods=7)
    del survivors.methods["method 2"]["scaled_trace"]
    row = next(line for line in markdown(survivors).splitlines() if "method 2" in line)
    assert row.split(" | ")[8] == "–"
    found = flat_against(survivors, "int4")
    assert found is not None
    assert found.methods == 6


def test_panels_have_a_point_for_each_method():
    drawn = panels(_survivors())
    assert [len(panel.series) for panel in drawn] == [6] * len(JUDGED)


def test_a_few_methods_that_have_nothing_to_do_with_each_other_decide_nothing():
    """However many seeds tell that these very methods are so: it is their choice that is chance."""
    draw, decided = np.random.default_rng(3), 0
    for trial in range(30):
        flat, lost = (np.repeat(draw.random((6, 1)), 5, axis=1) for _ in range(2))
        decided += correlation(flat, lost, trial).verdict != "undecided"
    assert decided <= 6


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 10])
def test_five_methods_are_decided_too_often_and_six_are_not(seeds, monkeypatch):
    """Their traces and damages have nothing to do with each other; seeds tell them well."""
    monkeypatch.setattr("antipgd.paper.fight.surviving.RESAMPLED", 500)
    shares = {}
    for methods in (FEWEST - 1, FEWEST):
        draw = np.random.default_rng(9)
        found = [
            correlation(*(draw.normal(size=(methods, 1)) + 0.05 * draw.normal(size=(methods, seeds))
                          for _ in range(2))).verdict
            for _ in range(500)
        ]  # fmt: skip
        shares[methods] = np.mean([verdict != "undecided" for verdict in found])
    print(f"{seeds} seeds, decided by chance:", shares)
    assert shares[FEWEST - 1] > 0.08
    assert shares[FEWEST] < 0.05
