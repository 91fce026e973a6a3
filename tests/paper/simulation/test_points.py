"""At which points gradients are taken: two-point noise and SAM in small runs."""

import numpy as np
import pytest

from antipgd.noise import draws
from antipgd.noise.stream import key_indices, stream_key
from antipgd.paper.simulation.blocks import LANES, Block, blocks_of
from antipgd.paper.simulation.compiled import CompiledStepper
from antipgd.paper.simulation.local import run_local
from antipgd.paper.simulation.orders import visited_rows
from antipgd.paper.simulation.spec import make_run
from antipgd.paper.simulation.stepping import NumpyStepper

SIGMA, LR, STEPS = 0.05, 0.05, 60


def run(method, **changes):
    problem = changes.pop("problem", "quadratic_regression")
    settings = changes.pop("settings", {})
    given = {"lr": LR, "sigma": SIGMA, "steps": STEPS, "seed": 3, "relax": False} | changes
    return make_run(problem, settings, method, **given)


def block(*runs):
    return Block((*runs, *(None,) * (LANES - len(runs))))


def by_hand(spec, take):
    """Plain descent on `take(gradient, w, σ, step)`, with momentum as torch has it."""
    problem = spec.make_problem()
    data, w = spec.make_data(problem), spec.make_start(problem)
    v = np.zeros_like(w)
    for step in range(1, spec.steps + 1):
        rows = None
        if spec.batch and spec.order == "replacement":
            rows = key_indices(stream_key(spec.seed, "rows", "batch"), step, spec.batch, 40)
        elif spec.batch:
            (rows,) = visited_rows(spec.order, spec.seed, 40, spec.batch, step - 1, step)

        def at(w, rows=rows):
            return problem.gradient(w[None], data, rows)[0]

        v = spec.momentum * v + take(at, w, spec.sigma * spec.factor(step), step)
        w = w - spec.lr * v
    return w


def both_sides(at, w, sigma, step, scale=1.0, later=0, sign=-1.0):
    away = scale * sigma * draws(3, "w", step + later, 0, len(w)).astype(np.float64)
    return (at(w + away) + at(w + sign * away)) / 2


def above(at, w, sigma, step, scale=1.0, sign=1.0):
    g = at(w)
    return at(w + sign * scale * sigma * g / (np.linalg.norm(g) + 1e-12))


CHANGES = [
    {},
    {"momentum": 0.9, "lr": 0.01},
    {"batch": 4, "lr": 0.02},
    {"batch": 4, "lr": 0.02, "order": "shuffled"},
    {"start": 20, "stop": 45},
]


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize(
    ("method", "take", "others"),
    [
        ("two_point", both_sides,
         [{"scale": 2 / 3}, {"scale": 3 / 2}, {"later": 1}, {"sign": 1.0}]),
        ("sam", above, [{"scale": 2 / 3}, {"scale": 3 / 2}, {"sign": -1.0}]),
    ],
)  # fmt: skip
def test_a_run_takes_its_gradients_where_it_says(method, take, others, changes):
    spec = run(method, **changes)
    (record,) = run_local([spec], 1)
    assert record.weights["z"] == record.weights["w"]  # nothing is added to the weights
    np.testing.assert_allclose(record.weights["w"], by_hand(spec, take), atol=1e-11)
    for wrong in others:
        other = by_hand(spec, lambda *at, wrong=wrong: take(*at, **wrong))
        assert np.abs(other - record.weights["w"]).max() > 1e-5, wrong


@pytest.mark.parametrize("method", ["two_point", "sam"])
@pytest.mark.parametrize(
    ("problem", "settings", "changes"),
    [
        ("quadratic_regression", {}, {}),
        ("quadratic_regression", {}, {"momentum": 0.9, "average": 20, "lr": 0.02}),
        ("quadratic_regression", {}, {"batch": 4, "order": "shuffled", "lr": 0.02}),
        ("quadratic_regression", {}, {"optimizer": "adam", "lr": 0.01}),
        ("widening_valley", {"d": 4, "v": 0.3}, {"leave": (0.95, 2.0)}),
        ("matrix_sensing", {}, {"lr": 0.001}),
        ("student_teacher", {"n": 45}, {"batch": 7}),
    ],
)
def test_compiled_steps_are_the_slow_ones(method, problem, settings, changes):
    specs = [run(method, problem=problem, settings=settings, **changes | {"sigma": s})
             for s in (0.0, 0.02, 0.1)]  # fmt: skip
    slow, fast = NumpyStepper(block(*specs)), CompiledStepper(block(*specs))
    for step in (1, 2, 31, STEPS):
        slow.advance(step)
        fast.advance(step)
        np.testing.assert_allclose(fast.weights()[:3], slow.weights()[:3], rtol=1e-10, atol=1e-11)
    np.testing.assert_array_equal(slow.left_at, fast.left_at)
    assert bool(slow.left_at.any()) == ("leave" in changes)
    np.testing.assert_allclose(fast.averages()[1, :3], slow.averages()[1, :3], rtol=1e-10)
    if "average" in changes:
        np.testing.assert_allclose(fast.averages()[0, :3], slow.averages()[0, :3], rtol=1e-10)
    same = "sgd" if "batch" in changes else "gd"
    plain = NumpyStepper(block(run(same, problem=problem, settings=settings, **changes)))
    plain.advance(STEPS)
    np.testing.assert_allclose(plain.weights()[0], slow.weights()[0], rtol=1e-12)  # σ = 0


@pytest.mark.parametrize("method", ["two_point", "sam"])
def test_a_lane_that_diverges_leaves_its_company_alone(method):
    wild, calm = run(method, lr=5.0), run(method)
    (alone,) = run_local([calm], 1)
    lost, kept = run_local([wild, calm], 1)
    if lost.run != wild:
        lost, kept = kept, lost
    assert lost.status == "diverged"
    assert kept.weights == alone.weights


def test_gradients_taken_elsewhere_share_no_block():
    specs = [run("gd"), run("anti"), run("two_point"), run("sam")]
    assert len(blocks_of(specs, compiled=True)) == 3


def test_only_gradients_from_elsewhere_may_have_batches_beside_sgd():
    assert (run("sam").batch, run("sam", batch=2).batch, run("two_point").batch) == (None, 2, None)
    with pytest.raises(ValueError, match="batch is for sgd, antisgd, noise, sam, two_point; got"):
        run("anti", batch=2)
