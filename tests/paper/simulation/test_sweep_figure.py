"""The picture of a sweep is drawn whatever its runs did: huge, tiny, equal, lost at once."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from antipgd.paper.figures import rendered
from antipgd.paper.simulation.sweep import sweep
from antipgd.paper.simulation.sweep_figure import sweep_figure
from antipgd.paper.simulation.table import COLUMNS, summary, summary_text

LARGEST = float(np.finfo(np.float64).max)
SMALLEST = 5e-324
STEPS = ([0], [1], [0, 1], [0, 1, 10, 100], [0, 2**53])
STATUSES = ("ok", "ok", "diverged", "left low", "left high")
VALUES = st.one_of(
    st.sampled_from([0.0, SMALLEST, 1e-300, 1.0, 1e269, 1e307, LARGEST, np.inf, np.nan, -1.0]),
    st.floats(width=64),
)


def rows_of(method, seed, steps, status, values, at=None):
    """What a run has in the table: infinite from where it diverged."""
    setting = ("p", method, 0.1, 0.1, "1,-1" if method == "anti" else "", "gaussian", None)
    usual = ("sgd", 0.0, False, 1, False)
    for step, five in zip(steps, values, strict=True):
        lost = at is not None and step >= at
        yield (*setting, *usual, seed, step, "w", *((np.inf,) * 5 if lost else five), status, at)


def table_of(rows):
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"batch": "Int64"})


@st.composite
def tables(draw):
    """Few different values in a table, so that equal ones meet."""
    steps = draw(st.sampled_from(STEPS))
    five = st.tuples(*[st.sampled_from(draw(st.lists(VALUES, min_size=1, max_size=3)))] * 5)
    rows = []
    for method in ("anti", "gd")[: draw(st.integers(1, 2))]:
        for seed in range(draw(st.integers(1, 3))):
            status = draw(st.sampled_from(STATUSES))
            end = draw(st.integers(1, len(steps))) if status.startswith("left") else None
            at = draw(st.sampled_from(steps)) if status == "diverged" else None
            values = [draw(five) for _ in steps[:end]]
            rows += rows_of(method, seed, steps[:end], status, values, at)
    return table_of(rows)


# Without shrinking, which draws for minutes: a table of two rows can be read as it was found.
@settings(max_examples=20, deadline=None, phases=[Phase.generate])
@given(tables())
def test_every_table_has_a_figure_and_a_summary(table):
    figure = sweep_figure(table, "made up")
    assert rendered(figure, "png").startswith(b"\x89PNG")
    for axes in figure.axes:
        assert np.isfinite(axes.get_ylim()).all()
    assert "anti" in summary_text(summary(table))


@pytest.mark.parametrize("value", [0.0, SMALLEST, 1.0, 1e269, LARGEST, np.inf, np.nan])
def test_one_value_everywhere(value):
    rows = [*rows_of("gd", 0, [0, 1], "ok", [(value,) * 5] * 2)]
    rendered(sweep_figure(table_of(rows), "one value"), "svg")


def test_runs_lost_in_the_first_step():
    rows = [row for seed in (0, 1) for row in rows_of("gd", seed, [0, 1], "diverged", ONE, 1)]
    (axes, *_) = sweep_figure(table_of(rows), "lost").axes
    assert axes.get_ylim()[0] < 1 < axes.get_ylim()[1]
    assert axes.get_yscale() == "log"


ONE = [(1.0,) * 5] * 2


def test_huge_and_finite_values_of_real_runs():
    """Two steps before the end they are 1e269, of which an axis once made infinitely many ticks."""
    table = sweep(
        "widening_valley", method=["pgd", "anti"], lr=0.1, sigma=7, steps=5, seeds=1, relax=False
    )
    largest = table["train_loss"][np.isfinite(table["train_loss"])].max()
    assert largest > 1e250
    rendered(sweep_figure(table, "huge"), "png")
