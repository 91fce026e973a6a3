"""In which order mini-batches visit the examples."""

from itertools import permutations

import numpy as np
import pytest

from antipgd.noise.orders import permutation
from antipgd.paper.experiments.batches import predicted
from antipgd.paper.simulation.balancing import PairBalance
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


PROBLEMS = {
    "quadratic_regression": ({}, 4, 0.01),
    "matrix_sensing": ({"n": 6, "rank": 2, "measurements": 15}, 3, 0.01),  # an odd number
    "student_teacher": ({"teacher": 2, "n": 60, "test": 10}, 6, 0.05),
}


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("order", ["replacement", "shuffled", "mirrored", "balanced"])
def test_compiled_steps_take_the_rows_of_the_slow_ones(order, problem):
    settings, batch, lr = PROBLEMS[problem]
    one = make_run(problem, settings, "sgd", order=order, lr=lr, batch=batch, steps=60, seed=3,
                   relax=False)  # fmt: skip
    block = Block((None, None, one, *(None,) * (LANES - 3)))
    slow, fast = NumpyStepper(block), CompiledStepper(block)
    for step in (1, 9, 11, 37, 60):
        slow.advance(step)
        fast.advance(step)
        np.testing.assert_allclose(fast.weights()[2], slow.weights()[2], rtol=1e-9, atol=1e-12)


def in_pairs(gradients, order):
    """The next order, from lists: fronts, the one without a partner, and backs turned round."""
    fronts, backs, total = [], [], 0
    for one, other in zip(order[::2], order[1::2], strict=False):
        difference = gradients[one] - gradients[other]
        if np.linalg.norm(total + difference) > np.linalg.norm(total - difference):
            one, other, difference = other, one, -difference
        total = total + difference
        fronts.append(one)
        backs.append(other)
    return fronts + list(order[2 * len(fronts) :]) + backs[::-1]


@pytest.mark.parametrize(("examples", "batch"), [(12, 1), (12, 3), (12, 4), (15, 3), (15, 5)])
def test_pair_balance_says_what_goes_to_the_front(examples, batch):
    gradients = np.random.default_rng(1).standard_normal((examples, 5))
    balance = PairBalance(7, examples, 5)
    wanted, step = list(permutation(7, 0, examples)), 0
    for _ in range(4):
        visited = []
        for _ in range(examples // batch):
            rows = balance.rows(step, batch)
            for i, row in enumerate(rows):
                balance.show(len(visited) + i, gradients[row])
            visited += list(rows)
            step += 1
        assert visited == wanted
        wanted = in_pairs(gradients, wanted)
        assert sorted(wanted) == list(range(examples))


def test_pair_balance_keeps_sums_smaller_than_shuffling_does():
    """What GraB is for: the largest sum of deviations on the way through an epoch."""
    gradients = np.random.default_rng(2).standard_normal((200, 6))
    gradients -= gradients.mean(axis=0)

    def farthest(order):
        return np.linalg.norm(np.cumsum(gradients[order], axis=0), axis=1).max()

    balance = PairBalance(7, 200, 6)
    for step in range(20 * 200):
        (row,) = balance.rows(step, 1)
        balance.show(step % 200, gradients[row])
    shuffled = np.mean([farthest(permutation(7, k, 200)) for k in range(50)])
    assert farthest(balance.order) < 0.5 * shuffled


def balanced_walk(spec):
    """SGD by hand, with the gradient of each example at the weights of its step."""
    problem = spec.make_problem()
    data, w, visited = spec.make_data(problem), spec.make_start(problem), []
    order = list(permutation(spec.seed, 0, problem.examples))
    for _ in range(spec.steps * spec.batch // problem.examples):
        gradients = np.zeros((problem.examples, len(w)))
        for begin in range(0, problem.examples, spec.batch):
            rows = np.array(order[begin : begin + spec.batch])
            for row in rows:
                gradients[row] = problem.gradient(w[None], data, np.array([row]))[0]
            w = w - spec.lr * problem.gradient(w[None], data, rows)[0]
        visited.append(order)
        order = in_pairs(gradients, order)
    return w, visited


@pytest.mark.parametrize("batch", [1, 4, 5])
def test_sgd_on_balanced_rows(batch):
    spec = run("balanced", batch=batch, steps=200 // batch)
    w, visited = balanced_walk(spec)
    (record,) = run_local([spec], 1)
    np.testing.assert_allclose(record.weights["w"], w, rtol=1e-10)
    assert len({tuple(order) for order in visited}) == 5  # no two epochs alike


def test_a_balanced_run_has_its_bits_whatever_runs_beside_it():
    runs = [run("balanced", lr=lr) for lr in (0.01, 0.02)] + [run("shuffled"), run("mirrored")]
    alone = {one.name: next(iter(run_local([one], 1))).weights["w"] for one in runs}
    together = {record.run.name: record.weights["w"] for record in run_local(runs, 2)}
    assert together == alone
    assert len(set(alone.values())) == 4


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
    known = "replacement, shuffled, mirrored, balanced"
    with pytest.raises(ValueError, match=f"unknown order 'sorted'; .*accepted: {known}"):
        run("sorted")
    plain = {"lr": 0.01, "steps": 10, "seed": 0}
    assert make_run("quadratic_regression", {}, "gd", order="shuffled", **plain) == make_run(
        "quadratic_regression", {}, "gd", **plain
    )
