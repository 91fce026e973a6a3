"""Momentum, Nesterov, Adam, held and antithetic draws, and time averages of the simulator."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import antipgd.torch
from antipgd.noise import draws, reference
from antipgd.paper.simulation.blocks import LANES, Block, blocks_of
from antipgd.paper.simulation.compiled import CompiledStepper
from antipgd.paper.simulation.local import run_local
from antipgd.paper.simulation.problems import Problem, name_of
from antipgd.paper.simulation.simulate import simulate
from antipgd.paper.simulation.spec import make_run
from antipgd.paper.simulation.stepping import NumpyStepper

REGRESSION, VALLEY = "quadratic_regression", "widening_valley"
SEED, STEPS, SIGMA = 7, 150, 0.05
OPTIMIZERS = {
    "plain": ({}, lambda w, lr: torch.optim.SGD(w, lr=lr)),
    "heavy ball": ({"momentum": 0.9}, lambda w, lr: torch.optim.SGD(w, lr=lr, momentum=0.9)),
    "nesterov": (
        {"momentum": 0.7, "nesterov": True},
        lambda w, lr: torch.optim.SGD(w, lr=lr, momentum=0.7, nesterov=True),
    ),
    "adam": ({"optimizer": "adam"}, lambda w, lr: torch.optim.Adam(w, lr=lr)),
}


def run(method="anti", problem=REGRESSION, settings=None, **changes):
    values = {"lr": 0.02, "sigma": SIGMA, "steps": STEPS, "seed": SEED} | changes
    return make_run(problem, settings or {}, method, **values)


def block(*runs):
    return Block((*runs, *[None] * (LANES - len(runs))))


def after(stepper, step):
    stepper.advance(step)
    return stepper.weights()


# -- what torch does -----------------------------------------------------------------------------


class Regression(torch.nn.Module):
    """The simulator's problem for autograd."""

    def __init__(self):
        super().__init__()
        spec = run()
        data = spec.make_data(spec.make_problem())
        self.X, self.y = torch.tensor(data.X), torch.tensor(data.y)
        self.w = torch.nn.Parameter(torch.ones(100, dtype=torch.float64))

    def forward(self):
        return ((self.X @ (self.w * self.w) - self.y) ** 2).mean() / 4


def trained(model, optimizer, steps=STEPS):
    for _ in range(steps):
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
    return model.w.detach().numpy()


def simulated(**changes):
    (record,) = run_local([run(measure=(0,), relax=False, **changes)], 1)
    return {place: np.array(w) for place, w in record.weights.items()}


@pytest.mark.parametrize("hold", [1, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_noise_on_torchs_optimizers(optimizer, hold):
    """`attach` in float64: the same w, and the same z; another number of steps held, another w."""
    settings, make = OPTIMIZERS[optimizer]
    model = Regression()
    made = make([("w", model.w)], 0.02)
    noise = antipgd.torch.attach(made, sigma=SIGMA, seed=SEED, hold=hold)
    w = trained(model, made).copy()
    ours = simulated(hold=hold, **settings)
    assert np.abs(ours["w"] - w).max() < 1e-10
    with noise.clean():
        assert np.abs(ours["z"] - model.w.detach().numpy()).max() < 1e-10
    assert np.abs(simulated(hold=hold + 1, **settings)["w"] - w).max() > 1e-3


@pytest.mark.parametrize("hold", [1, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_antithetic_draws_in_torchs_passes(optimizer, hold):
    """`perturb`, whose parameters are z."""
    settings, make = OPTIMIZERS[optimizer]
    model = Regression()
    made = make(model.named_parameters(), 0.02)
    antipgd.torch.perturb(model, made, SIGMA, seed=SEED, antithetic=True, hold=hold)
    z = trained(model, made)
    assert np.abs(simulated(antithetic=True, hold=hold, **settings)["z"] - z).max() < 1e-10
    assert np.abs(simulated(hold=hold, **settings)["z"] - z).max() > 1e-4


def test_a_schedule_takes_the_factor_of_the_step_with_which_a_held_draw_came():
    settings = {"hold": 4, "start": 2, "stop": 99, "schedule": "linear:0:100"}
    spec = run(**settings)
    assert [spec.draw_factor(k) for k in (1, 2, 25, 26)] == [0, 0.95, pytest.approx(0.03), 0]
    expected = [spec.sigma * spec.draw_factor(k) for k in range(1, 30)]
    np.testing.assert_array_equal(block(spec).sigmas(0, 30)[:, 0], [0, *expected])
    model = Regression()
    made = torch.optim.SGD([("w", model.w)], lr=0.02)
    antipgd.torch.attach(made, sigma=SIGMA, seed=SEED, hold=4, schedule=spec.factor)
    assert np.abs(simulated(**settings)["w"] - trained(model, made)).max() < 1e-10


def test_a_draw_is_held_and_then_negated():
    spec = run(lr=1e-12, hold=2, antithetic=True, steps=9)
    first, second = (SIGMA * draws(SEED, "w", k, 0, 100).astype(float) for k in (1, 2))
    stepper = CompiledStepper(block(spec))
    for step, carried in enumerate((first, first, -first, -first, second, second, -second), 1):
        np.testing.assert_allclose(after(stepper, step)[0] - 1, carried, atol=1e-9)


def two_noises(later):
    """30 steps of PGD and then Anti-PGD as the reference has them: w and z at the end."""
    spec = run()
    problem = spec.make_problem()
    data = spec.make_data(problem)
    base = reference.gradient_step(lambda w: problem.gradient(w[None], data)[0], 0.02)
    first = {"draw": lambda k: draws(SEED, "w", k, 0, 100), "sigma": SIGMA, "taps": (1.0,)}
    second = {"draw": later, "sigma": SIGMA}
    *_, w = reference.perturbed(base, spec.make_start(problem), 30, **first)
    *_, w = reference.perturbed(base, w, STEPS - 30, **second)
    return w, reference.clean(w, STEPS - 30, **second)


def test_uncorrelated_draws_stay_and_later_ones_are_taken_back():
    w, z = two_noises(lambda k: draws(SEED, "w", k + 30, 0, 100))
    ours = simulated(uncorrelated=30)
    assert np.abs(ours["w"] - w).max() < 1e-10
    assert np.abs(ours["z"] - z).max() < 1e-10
    for other in (0, 29, 31):
        assert np.abs(simulated(uncorrelated=other)["w"] - w).max() > 1e-4


def test_torch_goes_from_one_to_the_other():
    """The first noise is left in the weights, the second has a seed of its own."""
    model = Regression()
    made = torch.optim.SGD([("w", model.w)], lr=0.02)
    noise = antipgd.torch.attach(made, sigma=SIGMA, seed=SEED, taps=(1.0,))
    trained(model, made, 30)
    noise.stop(remove=False)
    noise = antipgd.torch.attach(made, sigma=SIGMA, seed=SEED + 1)
    trained(model, made, STEPS - 30)
    w, z = two_noises(lambda k: draws(SEED + 1, "w", k, 0, 100))
    assert np.abs(w - model.w.detach().numpy()).max() < 1e-10
    noise.stop()
    assert np.abs(z - model.w.detach().numpy()).max() < 1e-10


def test_uncorrelated_steps_add_up_their_draws():
    spec = run(lr=1e-12, uncorrelated=2, steps=5)
    first, second, third, fourth = (
        SIGMA * draws(SEED, "w", k, 0, 100).astype(float) for k in (1, 2, 3, 4)
    )
    stepper = CompiledStepper(block(spec))
    walked = first + second
    for step, carried in enumerate((first, walked, walked + third, walked + fourth), 1):
        np.testing.assert_allclose(after(stepper, step)[0] - 1, carried, atol=1e-9)
    assert run("pgd", uncorrelated=2) == run("pgd")
    assert run(uncorrelated=2).name != run(uncorrelated=0).name
    with pytest.raises(ValueError, match="uncorrelated must be"):
        run(uncorrelated=-1)


# -- compiled and slow ---------------------------------------------------------------------------


def noisy_block(**changes):
    taps = (1, -0.5, -0.5)
    return block(
        run("anti", **changes),
        run("noise", taps=taps, **changes),
        run("anti", start=10, stop=100, **changes),
        run("pgd", schedule="cosine:0:50", **changes),
        run("anti", **(changes | {"lr": 1e6})),
    )


DRAWN = [
    {}, {"hold": 3}, {"antithetic": True}, {"hold": 2, "antithetic": True}, {"uncorrelated": 5},
    {"uncorrelated": 6, "hold": 3},
]  # fmt: skip


@pytest.mark.parametrize("drawn", DRAWN)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_compiled_steps_are_the_slow_ones_wherever_one_stops_on_the_way(optimizer, drawn):
    """To 1e-12, the gradients of both being summed in another order; a lane that diverges apart."""
    settings, _ = OPTIMIZERS[optimizer]
    slow, fast = (
        make(noisy_block(**settings, **drawn)) for make in (NumpyStepper, CompiledStepper)
    )
    for step in (1, 2, 5, 6, 50, 131):
        a, b = after(slow, step)[:4], after(fast, step)[:4]
        assert np.abs(a - b).max() < 1e-12 * (1 + np.abs(a).max())
    np.testing.assert_array_equal(slow.diverged_at, fast.diverged_at)
    assert (fast.diverged_at[4] > 0) == (optimizer != "adam")  # whose steps are bounded
    at_once = after(CompiledStepper(noisy_block(**settings, **drawn)), 131)
    np.testing.assert_array_equal(at_once[:4], b)


@pytest.mark.parametrize("drawn", DRAWN)
def test_one_tap_alone_is_held_wherever_one_stops_on_the_way(drawn):
    slow, fast = (make(block(run("pgd", **drawn))) for make in (NumpyStepper, CompiledStepper))
    for step in (1, 2, 5, 6, 50):
        np.testing.assert_allclose(after(slow, step)[0], after(fast, step)[0], rtol=1e-12)


@pytest.mark.parametrize("settings", [settings for settings, _ in OPTIMIZERS.values()])
def test_compiled_steps_have_the_bits_of_the_slow_ones_in_the_valley(settings):
    """Where gradients are sums of one or two terms: d = 1, so that nothing is summed elsewise."""
    pair = block(*(run(m, VALLEY, {"d": 1, "v": 0.5}, lr=0.1, **settings) for m in ("gd", "anti")))
    slow, fast = after(NumpyStepper(pair), 60), after(CompiledStepper(pair), 60)
    np.testing.assert_array_equal(slow[:2], fast[:2])


def test_lanes_of_other_momenta_keep_their_bits():
    kinds = [{"momentum": b, "nesterov": n} for b in (0.3, 0.9) for n in (False, True)]
    runs = [run(m, steps=40, relax=False, **kind) for kind in [{}, *kinds] for m in ("gd", "anti")]
    together = {record.run.name: record.to_json() for record in run_local(runs, 1)}
    for one in runs:
        (alone,) = run_local([one], 1)
        assert alone.to_json() == together[one.name]
    assert len({r.partition('"points"')[2] for r in together.values()}) == len(runs)
    assert len(blocks_of(runs, compiled=True)) == 2  # with momentum and without


def test_relaxation_has_no_momentum():
    runs = [run("gd", steps=1, **settings) for settings, _ in OPTIMIZERS.values()]
    W, going = np.ones((LANES, 100)), np.arange(LANES) == 0
    for make in (NumpyStepper, CompiledStepper):
        ends = [make(block(one)).relax(W, going, lambda steps: None)[0][0] for one in runs]
        for end in ends[1:]:
            np.testing.assert_array_equal(end, ends[0])


# -- time averages -------------------------------------------------------------------------------


def means(spec):
    """Loss, norm and watched quantity averaged by hand over the weights before the last steps."""
    stepper, rows = NumpyStepper(block(spec)), []
    problem, data = stepper.block.problem, stepper.block.data
    for step in range(spec.steps):
        w = after(stepper, step)[:1]
        if step >= spec.steps - spec.average:
            rows.append((problem.loss(w, data)[0], (w**2).sum(), problem.watch(w)[0]))
    loss, norm2, watched = np.mean(rows, axis=0)
    return loss, np.sqrt(norm2), watched


@pytest.mark.parametrize(
    ("problem", "settings", "lr"),
    [
        (VALLEY, {"d": 5, "v": 0.3}, 0.1),
        (REGRESSION, {}, 0.02),
        ("matrix_sensing", {"n": 5, "rank": 2}, 0.001),
        ("one_hidden_unit", {"v": 0.3, "m": 3}, 0.05),
    ],
)
@pytest.mark.parametrize("average", [1, 40, 100])
def test_averages_are_over_every_one_of_the_last_steps(problem, settings, lr, average):
    spec = run("anti", problem, settings, lr=lr, steps=100, average=average, hold=2)
    loss, norm, watched = means(spec)
    for record in (simulate(block(spec))[0], *run_local([spec], 1)):
        *_, last = record.points
        assert last[:2] == (100, "average")
        np.testing.assert_allclose(last[2], loss, rtol=1e-10)
        assert last[3:5] == (None, None)
        np.testing.assert_allclose(last[5], norm, rtol=1e-12)
        if np.isnan(watched):
            assert last[6] is None
        else:
            np.testing.assert_allclose(last[6], watched, rtol=1e-12)


def test_no_average_where_there_is_none():
    """Of a loss that no step sees, of a run that diverged, and of runs that are not asked."""
    assert next(run_local([run("sgd", average=5)], 1)).points[-1][2] is None
    runs = [run("label", average=5), run("gd", average=5), run("gd", lr=9.0, average=5)]
    label, gd, lost = simulate(block(*runs))
    assert label.points[-1][1:3] == ("average", None)
    assert gd.points[-1][2] > 0
    assert lost.status == "diverged"
    assert {row[1] for row in lost.points} == {"w", "z"}
    assert "average" not in {row[1] for row in simulate(block(run("anti")))[0].points}


@dataclass(frozen=True)
class Bowl(Problem):
    """A problem of a user's own, without a kernel."""

    def start(self, rng):
        return np.ones(3)

    def loss(self, W, data):
        return (W**2).sum(axis=1) / 2

    def gradient(self, W, data, rows=None, label_shift=None):
        return W

    def watch(self, W):
        return W[:, 0]


def test_averages_of_a_problem_of_ones_own():
    (record,) = run_local([run("gd", name_of(Bowl), lr=0.5, steps=4, average=2)], 1)
    w = np.array([0.25, 0.125])
    expected = (np.mean(3 * w**2 / 2), None, None, np.sqrt(np.mean(3 * w**2)), np.mean(w))
    assert record.points[-1][2:] == pytest.approx(expected)


def test_averages_of_squares_beyond_all_numbers_are_infinite_without_a_warning():
    (record,) = run_local([run("gd", name_of(Bowl), lr=1e60, steps=5, average=5, relax=False)], 1)
    assert record.status == "ok"
    assert record.points[-1][5] == np.inf


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"momentum": 1}, "momentum must be a finite number >= 0 and < 1; got 1"),
        ({"momentum": -0.1}, "momentum must be a finite number >= 0 and < 1; got -0.1"),
        ({"nesterov": True}, "nesterov needs momentum > 0; got momentum=0"),
        ({"optimizer": "adam", "momentum": 0.9}, "adam has betas of its own .* got momentum=0.9"),
        ({"optimizer": "adamw"}, "unknown optimizer 'adamw'; did you mean 'adam'"),
        ({"hold": 0}, "hold must be a whole number >= 1; got 0"),
        ({"average": 0}, "average must be a whole number >= 1 and <= 150; got 0"),
        ({"average": 151}, "average must be a whole number >= 1 and <= 150; got 151"),
    ],
)
def test_bad_optimizers(changes, message):
    with pytest.raises(ValueError, match=message):
        run(**changes)


def test_averages_need_runs_that_go_to_their_end():
    with pytest.raises(ValueError, match=r"go to their end; got leave=\(0.5, 2\)"):
        run("anti", VALLEY, leave=(0.5, 2), average=3)


def test_draws_are_held_where_there_are_any_on_the_weights():
    assert run("gd", hold=3, antithetic=True) == run("gd")
    assert run("label", hold=3, antithetic=True) == run("label")
    assert run("anti", hold=3) != run("anti", antithetic=True) != run("anti")
