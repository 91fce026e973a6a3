"""The trace at equal loss: that of a network with multiplied logits, and its invariances."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from antipgd.flatness import (
    NotDeterministicError,
    UnreachableLossError,
    at,
    difference,
    hessian_trace,
    trace_at_equal_loss,
)

CLASSES = 3


def images(count=45, seed=0, noise=0.3):
    """Three clusters, in batches of unequal sizes."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % CLASSES
    centres = torch.randn(CLASSES, 4, generator=g, dtype=torch.float64)
    x = centres[y] + noise * torch.randn(count, 4, generator=g, dtype=torch.float64)
    return [(x[:10], y[:10]), (x[10:27], y[10:27]), (x[27:], y[27:])]


def network(bias=True, activation=nn.ReLU, norm=False, seed=1):
    layers = [nn.Linear(4, 8, bias=bias), *([nn.BatchNorm1d(8)] * norm), activation(),
              nn.Linear(8, CLASSES, bias=bias)]  # fmt: skip
    model, g = nn.Sequential(*layers).double(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.5 * torch.randn(p.shape, generator=g, dtype=torch.float64))
    return model


def train(model, steps, batches, lr=0.3):
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def mean_loss(model, batches, factor):
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    with torch.no_grad():
        return float(cross_entropy(factor * model(x), y))


class Scaled(nn.Module):
    """With the last layer's output multiplied."""

    def __init__(self, model, factor):
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, x):
        return self.factor * self.model(x)


@pytest.mark.parametrize("loss", [0.1, 0.01, 0.001])
def test_the_trace_of_a_network_with_multiplied_logits(loss):
    data = images()
    model = train(network(), 300, data)
    found = trace_at_equal_loss(model, data, loss, method="exact")
    assert found.loss == pytest.approx(loss, rel=1e-9)
    assert mean_loss(model, data, found.temperature) == pytest.approx(loss, rel=1e-9)
    assert found.own_loss == pytest.approx(mean_loss(model, data, 1.0), rel=1e-12)
    written_out = Scaled(model, found.temperature)
    exact = hessian_trace(
        lambda b: cross_entropy(written_out(b[0]), b[1]), model, data, method="exact"
    )
    assert found.trace.mean == pytest.approx(exact.mean, rel=1e-12)
    assert found.mean == pytest.approx(exact.scaled.mean, rel=1e-12)
    for wrong in (2 / 3, 3 / 2):  # another temperature is another number
        written_out.factor = wrong * found.temperature
        other = hessian_trace(
            lambda b: cross_entropy(written_out(b[0]), b[1]), model, data, method="exact"
        )
        assert found.mean != pytest.approx(other.scaled.mean, rel=0.01)


def test_slowly_by_definition():
    """Σ_l ‖w_l‖² tr_l / n_l with every second derivative of the multiplied loss, one by one."""
    data = images()
    model = train(network(), 300, data)
    found = trace_at_equal_loss(model, data, method="exact")
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    loss, total = cross_entropy(found.temperature * model(x), y), 0.0
    for p in model.parameters():
        (gradient,) = torch.autograd.grad(loss, p, create_graph=True)
        trace = sum(
            float(torch.autograd.grad(g, p, retain_graph=True)[0].reshape(-1)[k])
            for k, g in enumerate(gradient.reshape(-1))
        )
        total += float(p.detach().square().mean()) * trace
    assert found.mean == pytest.approx(total, rel=1e-10)


@pytest.mark.parametrize("factor", [0.2, 7.0])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_a_scaled_last_layer_changes_nothing(factor, activation):
    """Exactly, for every network: L(w₁, cW) at T/c is L(w₁, W) at T."""
    data = images()
    model = train(network(activation=activation), 300, data)
    before = trace_at_equal_loss(model, data, method="exact")
    raw = hessian_trace(lambda b: cross_entropy(model(b[0]), b[1]), model, data, method="exact")
    with torch.no_grad():
        for p in model[-1].parameters():
            p.mul_(factor)
    after = trace_at_equal_loss(model, data, method="exact")
    assert after.temperature == pytest.approx(before.temperature / factor, rel=1e-9)
    assert after.mean == pytest.approx(before.mean, rel=1e-8)
    assert after.trace.mean != pytest.approx(before.trace.mean, rel=0.1)  # the plain one does
    now = hessian_trace(lambda b: cross_entropy(model(b[0]), b[1]), model, data, method="exact")
    assert now.scaled.mean != pytest.approx(raw.scaled.mean, rel=0.1)  # and so at T = 1


def test_a_scaled_first_layer_of_a_homogeneous_network_changes_nothing():
    data = images()
    results = []
    for activation in (nn.ReLU, nn.Tanh):
        model = train(network(bias=False, activation=activation), 300, data)
        before = trace_at_equal_loss(model, data, method="exact").mean
        with torch.no_grad():
            model[0].weight.mul_(3.0)
        results.append(trace_at_equal_loss(model, data, method="exact").mean / before)
    assert results[0] == pytest.approx(1, rel=1e-8)
    assert results[1] != pytest.approx(1, rel=1e-2)  # tanh is not homogeneous


def test_longer_training_lowers_the_raw_trace_and_hardly_this():
    data = images()
    model, raw, equal = network(bias=False), [], []
    for steps in (1000, 9000):
        train(model, steps, data)
        raw.append(hessian_trace(lambda b: cross_entropy(model(b[0]), b[1]), model, data,
                                 method="exact").mean)  # fmt: skip
        equal.append(trace_at_equal_loss(model, data, method="exact").mean)
    assert raw[1] < 0.25 * raw[0]
    assert 0.8 < equal[1] / equal[0] < 1.25


def test_the_error_bar_is_that_of_the_scaled_trace():
    data = images()
    model = train(network(), 300, data)
    exact = trace_at_equal_loss(model, data, method="exact")
    hits = 0
    for seed in range(20):
        found = trace_at_equal_loss(model, data, method="hutchinson", max_probes=64, seed=seed)
        low, high = found.interval()
        hits += low <= exact.mean <= high
        assert found.sem == found.trace.scaled.sem > 0
    assert hits >= 16


def test_a_tolerance():
    data = images()
    model = train(network(), 300, data)
    found = trace_at_equal_loss(model, data, tolerance=0.1)
    assert found.converged
    assert trace_at_equal_loss(model, data, method="exact").converged is None


@pytest.mark.parametrize("mode", ["eval", "train", "estimated"])
def test_batch_norm_as_asked(mode):
    data = images()
    model = network(norm=True).train()
    train(model, 300, data)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = trace_at_equal_loss(model, data, 0.05, method="exact", batch_norm=mode)
    assert found.batch_norm == mode
    here = at(lambda b: cross_entropy(found.temperature * model(b[0]), b[1]), model, data,
              batch_norm=mode)  # fmt: skip
    assert here.sharpness(1e-3, draws=2).loss == pytest.approx(0.05, rel=1e-9)
    assert here.trace(method="exact").scaled.mean == pytest.approx(found.mean, rel=1e-9)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_words_in_sequences():
    """Logits of shape (examples, classes, positions), as cross_entropy takes them."""

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.out = nn.Embedding(5, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.out(self.words(x)).movedim(-1, 1)

    g = torch.Generator().manual_seed(0)
    model = Reader().double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float64))
    x = torch.randint(5, (12, 6), generator=g)
    y = x % 3
    data = [(x[:5], y[:5]), (x[5:], y[5:])]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(300):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    found = trace_at_equal_loss(model, data, method="exact")
    with torch.no_grad():
        reached = float(cross_entropy(found.temperature * model(x), y))
    assert reached == pytest.approx(0.01, rel=1e-9)


def test_batches_that_can_be_read_once():
    data = images()
    model = train(network(), 300, data)
    one = trace_at_equal_loss(model, iter(data), method="exact")
    assert one.mean == trace_at_equal_loss(model, data, method="exact").mean


def test_float32_models_reach_the_loss():
    data = images()
    model = train(network(), 300, data).float()
    data = [(x.float(), y) for x, y in data]
    found = trace_at_equal_loss(model, data, method="exact")
    assert mean_loss(model, data, found.temperature) == pytest.approx(0.01, rel=1e-4)
    double = trace_at_equal_loss(model, data, method="exact", float64=True)
    assert found.mean == pytest.approx(double.mean, rel=1e-3)
    assert next(model.parameters()).dtype == torch.float32


# What is refused


def wrong_labels(data, count):
    first, rest = data[0], data[1:]
    labels = first[1].clone()
    labels[:count] = (labels[:count] + 1) % CLASSES
    return [(first[0], labels), *rest]


def test_wrong_examples_are_counted():
    data = images()
    model = train(network(), 300, data)
    spoilt = wrong_labels(data, 4)
    with pytest.raises(UnreachableLossError, match="4 of 45 examples are classified") as refused:
        trace_at_equal_loss(model, spoilt)
    words = str(refused.value).split("the least is ")[1].split(";")[0].split(" at temperature ")
    least, best = map(float, words)
    around = [mean_loss(model, spoilt, best * f) for f in np.geomspace(0.01, 100, 401)]
    assert least == pytest.approx(min(around), rel=1e-3)
    found = trace_at_equal_loss(model, spoilt, 1.05 * least, method="exact")
    assert found.loss == pytest.approx(1.05 * least, rel=1e-9)
    assert found.temperature < best  # the branch that comes from chance


def test_worse_than_chance():
    data = images()
    model = train(network(), 300, data)
    inverted = Scaled(model, -1.0)
    with pytest.raises(ValueError, match="45 of 45 examples are classified wrongly"):
        trace_at_equal_loss(inverted, data)


def test_ties_are_no_right_answers():
    model = nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
    x = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match="1 of 2 examples are classified wrongly") as refused:
        trace_at_equal_loss(model, [(x, torch.tensor([0, 1]))])
    assert f"the least is {math.log(2) / 2:.4g}" in str(refused.value)


@pytest.mark.parametrize("loss", [math.log(3), 2.0])
def test_no_loss_above_chance(loss):
    model = network()
    with pytest.raises(ValueError, match=r"loss must be below ln 3 = 1\.099"):
        trace_at_equal_loss(model, images(), loss)


def test_bad_inputs():
    model, data = network(), images()
    x, y = data[0]
    for loss in (0, -1, math.nan, "0.1"):
        with pytest.raises(ValueError, match="loss must be"):
            trace_at_equal_loss(model, data, loss)
    with pytest.raises(TypeError, match="model must be a module that gives logits; got function"):
        trace_at_equal_loss(lambda x: x, data)
    with pytest.raises(ValueError, match="pairs of inputs and labels; got Tensor"):
        trace_at_equal_loss(model, [x])
    with pytest.raises(ValueError, match="pairs of inputs and labels; got tuple of 3"):
        trace_at_equal_loss(model, [(x, y, y)])
    with pytest.raises(ValueError, match=r"labels must be from 0 to 2; got -100 \(labels to be"):
        trace_at_equal_loss(model, [(x, y - 100)])
    with pytest.raises(ValueError, match="labels must be from 0 to 2; got 3"):
        trace_at_equal_loss(model, [(x, y + 1)])
    with pytest.raises(ValueError, match=r"class numbers, a tensor of int64; got torch\.float64"):
        trace_at_equal_loss(model, [(x, y.double())])
    with pytest.raises(ValueError, match=r"labels must have the shape \(10,\); got \(10, 1\)"):
        trace_at_equal_loss(model, [(x, y[:, None])])
    with pytest.raises(ValueError, match=r"\(examples, classes, …\).*; got \(10, 1\)"):
        trace_at_equal_loss(nn.Linear(4, 1).double(), [(x, y)])


def test_dropout_is_refused():
    model = nn.Sequential(nn.Dropout(0.5), network()).train()
    with pytest.raises(NotDeterministicError, match="dropout"):
        trace_at_equal_loss(model, images())


def test_in_few_lines_and_as_a_dictionary():
    data = images()
    model = train(network(), 300, data)
    found = trace_at_equal_loss(model, data, method="exact")
    assert len(repr(found).splitlines()) == 2
    assert "at loss 0.01 by temperature" in repr(found)
    assert found.metrics() == {
        "scaled_trace": found.mean, "scaled_trace_sem": found.sem, "loss": found.loss,
        "temperature": found.temperature, "own_loss": found.own_loss, "trace": found.trace.mean,
        "trace_sem": found.trace.sem, "products": float(found.trace.products),
    }  # fmt: skip


def test_two_are_subtracted_with_an_error_bar_if_their_losses_are_equal():
    batches = images()
    one, other = (train(network(seed=seed), 400, batches) for seed in (1, 2))
    measured = [trace_at_equal_loss(model, batches, 0.1, method="hutchinson", max_probes=64)
                for model in (one, other)]  # fmt: skip
    found = difference(*measured)
    assert found.mean == pytest.approx(measured[0].mean - measured[1].mean)
    assert found.sem == pytest.approx(math.hypot(measured[0].sem, measured[1].sem))
    with pytest.raises(ValueError, match=r"at different losses, 0.1 and 0.2"):
        difference(measured[0], trace_at_equal_loss(other, batches, 0.2))
    with pytest.raises(TypeError, match="got TraceAtEqualLoss and Trace"):
        difference(measured[0], measured[0].trace)
