"""In which order mini-batches visit the examples."""

from itertools import permutations

import numpy as np
import pytest

from antipgd.paper.experiments.batches import predicted
from antipgd.paper.simulation.blocks import LANES, Block
from antipgd.paper.simulation.compiled import CompiledStepper
from antipgd.paper.simulation.local import run_local
from antipgd.paper.simulation.orders import visited_rows
from antipgd.paper.simulation.spec import make_run
from antipgd.paper.simulation.stepping import NumpyStepper


def run(order, **changes):
    settings = {"lr": 0.01, "batch": 4, "steps": 60, "seed": 3, "relax": False} | changes
    return make_run("quadratic_regression", {}, "sgd", order=order, **settings)


@pytest.mark.parametrize("order", ["shuffled", "mirrored"])
def test_every_example_once_in_an_epoch_wherever_one_begins(order):
    rows = visited_rows(order, 3, 40, 4, 0, 60)
    assert rows.shape == (60, 4)
    epochs = rows.reshape(6, 40)
    for visited in epochs:
        assert sorted(visited) == list(range(40))
    assert (epochs[0] != epochs[2]).any()
    assert (epochs[0][::-1] == epochs[1]).all() == (order == "mirrored")
    assert (epochs[1][::-1] != epochs[2]).any()
    for first, last in ((0, 1), (9, 11), (13, 60), (20, 20)):
        np.testing.assert_array_equal(visited_rows(order, 3, 40, 4, first, last), rows[first:last])
    assert (visited_rows(order, 4, 40, 4, 0, 60) != rows).any()


@pytest.mark.parametrize("order", ["replacement", "shuffled", "mirrored"])
def test_compiled_steps_take_the_rows_of_the_slow_ones(order):
    block = Block((run(order), *(None,) * (LANES - 1)))
    slow, fast = NumpyStepper(block), CompiledStepper(block)
    for step in (1, 9, 11, 37, 60):
        slow.advance(step)
        fast.advance(step)
        np.testing.assert_allclose(fast.weights()[0], slow.weights()[0], rtol=1e-11)


def test_sgd_on_the_rows_that_are_said():
    spec = run("mirrored")
    problem = spec.make_problem()
    data, w = spec.make_data(problem), spec.make_start(problem)
    for rows in visited_rows("mirrored", 3, 40, 4, 0, 60):
        w = w - 0.01 * problem.gradient(w[None], data, rows)[0]
    (record,) = run_local([spec], 1)
    np.testing.assert_allclose(record.weights["w"], w, rtol=1e-11)
    (other,) = run_local([run("shuffled")], 1)
    assert np.abs(np.array(other.weights["w"]) - w).max() > 1e-4


@pytest.mark.parametrize("order", ["shuffled", "mirrored"])
def test_correlations_over_all_orders(order):
    """Of four batches of one, by the mean over all 24 orders (of which two follow each other)."""
    values = np.array([3.0, -1.0, 1.5, -3.5])
    all_orders = [values[list(one)] for one in permutations(range(4))]
    total = np.zeros(4)
    for first in all_orders:
        for later in all_orders:
            second = first[::-1] if order == "mirrored" else later
            noise = np.concatenate([first, second, later])
            begins = range(8) if order == "mirrored" else range(4)  # one period
            total += [np.mean([noise[k] * noise[k + lag] for k in begins]) for lag in range(4)]
    found = total / total[0]
    for lag in (1, 2, 3):
        expected = predicted(order, 4, lag)
        if expected is not None:
            assert found[lag] == pytest.approx(expected, abs=1e-12)


def test_what_is_refused_and_what_has_no_effect():
    with pytest.raises(ValueError, match="needs batches that divide the 40 examples; got batch=3"):
        run("shuffled", batch=3)
    with pytest.raises(
        ValueError, match=r"unknown order 'sorted'; .*accepted: replacement, shuffled, mirrored"
    ):
        run("sorted")
    plain = {"lr": 0.01, "steps": 10, "seed": 0}
    assert make_run("quadratic_regression", {}, "gd", order="shuffled", **plain) == make_run(
        "quadratic_regression", {}, "gd", **plain
    )
