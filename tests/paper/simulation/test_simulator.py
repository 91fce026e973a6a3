"""The simulator against `antipgd.torch`, the reference, and itself in other company."""

import os
import subprocess
import sys
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
import torch

import antipgd.torch
from antipgd.noise import draws, reference, stream_key
from antipgd.noise.stream import key_indices
from antipgd.paper.record import Failure
from antipgd.paper.simulation.blocks import LANE_FIELDS, LANES, Block, blocks_of
from antipgd.paper.simulation.compiled import CompiledStepper
from antipgd.paper.simulation.cost import Pace, cost, seconds_needed
from antipgd.paper.simulation.local import run_local
from antipgd.paper.simulation.problems import PROBLEMS, Problem, QuadraticRegression, codes, name_of
from antipgd.paper.simulation.simulate import simulate
from antipgd.paper.simulation.spec import Run, make_run
from antipgd.paper.simulation.stepping import NumpyStepper

REGRESSION, VALLEY = "quadratic_regression", "widening_valley"


def run(method="anti", problem=REGRESSION, settings=None, **changes):
    values = {"lr": 0.1, "sigma": 0.05, "steps": 200, "seed": 0} | changes
    return make_run(problem, settings or {}, method, **values)


def block(*runs):
    return Block((*runs, *[None] * (LANES - len(runs))))


def after(stepper, step):
    stepper.advance(step)
    return stepper.weights()


# -- the same trajectory as everything else ---------------------------------------------------


def regression_data(seed):
    spec = run(seed=seed)
    return spec.make_data(spec.make_problem())


@pytest.mark.parametrize("law", ["gaussian", "rademacher"])
@pytest.mark.parametrize("method", ["anti", "pgd", "antisgd", "label"])
def test_the_simulator_does_what_torch_with_autograd_does(method, law):
    """200 steps in float64. The batch and label draws are handed to torch from the stream."""
    seed, steps, lr = 7, 200, 0.02
    data = regression_data(seed)
    X, y = torch.tensor(data.X), torch.tensor(data.y)
    w = torch.nn.Parameter(torch.ones(100, dtype=torch.float64))
    optimizer = torch.optim.SGD([("w", w)], lr=lr)
    taps = {"pgd": (1,)}.get(method, (1, -1))
    if method != "label":
        antipgd.torch.attach(optimizer, sigma=0.05, seed=seed, law=law, taps=taps)
    for step in range(1, steps + 1):
        rows, labels = torch.arange(40), y
        if method == "antisgd":
            rows = torch.tensor(key_indices(stream_key(seed, "rows", "batch"), step, 3, 40))
        if method == "label":
            shift = draws(seed, "labels", step, 0, 40, law, purpose="label").astype(np.float64)
            labels = y + 0.05 * torch.tensor(shift)
        optimizer.zero_grad()
        ((X[rows] @ (w * w) - labels[rows]) ** 2).mean().div(4).backward()
        optimizer.step()
    batch = {"batch": 3} if method == "antisgd" else {}
    ours = after(CompiledStepper(block(run(method, lr=lr, seed=seed, law=law, **batch))), steps)[0]
    assert np.abs(ours - w.detach().numpy()).max() < 1e-9
    wrong_seed = after(CompiledStepper(block(run(method, lr=lr, seed=8, law=law, **batch))), steps)
    assert np.abs(wrong_seed[0] - w.detach().numpy()).max() > 1e-3


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("anti", {}),
        ("pgd", {}),
        ("gd", {}),
        ("noise", {"taps": (1, -0.5, -0.5), "law": "student-t:5"}),
        ("anti", {"schedule": "cosine:0:50", "start": 3, "stop": 60}),
    ],
)
def test_the_simulator_does_what_the_reference_does(method, changes):
    spec = run(method, **changes)
    problem, data = spec.make_problem(), regression_data(0)
    base = reference.gradient_step(lambda w: problem.gradient(w[None], data)[0], 0.1)
    noise = {
        "draw": lambda k: draws(0, "w", k, 0, 100, spec.law or "gaussian"),
        "sigma": lambda k: spec.sigma * spec.factor(k),
        "taps": spec.taps or (1, -1),
    }
    for n, w in enumerate(reference.perturbed(base, np.ones(100), 100, **noise)):
        if n in (1, 2, 3, 50, 100):
            mine = after(CompiledStepper(block(spec)), n)[0]
            assert np.abs(mine - w).max() < 1e-12, n
    z = reference.clean(w, 100, **noise) if spec.has_clean_weights else None
    record = simulate(block(run(method, **(changes | {"steps": 100}))))[0]
    if z is not None:
        np.testing.assert_allclose(record.weights["z"], z, atol=1e-12)
    assert ("z" in record.weights) == (method != "pgd")


def mixed_block(**changes):
    return block(
        run("gd", **changes),
        run("pgd", **changes),
        run("anti", **changes),
        run("label", **(changes | {"sigma": 1.0})),
        run("noise", taps=(1, -0.5, -0.5), **changes),
        run("anti", **(changes | {"lr": 5.0})),  # diverges at step 6
        run("anti", start=10, stop=100, **changes),
    )


@pytest.mark.parametrize("law", ["gaussian", "rademacher", "laplace"])
def test_compiled_steps_are_the_numpy_steps(law):
    slow, fast = (make(mixed_block(law=law)) for make in (NumpyStepper, CompiledStepper))
    for step in (1, 2, 5, 50, 130):
        a, b = after(slow, step)[:7], after(fast, step)[:7]
        np.testing.assert_array_equal(slow.diverged_at, fast.diverged_at)
        assert np.delete(np.abs(a - b), 5, axis=0).max() < 1e-12
    assert fast.diverged_at[5] == 6


def test_compiled_batches_are_the_numpy_batches():
    for batch in (1, 10, 77):
        runs = [run(m, batch=batch, lr=0.01) for m in ("sgd", "antisgd")]
        slow, fast = NumpyStepper(block(*runs)), CompiledStepper(block(*runs))
        assert np.abs(after(slow, 60) - after(fast, 60))[:2].max() < 1e-12


def test_more_dimensions_than_a_chunk_of_draws():
    spec = run(problem=VALLEY, settings={"d": 9000}, lr=0.01)
    slow, fast = NumpyStepper(block(spec)), CompiledStepper(block(spec))
    assert np.abs(after(slow, 3) - after(fast, 3))[0].max() < 1e-12


def test_relaxation_is_descent_until_it_stops():
    runs = [run("anti"), run("gd"), run("sgd", lr=0.01, batch=None)]
    for spec in runs:
        slow, fast = NumpyStepper(block(spec)), CompiledStepper(block(spec))
        W, going = np.ones((LANES, 100)), np.arange(LANES) == 0
        (a, n), (b, m) = (s.relax(W, going, lambda steps: None) for s in (slow, fast))
        assert abs(n[0] - m[0]) <= 1
        np.testing.assert_allclose(a[0], b[0], rtol=1e-9)
        problem, data = spec.make_problem(), regression_data(0)
        first, last = (np.linalg.norm(problem.gradient(w[None], data)) for w in (W[0], b[0]))
        assert last < 1e-8 * (1 + first)
    diverging = run("gd", lr=5.0)
    for make in (NumpyStepper, CompiledStepper):
        _, steps = make(block(diverging)).relax(W, going, lambda steps: None)
        assert steps[0] == -1


# -- a run's bits are its own ------------------------------------------------------------------


def many(count, **changes):
    methods = ("anti", "pgd", "gd", "sgd", "label", "antisgd", "noise")
    return [
        run(
            methods[i % 7], lr=0.01 + 0.001 * (i // 7), seed=i % 3, steps=50, relax=False, **changes
        )
        for i in range(count)
    ]


def lines(runs, threads):
    return {record.run.name: record.to_json() for record in run_local(runs, threads)}


def test_bits_do_not_depend_on_company_or_threads():
    wanted = many(64)
    alone = {run.name: lines([run], 1)[run.name] for run in wanted[:12]}
    for company in (wanted[:7], wanted[5:12], wanted, wanted[::-1]):
        for threads in (1, 2):
            found = lines(company, threads)
            assert len(found) == len(company)
            for name in found.keys() & alone.keys():
                assert found[name] == alone[name]


@dataclass(frozen=True)
class Quartic(Problem):
    """A user's own problem, with products of matrices that round differently in other shapes."""

    d: int = 37
    fails_at: int = -1

    @property
    def examples(self):
        return 11

    def data(self, rng):
        return rng.standard_normal((11, self.d))

    def start(self, rng):
        return rng.standard_normal(self.d)

    def loss(self, W, data):
        return ((W @ data.T) ** 4).mean(axis=1) / 4

    def gradient(self, W, data, rows=None, label_shift=None):
        if self.fails_at >= 0 and len(W) and abs(W).max() > self.fails_at:
            raise ArithmeticError(f"weights above {self.fails_at}")
        X = data if rows is None else data[rows]
        return (W @ X.T) ** 3 @ X / len(X)


# Another value of every field of a run. One that is missing here fails the test below.
OTHER_VALUES = {
    "problem": "matrix_sensing", "settings": (("d", 9),), "method": "pgd", "lr": 0.02,
    "sigma": 0.2, "taps": (1.0, -0.5), "law": "uniform", "batch": 3, "seed": 1, "steps": 30,
    "measure": (0, 5, 20), "schedule": "linear:0:20", "start": 3, "stop": 12,
    "leave": (0.0, 1e9), "relax": False, "noisy": "u", "momentum": 0.25, "nesterov": True,
    "optimizer": "adam", "hold": 2, "antithetic": True, "average": 7,
    "uncorrelated": 5, "order": "shuffled", "layers": "one", "relative": "filter",
}  # fmt: skip


def test_a_block_ignores_no_field_of_a_run():
    base = make_run(
        "widening_valley", {"d": 5}, "noise", lr=0.01, sigma=0.1, steps=20, seed=0, momentum=0.5
    )
    assert OTHER_VALUES.keys() == {one.name for one in fields(Run)}
    for name, value in OTHER_VALUES.items():
        other = replace(base, **{name: value})
        blocks = blocks_of([base, other], compiled=True)
        if name not in LANE_FIELDS:
            assert len(blocks) == 2, name
        elif name == "law":
            assert len(blocks) == 2  # of one law each
        elif name != "method":  # which is the name of what taps, batch and labels do
            assert len(blocks) == 1, name
            ends = [record.weights["w"] for record in run_local([base, other], 1)]
            assert ends[0] != ends[1], name


def test_bits_of_a_numpy_problem_do_not_depend_on_company_either():
    name = name_of(Quartic)
    runs = [
        run("anti", problem=name, lr=0.001 * i, seed=i % 2, steps=20, relax=False)
        for i in range(1, 40)
    ]
    together = lines(runs, 2)
    for spec in runs[:8]:
        assert lines([spec], 1)[spec.name] == together[spec.name]
    lanes = {lane for b in blocks_of(runs, compiled=False) for lane, _ in b.runs}
    assert len(lanes) > 4


@pytest.mark.slow
def test_bits_do_not_depend_on_the_threads_of_blas():
    """Measurements and data use BLAS, which sums differently on one and on two threads."""
    code = """
from antipgd.paper.simulation.local import run_local
from antipgd.paper.simulation.spec import Run, make_run
few = {"lr": 0.01, "sigma": 0.05, "steps": 20, "seed": 0}
runs = [make_run("quadratic_regression", {"d": 300, "n": 200}, m, **few) for m in ("gd", "anti")]
for record in sorted(run_local(runs, 1), key=lambda record: record.run.name):
    print(record.to_json())
"""
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"OPENBLAS_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    }
    assert len(printed) == 1


@dataclass(frozen=True)
class Still(QuadraticRegression):
    """A built-in problem with another gradient: the parent's kernel must not be used for it."""

    def gradient(self, W, data, rows=None, label_shift=None):
        return np.zeros_like(W)


def test_a_subclass_of_a_built_in_problem_is_a_problem_of_its_own():
    spec = run("gd", problem=name_of(Still), steps=5)
    (record,) = run_local([spec], 1)
    assert record.weights["w"] == (1.0,) * 100


@dataclass(frozen=True)
class Unknown(QuadraticRegression):
    """Registered, and with a kernel of which compiled code knows nothing."""

    def compiled(self, data):
        return super().compiled(data)._replace(code=len(codes.KERNELS))


def test_a_problem_unknown_to_the_kernels_fails(monkeypatch):
    monkeypatch.setitem(PROBLEMS, "unknown", Unknown)
    (failure,) = run_local([run("gd", problem="unknown", steps=5)], 1)
    assert isinstance(failure, Failure)
    assert "unknown has a kernel of number 6, which is not compiled; accepted" in failure.reason


@dataclass(frozen=True)
class Careful(Quartic):
    def gradient(self, W, data, rows=None, label_shift=None):
        assert np.isfinite(W).all()
        assert len(W) == LANES
        factor = 1.0 if label_shift is None else 1.0 + 1e-9
        return factor * super().gradient(W, data, rows)


def test_a_users_gradient_sees_finite_rows_and_the_company_does_not_show():
    name = name_of(Careful)
    gd = run("gd", problem=name, lr=0.001, steps=20)
    others = [
        run("label", problem=name, lr=0.001, steps=20),
        run("gd", problem=name, lr=9.0, steps=20),
    ]
    alone, together = lines([gd], 1), lines([gd, *others], 1)
    assert len(together) == 3
    assert alone[gd.name] == together[gd.name]


def test_methods_share_data_start_and_draws_and_seeds_do_not():
    a, b = (after(CompiledStepper(block(run("anti", lr=1e-9, seed=s))), 1)[0] - 1 for s in (0, 1))
    c = after(CompiledStepper(block(run("pgd", lr=1e-9))), 1)[0] - 1
    np.testing.assert_allclose(a, c, atol=1e-6)
    np.testing.assert_allclose(a, 0.05 * draws(0, "w", 1, 0, 100), atol=1e-6)
    assert np.abs(a - b).max() > 0.01
    assert np.abs(regression_data(0).X - regression_data(1).X).max() > 0.1


# -- what happens to runs ----------------------------------------------------------------------


def test_a_run_that_diverges_is_frozen_and_the_others_go_on():
    records = simulate(mixed_block())
    lost = records[5]
    assert (lost.status, lost.diverged_at) == ("diverged", 6)
    assert lost.points[-1][0] < 6
    assert np.isfinite(lost.weights["w"]).all()
    assert "relaxed" not in lost.weights
    for record in (*records[:5], records[6]):
        assert record.status == "ok"
        assert record.points[-1][1] == "relaxed"


@pytest.mark.parametrize("stepper", [NumpyStepper, CompiledStepper])
def test_leaving_an_interval_ends_a_run(stepper):
    D, alpha, d = 1.0, 0.25, 100
    changes = {
        "problem": VALLEY, "settings": {"d": d, "D": D}, "law": "rademacher", "lr": alpha / D,
        "sigma": 0.03, "leave": (alpha * D, D / alpha), "steps": 5000,
    }  # fmt: skip
    pair = block(run("pgd", **changes), run("anti", **changes))
    going = stepper(pair)
    going.advance(5000)
    watched = pair.problem.watch(going.weights())
    assert watched[0] >= 4.0
    assert watched[1] <= 0.25
    pgd, anti = going.left_at[:2]
    assert 0 < pgd < anti <= 5000
    before = stepper(pair)
    before.advance(int(pgd) - 1)
    assert before.left_at[0] == 0
    assert before.weights()[0] @ before.weights()[0] < 4.0 + 1
    records = simulate(pair)
    assert [r.status for r in records] == ["left high", "left low"]
    assert [r.left_at for r in records] == [pgd, anti]
    assert records[0].points[-1][:2] == (pgd, "relaxed")
    assert [step for step, place, *_ in records[0].points if place == "w"][-1] == pgd


def test_measurements_are_those_of_the_problem():
    record = simulate(block(run("anti", measure=(10, 40))))[0]
    assert [(step, place) for step, place, *_ in record.points] == [
        (0, "w"), (0, "z"), (10, "w"), (10, "z"), (40, "w"), (40, "z"), (200, "w"), (200, "z"),
        (200, "relaxed"),
    ]  # fmt: skip
    problem, data = run().make_problem(), regression_data(0)
    for place in ("w", "z", "relaxed"):
        w = np.array(record.weights[place])[None]
        row = next(row for row in record.points[::-1] if row[1] == place)
        expected = [problem.loss(w, data), problem.test_loss(w, data), problem.trace(w, data)]
        expected = [*np.ravel(expected), np.linalg.norm(w)]
        np.testing.assert_allclose(row[2:6], expected, rtol=1e-12, atol=1e-20)
        assert row[6] is None  # nothing is watched here


@pytest.mark.parametrize("stepper", [NumpyStepper, CompiledStepper])
def test_noise_on_one_part_of_the_weights(stepper):
    changes = {"problem": VALLEY, "settings": {"d": 5}, "noisy": "v", "steps": 7}
    pair = block(run("anti", **changes), run("pgd", **changes))
    W = after(stepper(pair), 1)
    np.testing.assert_array_equal(W[0][:-1], pair.start[:-1])
    assert W[0][-1] == 0.05 * np.float64(draws(0, "w", 1, 5, 6)[0])
    record = simulate(pair)[0]
    assert record.points[-1][6] == pytest.approx(pair.problem.watch(W[:1])[0], rel=0.1)
    z, w = np.array(record.weights["z"]), np.array(record.weights["w"])
    np.testing.assert_array_equal(z[:-1], w[:-1])
    assert z[-1] != w[-1]


def test_the_rows_of_sgd_are_uniform():
    rows = np.concatenate([key_indices(123, step, 7, 40) for step in range(1, 3001)])
    counts = np.bincount(rows, minlength=40)
    assert len(counts) == 40
    expected = len(rows) / 40
    assert abs(((counts - expected) ** 2 / expected).sum() - 39) < 5 * np.sqrt(2 * 39)


def test_a_failing_run_fails_alone():
    name = name_of(Quartic)
    runs = [
        run("anti", problem=name, settings={"fails_at": 4}, lr=lr, sigma=sigma, relax=False)
        for lr, sigma in ((1e-6, 0.0), (1e-6, 3.0), (2e-6, 0.0))
    ]
    results = list(run_local(runs, 1))
    failed = [r for r in results if isinstance(r, Failure)]
    assert [f.run.sigma for f in failed] == [3.0]
    assert failed[0].reason == "ArithmeticError: weights above 4"
    assert "gradient" in failed[0].traceback
    assert len(results) == 3


def test_the_time_needed_grows_with_the_steps():
    short, long = [run(steps=1000)], [run(steps=100_000)]
    assert seconds_needed(long) > 10 * seconds_needed(short) > 0


@pytest.mark.parametrize(
    ("problem", "settings", "methods", "changes"),
    [
        ("matrix_sensing", {}, "gd pgd anti label", {"lr": 0.001, "sigma": 0.1}),
        ("matrix_sensing", {"n": 7, "rank": 2}, "sgd antisgd", {"lr": 0.001, "batch": 10}),
        ("one_hidden_unit", {"v": 0.3}, "gd pgd anti", {"leave": (0.5, 0.9)}),
        ("one_hidden_unit", {"m": 3, "samples": 40}, "label pgd", {}),
        ("one_hidden_unit", {"samples": 40, "v": 0.3}, "antisgd", {"batch": 7, "noisy": "u"}),
        ("student_teacher", {"n": 45}, "gd pgd anti label", {}),
        ("student_teacher", {"n": 9, "hidden": 6}, "antisgd sgd", {"batch": 50, "momentum": 0.5}),
        ("digits_network", {"n": 37, "hidden": 7}, "gd pgd anti", {"momentum": 0.9}),
        ("digits_network", {"n": 37, "loss_name": "cross_entropy"}, "sgd antisgd", {"batch": 5}),
    ],
)
def test_compiled_steps_of_the_other_problems(problem, settings, methods, changes):
    runs = [run(m, problem=problem, settings=settings, **changes) for m in methods.split()]
    slow, fast = NumpyStepper(block(*runs)), CompiledStepper(block(*runs))
    for step in (1, 2, 60):
        a, b = after(slow, step)[: len(runs)], after(fast, step)[: len(runs)]
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)
    np.testing.assert_array_equal(slow.left_at, fast.left_at)
    assert slow.left_at.any() == ("leave" in changes)
    assert (np.abs(a - slow.block.start).max(axis=1) > 0.01).all()


@dataclass(frozen=True)
class Misshapen(Problem):
    wrong: str = ""

    @property
    def examples(self):
        return 4

    def start(self, rng):
        return np.ones(5)

    def _given(self, name, value):
        return value.sum() if self.wrong == name else value

    def loss(self, W, data):
        return self._given("loss", (W**2).sum(axis=1))

    def gradient(self, W, data, rows=None, label_shift=None):
        g = 2 * W
        if rows is not None:
            g = self._given("gradient of rows", g * (len(rows) / 2))
        return self._given("gradient", g)

    def test_loss(self, W, data):
        return self._given("test_loss", W[:, 0])

    def trace(self, W, data):
        return self._given("trace", W[:, 0])

    def watch(self, W):
        return self._given("watch", W[:, 0])


@pytest.mark.parametrize("wrong", ["loss", "gradient", "test_loss", "trace", "watch"])
def test_functions_that_return_a_wrong_shape_are_named(wrong):
    each = r"\(3, 5\), one gradient" if wrong == "gradient" else r"\(3,\), one number"
    message = rf"Misshapen.{wrong} must return shape {each} per row; got \(\)"
    with pytest.raises(ValueError, match=message):
        simulate(block(run(problem=name_of(Misshapen), settings={"wrong": wrong})))
    simulate(block(run(problem=name_of(Misshapen), steps=3)))


def test_a_wrong_shape_for_mini_batches_is_named_too():
    changes = {"problem": name_of(Misshapen), "settings": {"wrong": "gradient of rows"}}
    with pytest.raises(ValueError, match=r"Misshapen.gradient must return shape \(3, 5\)"):
        simulate(block(run("sgd", batch=2, **changes)))
    simulate(block(run("gd", steps=3, **changes)))


def test_relaxations_cost_full_gradients_at_most(monkeypatch):
    def seconds(block):
        return 1.0 if block.shared.batch is None and not len(block.taps) else 0.01

    monkeypatch.setattr("antipgd.paper.simulation.cost._seconds_per_step", seconds)
    assert cost([run("sgd", steps=10)]) == pytest.approx((0.1, 100_000))
    assert cost([run("anti", steps=10)]) == pytest.approx((0.1, 100_000))
    assert cost([run("sgd", steps=10, relax=False)]).relaxations == 0


def test_weighted_ticks_add_up_to_what_is_expected(monkeypatch):
    """Also for blocks with fewer runs than lanes; a kind of block is timed once."""
    timed = []

    def seconds(block):
        timed.append(block.shared.problem)
        return {"quadratic_regression": 4.0, "widening_valley": 0.5}[block.shared.problem]

    monkeypatch.setattr("antipgd.paper.simulation.cost._seconds_per_step", seconds)
    many = [run("gd", lr=0.01 * (i + 1), steps=10, relax=False) for i in range(11)]
    valley = [run("anti", problem="widening_valley", lr=0.01 * i, sigma=0.1, steps=20, relax=False)
              for i in (1, 2, 3)]  # fmt: skip
    runs = [*many, *valley]
    pace, ticks = Pace(), []
    expected = pace.expect(runs, show=False)
    assert expected == 2 * 10 * 4.0 + 20 * 0.5  # eleven runs are two blocks
    assert sorted(timed) == ["quadratic_regression", "widening_valley"]
    results = list(run_local(runs, 2, ticks.append, pace.of_run))
    assert len(results) == 14
    assert sum(ticks) == pytest.approx(expected)
    leaving = [replace(one, leave=(1e-9, 1e9)) for one in valley]  # ends early as a rule
    assert pace.expect(leaving, show=False) == pytest.approx(20 * 0.5 / 5)
