"""Who loses least, and whether flatness is why: of made-up numbers whose answer is known."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from antipgd.paper.fight.problem import ACCURACY, LOSS
from antipgd.paper.fight.surviving import (
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
    assert flat_against(_survivors(methods=3), "int4") is None
    assert "too few methods" in paragraph(_survivors(methods=3))


def test_the_paragraph_names_who_loses_least():
    assert "bits method 0 (9.9" in paragraph(_survivors(1))
    assert "bits method 5 (" in paragraph(_survivors(-1))


def test_damage_is_in_points_or_nats():
    assert _survivors(kind=ACCURACY).damage("int4")["method 0"].mean() == pytest.approx(10, abs=0.2)
    assert _survivors(kind=LOSS).damage("int4")["method 0"].mean() == pytest.approx(0.1, abs=2e-3)


def test_a_method_without_a_column_has_a_dash_and_takes_no_part():
    survivors = _survivors()
    del survivors.methods["method 2"]["scaled_trace"]
    row = next(line for line in markdown(survivors).splitlines() if "method 2" in line)
    assert row.split(" | ")[8] == "–"
    found = flat_against(survivors, "int4")
    assert found is not None
    assert found.methods == 5


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
