"""The finder for σ against closed forms and plain counts."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from antipgd.flatness import FoundSigma, StabilityWarning, TooFewStepsWarning, find_sigma
from antipgd.flatness.rehearsing import rate_of
from antipgd.paper.experiments.find_sigma import found_sigma
from antipgd.paper.simulation.spec import make_run
from antipgd.theory.finder import FRACTION
from antipgd.torch import attach, perturb
from antipgd.torch.advice import TriedSigma, was_tried


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def bowl(w, h):
    return lambda: (h * w**2).sum() / 2 + 1.0


@pytest.fixture(scope="module")
def regression():
    """The quadratic regression of the page, seed 200, at the end of GD."""
    run = make_run("quadratic_regression", {}, "gd", lr=0.1, steps=1, seed=200)
    problem = run.make_problem()
    data, w = run.make_data(problem), run.make_start(problem)
    for _ in range(2000):
        w = w - 0.1 * problem.gradient(w[None], data)[0]
    X, y = torch.tensor(data.X), torch.tensor(data.y)
    weights = torch.tensor(w)
    return problem, data, weights, lambda: ((X @ weights**2 - y) ** 2).mean() / 4


def test_a_bowl_has_the_sigma_of_its_trace():
    w, h = torch.zeros(200, dtype=torch.float64), torch.linspace(0.5, 1.5, 200).double()
    grid = np.geomspace(1e-3, 1, 7)
    found = find_sigma(bowl(w, h), [w], lr=0.1, scale=2.0, grid=grid, draws=64)
    assert found.low < math.sqrt(2 * FRACTION * 2.0 / 200) < found.high
    assert found.high / found.low < 1.1
    assert (found.loss, found.here, found.scale, found.share) == (1.0, 1.0, 2.0, FRACTION)
    assert found.judged == "loss"
    assert [row[0] for row in found.rows] == list(grid)


def test_the_scale_is_the_loss_of_zero_weights_less_the_loss_here(regression):
    problem, data, weights, loss = regression
    found = find_sigma(loss, {"w": weights})
    at_zero = problem.loss(np.zeros((1, 100)), data)[0]
    assert found.scale == pytest.approx(at_zero - found.loss, rel=1e-12)
    # The page's experiment is the same rule with other draws.
    assert found.sigma == pytest.approx(found_sigma(200), rel=0.1)
    assert found.low < found_sigma(200) < found.high


def test_relative_sigma_is_in_units_of_each_tensor():
    w = torch.full((100,), 0.5, dtype=torch.float64)
    v = torch.full((100,), 0.01, dtype=torch.float64)
    target, grid = w.clone(), np.geomspace(1e-3, 1, 7)

    def loss():
        return ((w - target) ** 2).sum() / 2 + v.sum() * 0

    found = find_sigma(loss, [w, v], lr=0.1, scale=1.0, grid=grid, relative=True, draws=64)
    assert found.relative
    assert found.low < math.sqrt(2 * FRACTION / 100) / 0.5 < found.high


def rehearsed_plainly(problem, data, w, sigma, lr, momentum, bound):
    """The mean cost of ten steps of Anti-PGD, in NumPy with its own draws; steps to a bound."""
    rng, steps = np.random.default_rng(0), []
    here = problem.loss(w[None], data)[0]
    for _ in range(20):
        z, velocity, costs = w.copy(), 0.0, []
        while len(costs) < 10 or np.mean(costs[-10:]) > bound:
            noisy = z + sigma * rng.standard_normal(w.shape)
            costs.append(problem.loss(noisy[None], data)[0] - here)
            velocity = momentum * velocity + problem.gradient(noisy[None], data)[0]
            z = z - lr * velocity
        steps.append(len(costs))
    return np.mean(steps), np.std(steps)


@pytest.mark.parametrize("momentum", [0.8, 0.9])
def test_the_steps_are_those_of_anti_pgd(regression, momentum):
    problem, data, weights, loss = regression
    found = find_sigma(loss, {"w": weights}, lr=0.1, momentum=momentum)
    target = found.share * found.scale
    mean, spread = rehearsed_plainly(problem, data, weights.numpy(), found.sigma, 0.1, momentum,
                                     target / 2)  # fmt: skip
    assert abs(found.steps - mean) < 3 * spread + 3
    assert 0 < found.left < 1


def test_a_cost_that_nothing_takes_back():
    w = torch.zeros(200, dtype=torch.float64)
    found = find_sigma(bowl(w, torch.ones(200).double()), [w], lr=0.01, scale=2.0, steps=1000)
    assert (found.steps, found.enough) == (None, None)  # a bowl is as steep everywhere
    assert 0.7 < found.left < 1.5
    assert f"in 200 steps from here it came to {found.left:.0%} of its cost" in str(found)
    with pytest.warns(TooFewStepsWarning, match="100 steps are too few .* takes more than 200 to"):
        find_sigma(bowl(w, torch.ones(200).double()), [w], lr=0.01, scale=2.0, steps=100)


def test_a_sigma_that_breaks_training_is_lowered():
    """A learning rate at which Anti-PGD is unstable, by rehearsal."""
    model, batches = classifier()

    def loss(batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    slow = find_sigma(loss, model, batches, lr=0.05, momentum=0.9)
    fast = find_sigma(loss, model, batches, lr=5.0, momentum=0.9)
    assert slow.lowered is None
    assert fast.lowered == slow.sigma
    assert fast.sigma < 0.9 * fast.lowered
    assert fast.low / fast.sigma == pytest.approx(slow.low / slow.sigma)
    assert f"lowered from {slow.sigma:.3g}; which breaks training" in repr(fast)


def test_a_rate_that_breaks_training_by_itself_is_said_and_sigma_stays():
    w = torch.zeros(50, dtype=torch.float64)
    loss = bowl(w, torch.ones(50).double())
    calm = find_sigma(loss, [w], lr=0.1, scale=2.0)
    with pytest.warns(StabilityWarning, match="breaks at this learning rate, also with noise 32"):
        found = find_sigma(loss, [w], lr=30.0, scale=2.0, steps=100)
    assert found.breaks
    assert not calm.breaks
    assert (found.sigma, found.lowered) == (calm.sigma, None)
    assert (found.steps, found.enough) == (None, None)
    assert "training breaks at this learning rate" in str(found)


@pytest.mark.parametrize(
    "options",
    [{"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "dampening": 0.9}, {"dampening": 0.5}],
)
def test_a_rehearsed_step_is_that_of_the_optimizer(options):
    w = double(1.0, -2.0).requires_grad_()
    optimizer = torch.optim.SGD([w], lr=0.1, **options)
    rate = rate_of(None, 0.0, optimizer)
    w.grad = double(0.0, 0.0)
    optimizer.step()  # the first one, which torch does not dampen
    z, velocity = w.detach().clone(), torch.zeros(2).double()
    for _ in range(5):
        w.grad = w.detach().clone()
        velocity, way = rate.move(velocity, z)
        z = z - way
        optimizer.step()
    assert torch.allclose(z, w.detach())


def test_a_learning_rate_that_a_schedule_has_lowered_is_taken_as_it_began():
    optimizer = torch.optim.SGD([double(1.0).requires_grad_()], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    for _ in range(3):
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["lr"] < 0.05
    assert rate_of(None, 0.0, optimizer).lr == 0.1


def test_an_optimizer_without_learning_rate_is_not_rehearsed():
    class Own(torch.optim.Optimizer):
        def step(self, closure=None):
            """Nothing."""

    w = torch.zeros(50, dtype=torch.float64).requires_grad_()
    found = find_sigma(bowl(w, torch.ones(50).double()), [w], optimizer=Own([w], {}), scale=2.0)
    assert (found.steps, found.left) == (None, None)


def test_a_loss_under_autocast_sees_the_noise():
    """Whose cast weights torch keeps for as long as there is an autocast around it."""
    model, batches = classifier()
    kept = torch.autocast("cpu", torch.bfloat16)

    def loss(batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def cast(batch):
        with torch.autocast("cpu", torch.bfloat16):
            return loss(batch)

    plain = find_sigma(loss, model, batches, draws=8)
    assert find_sigma(cast, model, batches, draws=8).sigma == pytest.approx(plain.sigma, rel=0.2)
    assert find_sigma(kept(loss), model, batches, draws=8).sigma == pytest.approx(
        plain.sigma, rel=0.2
    )


def test_errors_may_be_a_plain_number():
    model, batches = classifier()

    def loss(batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def errors(batch):
        return (model(batch[0]).argmax(1) != batch[1]).double().mean().item()

    read = find_sigma(loss, model, batches, draws=8)
    found = find_sigma(loss, model, batches, errors=errors, scale=read.scale, draws=8)
    assert found.sigma == pytest.approx(read.sigma)


@pytest.mark.parametrize("rare", [0, 1])
def test_how_classes_are_numbered_does_not_matter(rare):
    """One class has a tenth of the examples, whichever its number."""
    model = nn.Linear(2, 2, bias=False).double()
    x = torch.cat([double(3.0, 0.0).expand(9, 2), double(0.0, 3.0).expand(1, 2)])
    y = torch.tensor([1 - rare] * 9 + [rare])
    with torch.no_grad():
        model.weight.copy_(torch.eye(2).double() if rare else torch.eye(2).double().flip(0))
    found = find_sigma(lambda b: nn.functional.cross_entropy(model(b[0]), b[1]), model, [(x, y)])
    assert found.scale == 0.5


def test_planned_steps_that_are_too_few(regression):
    _, _, weights, loss = regression
    with pytest.warns(TooFewStepsWarning, match=r"2 steps are too few at sigma .* takes \d+ to"):
        found = find_sigma(loss, {"w": weights}, lr=0.1, momentum=0.9, steps=2)
    assert found.enough is False
    assert "the 2 planned are too few" in str(found)
    assert find_sigma(loss, {"w": weights}, lr=0.1, momentum=0.9, steps=found.steps).enough
    assert find_sigma(loss, {"w": weights}, lr=0.1, momentum=0.9).enough is None
    assert find_sigma(loss, {"w": weights}, steps=10).enough is None


def classifier():
    """Four classes of points that two layers fit, 64 examples in two unequal batches."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    x = torch.randn(64, 6)
    y = (x @ torch.randn(6, 4)).argmax(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert bool((model(x).argmax(1) == y).all())
    return model, [(x[:40], y[:40]), (x[40:], y[40:])]


@torch.no_grad()
def wrong_under_noise(model, batches, sigma, draws=400):
    """Plainly: noise on a copy of the weights, answers counted."""
    own = [p.clone() for p in model.parameters()]
    wrong, generator = 0.0, torch.Generator().manual_seed(5)
    for _ in range(draws):
        for p, w in zip(model.parameters(), own, strict=True):
            p.copy_(w + sigma * torch.randn(w.shape, generator=generator))
        wrong += sum(float((model(x).argmax(1) != y).sum()) for x, y in batches) / 64 / draws
    for p, w in zip(model.parameters(), own, strict=True):
        p.copy_(w)
    return wrong


def test_a_classifier_is_judged_by_its_answers():
    """σ where as many answers are wrong as the rule says, by an independent count."""
    model, batches = classifier()
    entropy = nn.CrossEntropyLoss()
    found = find_sigma(lambda b: entropy(model(b[0]), b[1]), model, batches, draws=128)
    chance = 3 / 4  # zero weights name one of the four classes by chance
    assert (found.judged, found.here, found.share) == ("errors", 0.0, FRACTION)
    assert found.scale == pytest.approx(chance)
    counted = wrong_under_noise(model, batches, found.sigma)
    assert counted == pytest.approx(FRACTION * chance, rel=0.15)
    assert wrong_under_noise(model, batches, found.sigma / 1.5) < 0.8 * counted
    assert f"{FRACTION * chance:.1%} more answers are wrong than the 0.0% without" in str(found)


def test_what_the_user_counts_goes_first():
    model, batches = classifier()

    def loss(batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def wrong(batch):
        return (model(batch[0]).argmax(1) != batch[1]).float().mean()

    read = find_sigma(loss, model, batches)
    counted = find_sigma(loss, model, batches, errors=wrong, scale=read.scale)
    assert counted.sigma == pytest.approx(read.sigma, rel=1e-6)
    by_loss = find_sigma(loss, model, batches, errors=False)
    assert (by_loss.judged, by_loss.share) == ("loss", FRACTION)
    assert by_loss.sigma != read.sigma
    by_hand = find_sigma(lambda b: -(model(b[0]).log_softmax(1) * nn.functional.one_hot(b[1], 4))
                         .sum(1).mean(), model, batches)  # fmt: skip
    assert by_hand.judged == "loss"
    with pytest.raises(ValueError, match="errors=True, but the loss calls none of torch's losses"):
        find_sigma(lambda b: model(b[0]).square().mean(), model, batches, errors=True)
    with pytest.raises(TypeError, match=r"errors must be a function of a batch, .* got 'yes'"):
        find_sigma(loss, model, batches, errors="yes")


def test_the_finder_says_what_the_noise_will_warn_of():
    """A network so sure of itself that σ is larger than its weights."""
    w = torch.full((20, 20), 0.01, dtype=torch.float64)
    found = find_sigma(lambda: 0.5 * w.square().sum(), [w], scale=1.0)
    optimizer = torch.optim.SGD([w.requires_grad_()], lr=0.1)
    with pytest.warns(UserWarning, match="drowns") as said:
        attach(optimizer, sigma=float(found.sigma)).stop()
    assert str(said[0].message).split(" times that of")[0] in found.drowns
    assert found.drowns in str(found)


def test_a_sigma_that_was_found_is_not_warned_of_again(caplog):
    """It was tried at trained weights; those of a new network are smaller."""
    w = torch.full((20, 20), 0.01, dtype=torch.float64)
    found = find_sigma(lambda: 0.5 * w.square().sum(), [w], scale=1.0)
    for sigma in (
        found,
        found.sigma,
        copy.deepcopy(found.sigma),
        pickle.loads(pickle.dumps(found)).sigma,
    ):
        optimizer = torch.optim.SGD([w.requires_grad_()], lr=0.1)
        with caplog.at_level("INFO", "antipgd"):
            noise = attach(optimizer, sigma=sigma)  # where warnings are errors
        assert "It was found at trained weights, which are larger" in caplog.text
        caplog.clear()
        assert type(noise.sigma) is float
        assert noise.sigma == found.sigma
        noise.stop()


def test_answers_that_the_loss_may_mask_out_are_said_to_count(caplog):
    model, batches, loss = network()

    def masked(batch):
        losses = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
        return (losses * (batch[1] > 0)).mean()

    def share(batch):
        wrong = (model(batch[0]).argmax(1) != batch[1]) & (batch[1] > 0)
        return wrong.double().mean()

    with caplog.at_level("INFO", "antipgd"):
        found = find_sigma(masked, model, batches)
    assert "every answer counts" in caplog.text
    assert "give errors=" in str(found)
    assert "give errors=" in found.table
    for given, options in ((loss, {}), (masked, {"errors": share, "scale": 0.5}),
                           (masked, {"errors": False})):  # fmt: skip
        other = find_sigma(given, model, batches, **options)
        assert other.masked is None
        assert "give errors=" not in str(other)


@pytest.mark.parametrize("relative", [False, True])
def test_a_sigma_is_used_in_the_units_it_was_found_in(relative):
    w = torch.full((20, 20), 0.5, dtype=torch.float64)
    found = find_sigma(lambda: 0.5 * w.square().sum(), [w], scale=1.0, relative=relative)
    optimizer = torch.optim.SGD([w.requires_grad_()], lr=0.1)
    message = f"was found with relative={relative}; got relative={not relative}"
    with pytest.raises(ValueError, match=message):
        attach(optimizer, sigma=found.sigma, relative=not relative)
    attach(optimizer, sigma=found.sigma, relative=relative).stop()


def fresh(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def rms_by_name(model):
    return {name: float(p.detach().square().mean().sqrt()) for name, p in model.named_parameters()}


def carried(noise, model):
    """σ of what each parameter takes next, by name."""
    own = {id(m.parameter): sigma for m, sigma in zip(noise.members, noise.sigmas(), strict=True)}
    return {name: own[id(p)] for name, p in model.named_parameters()}


def by_perturb(model, optimizer, **options):
    return perturb(model, optimizer, **options)


def by_attach(model, optimizer, **options):
    return attach(optimizer, **options)


@pytest.mark.parametrize("begin", [by_perturb, by_attach])
@pytest.mark.parametrize("names", [True, False])
def test_a_relative_sigma_keeps_the_units_it_was_found_in(begin, names, recwarn):
    trained, batches, loss = network()
    found = find_sigma(loss, trained, batches, relative=True)
    new = fresh(1)
    with torch.no_grad():
        new[0].bias.zero_()
    named = new.named_parameters() if names else new.parameters()
    optimizer = torch.optim.SGD(named, lr=0.1)
    wanted = {name: found.sigma * size for name, size in rms_by_name(trained).items()}
    for given in (found, pickle.loads(pickle.dumps(found)).sigma):
        noise = begin(new, optimizer, sigma=given, relative=True)
        assert carried(noise, new) == pytest.approx(wanted, rel=1e-3)
        state = optimizer.state_dict()
        noise.stop()
    optimizer = torch.optim.SGD(new.named_parameters() if names else new.parameters(), lr=0.1)
    optimizer.load_state_dict(state)
    noise = begin(new, optimizer, sigma=found, relative=True)  # which goes on with what is saved
    assert carried(noise, new) == pytest.approx(wanted, rel=1e-3)
    noise.stop()
    noise = begin(new, optimizer, sigma=0.1, relative=True)  # one's own is of the tensors it is on
    own = {name: 0.1 * size for name, size in rms_by_name(new).items()}
    assert carried(noise, new) == pytest.approx(own, rel=1e-3)
    noise.stop()
    assert not recwarn.list


def test_a_relative_sigma_on_other_tensors_is_warned_of():
    trained, batches, loss = network()
    found = find_sigma(loss, trained, batches, relative=True)
    other = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match=r"found on other tensors than '0.weight' \(3 of 4\)"):
        noise = perturb(other, optimizer, found, relative=True)
    own = rms_by_name(other) | {"2.bias": rms_by_name(trained)["2.bias"]}
    wanted = {name: found.sigma * size for name, size in own.items()}
    assert carried(noise, other) == pytest.approx(wanted, rel=1e-3)
    noise.stop()


def test_without_names_and_in_groups_units_are_nobodys():
    """Layers of equal shapes in another order: by place each would have another one's units."""
    trained, batches, loss = network()
    found = find_sigma(loss, trained, batches, relative=True)
    new = fresh(1)
    groups = [{"params": [new[2].weight, new[2].bias]}, {"params": [new[0].weight, new[0].bias]}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    with pytest.warns(UserWarning, match=r"found on other tensors than .* \(4 of 4\)"):
        noise = attach(optimizer, found, relative=True)
    wanted = {name: found.sigma * size for name, size in rms_by_name(new).items()}
    assert carried(noise, new) == pytest.approx(wanted, rel=1e-3)
    noise.stop()


def test_zeros_that_are_unfrozen_keep_the_units_they_were_given():
    trained, batches, loss = network()
    found = find_sigma(loss, trained, batches, relative=True)
    new = fresh(1)
    with torch.no_grad():
        new[0].bias.zero_()
    new[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(new.parameters(), lr=0.1)
    noise = perturb(new, optimizer, found, relative=True)
    new[0].bias.requires_grad_(True)
    new(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    wanted = {name: found.sigma * size for name, size in rms_by_name(trained).items()}
    assert carried(noise, new) == pytest.approx(wanted, rel=1e-3)
    noise.stop()


def test_the_finder_and_the_noise_agree(recwarn):
    """What it finds draws no warning from `attach` or `perturb`, of either kind of σ."""
    model, batches = classifier()

    def loss(batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    for relative in (False, True):
        found = find_sigma(loss, model, batches, relative=relative)
        assert found.drowns is None
        for begin in (perturb, lambda model, optimizer, **options: attach(optimizer, **options)):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            noise = begin(model, optimizer, sigma=found.sigma, relative=relative)
            noise.stop()
    assert not recwarn.list


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    batches = [(torch.randn(n, 6), torch.randint(3, (n,))) for n in (8, 5)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for _ in range(60):
        for x, y in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model, batches, lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_a_network_is_left_as_it_was():
    model, batches, loss = network()
    before = [p.detach().clone() for p in model.parameters()]
    gradients = [p.grad.clone() for p in model.parameters()]
    state = torch.get_rng_state()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    found = find_sigma(loss, model, batches, optimizer=optimizer)
    for p, w, g in zip(model.parameters(), before, gradients, strict=True):
        assert torch.equal(p, w)
        assert torch.equal(p.grad, g)
    assert torch.equal(torch.get_rng_state(), state)
    assert found == find_sigma(loss, model, batches, lr=0.2, momentum=0.9)
    mean = sum(len(y) * float(loss((x, y)).detach()) for x, y in batches) / 13
    assert found.loss == pytest.approx(mean, rel=1e-6)
    assert found.steps > 0


def test_adaptive_optimizers_have_other_steps():
    model, batches, loss = network()
    found = find_sigma(loss, model, batches, optimizer=torch.optim.AdamW(model.parameters()))
    assert (found.steps, found.left) == (None, None)
    assert found.sigma > 0


def test_the_table_and_its_picture(regression):
    _, _, weights, loss = regression
    found = find_sigma(loss, {"w": weights}, lr=0.1, momentum=0.9)
    assert isinstance(found, FoundSigma)
    lines = found.table.splitlines()
    assert len(lines) == 1 + len(found.rows) + 3
    assert lines[-3].startswith(f"sigma {found.sigma:.3g} [{found.low:.3g}, ")
    assert (
        lines[-2] == f"there the loss is higher by 0.05 of {found.scale:.3g}, from {found.loss:.3g}"
    )
    assert lines[-1] == f"{found.steps} steps from here halve that"
    assert str(found) == "\n".join(lines[-3:])
    figure = found.plot()
    assert f"sigma {found.sigma:.3g}" in figure.axes[0].get_title()


def test_a_finding_in_a_line_and_for_a_log(regression):
    _, _, weights, loss = regression
    found = find_sigma(loss, {"w": weights}, lr=0.1, momentum=0.9)
    assert repr(found) == f"FoundSigma({'; '.join(found.table.splitlines()[-3:])})"
    assert len(repr(found)) < 200
    logged = found.metrics()
    assert all(type(value) is float for value in logged.values())
    assert (logged["sigma"], logged["sigma_low"]) == (found.sigma, found.low)
    assert (logged["steps"], logged["loss"]) == (found.steps, found.loss)
    assert logged.keys() - find_sigma(loss, {"w": weights}).metrics().keys() == {"steps", "left"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr must be a finite number > 0; got -1.0"),
        ({"lr": 0.1, "momentum": 1.0}, "momentum must be a finite number >= 0 and < 1; got 1.0"),
        ({"lr": 0.1, "draws": 1}, "draws must be a whole number >= 2; got 1"),
        ({"lr": 0.1, "steps": 0}, "steps must be a whole number >= 1; got 0"),
        ({"lr": 0.1, "share": 0}, "share must be a finite number > 0 and <= 1; got 0"),
        ({"lr": 0.1, "scale": -2.0}, "scale must be a finite number > 0; got -2.0"),
        ({"lr": 0.1, "grid": [1.0]}, "grid must hold at least 2"),
        ({"lr": 0.1}, "with all weights at zero, 1, is no scale for the loss here, 4"),
        ({"lr": 0.1, "scale": 1.0, "grid": [1e-6, 1e-5]}, "give a grid= that reaches higher"),
    ],
)
def test_mistakes(options, message):
    w = double(1.0, 2.0)
    before = w.clone()
    with pytest.raises(ValueError, match=message):
        find_sigma(bowl(w, double(2.0, 1.0)), [w], **options)
    assert torch.equal(w, before)


def test_groups_of_different_rates_are_refused():
    w, v = double(1.0).requires_grad_(), double(2.0).requires_grad_()
    optimizer = torch.optim.SGD([{"params": [w], "lr": 0.1}, {"params": [v], "lr": 0.2}])
    with pytest.raises(ValueError, match=r"differ in \(lr, momentum\)"):
        find_sigma(lambda: (w * v).sum(), [w, v], optimizer=optimizer)
    with pytest.raises(ValueError, match=r"give lr= or optimizer=, not both; got lr=0.1"):
        find_sigma(lambda: (w * v).sum(), [w, v], optimizer=optimizer, lr=0.1)


def test_a_sigma_was_tried_for_the_noise_it_was_tried_for():
    """Warnings are silent about a σ that was tried; by filter, element or layer it was not."""
    sigma = TriedSigma(0.1, True)
    assert was_tried(sigma, True, "all")
    assert not was_tried(0.1, True, "all")
    assert not was_tried(sigma, "filter", "all")
    assert not was_tried(sigma, True, "one")
