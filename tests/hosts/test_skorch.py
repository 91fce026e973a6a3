"""skorch: perturb what `initialize` has made, in a callback or before `partial_fit`."""

import pickle
from functools import partial

import numpy as np
import pytest
import torch
from skorch import NeuralNetRegressor
from skorch.callbacks import Callback, Checkpoint, LoadInitState, TrainEndCheckpoint
from skorch.dataset import Dataset
from skorch.helper import predefined_split
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from antipgd.torch import noise_of, perturb
from matrix import cell, refused
from small_training import (
    NOISE,
    SIGMA,
    batches,
    check_explicit,
    check_same,
    explicit,
    momentum,
    network,
)

DATA = batches(6)
X = torch.cat([x for x, _ in DATA]).numpy()
Y = torch.cat([y for _, y in DATA]).numpy()


class Noise(Callback):
    """The line for skorch, whose `fit` makes model and optimizer anew: when they are there."""

    def __init__(self, **settings):
        self.settings = settings

    def on_train_begin(self, net, **_):
        if noise_of(net.optimizer_) is None:
            perturb(net.module_, net.optimizer_, **self.settings)


def regressor(*callbacks, kind=NeuralNetRegressor, noise=NOISE, seed=0, **options):
    """A net that takes the batches of DATA in their order, and has the noise."""
    settings = {
        "module": network, "module__seed": seed, "optimizer": torch.optim.SGD, "lr": 0.05,
        "optimizer__momentum": 0.9, "batch_size": 8, "max_epochs": 2, "train_split": None,
        "verbose": 0, "iterator_train__shuffle": False,
    }  # fmt: skip
    return kind(**settings | options, callbacks=[Noise(**noise), *callbacks])


@cell("skorch", "resume")
def test_saved_parameters_go_on_bit_for_bit(tmp_path):
    whole = regressor(max_epochs=5).fit(X, Y)
    half = regressor(max_epochs=2).fit(X, Y)
    files = {f"f_{kind}": tmp_path / kind for kind in ("params", "optimizer", "history")}
    half.save_params(**files)
    other = regressor(max_epochs=3, seed=9).initialize()
    other.load_params(**files)
    other.partial_fit(X, Y)
    check_same(other.module_, whole.module_)
    check_explicit(other.module_, 5 * DATA)


@cell("skorch", "resume")
@pytest.mark.parametrize("last", [True, False])
def test_load_init_state_goes_on_bit_for_bit(tmp_path, last):
    """Whether the noise's callback comes before the one that loads or after."""

    def net(epochs, seed=0):
        kept = TrainEndCheckpoint(dirname=tmp_path)
        found = regressor(kept, LoadInitState(kept), max_epochs=epochs, seed=seed)
        if last:
            found.callbacks.reverse()
        return found

    net(2).fit(X, Y)
    other = net(3, seed=9).fit(X, Y)
    assert noise_of(other.optimizer_).step_count == 5 * len(DATA)
    check_explicit(other.module_, 5 * DATA)


@cell("skorch", "resume")
def test_a_pickled_net_goes_on_with_partial_fit():
    other = pickle.loads(pickle.dumps(regressor().fit(X, Y)))
    other.partial_fit(X, Y)
    assert noise_of(other.optimizer_).step_count == 4 * len(DATA)
    check_explicit(other.module_, 4 * DATA)


@cell("skorch", "evaluation")
def test_validation_and_prediction_are_at_the_clean_weights():
    class Compare(Callback):
        """Asks a plain model after every epoch."""

        def on_epoch_end(self, net, dataset_valid, **_):
            plain = network(9)
            plain.load_state_dict(net.module_.state_dict())
            x, y = (torch.from_numpy(one) for one in dataset_valid[:])
            losses.append((net.history[-1, "valid_loss"], mse_loss(plain.eval()(x), y).item()))
            predictions.append((net.predict(X), plain(torch.from_numpy(X)).detach().numpy()))

    losses, predictions = [], []
    net = regressor(Compare(), train_split=predefined_split(Dataset(X[:24], Y[:24])), max_epochs=3)
    net.set_params(iterator_valid__batch_size=24)
    net.fit(X, Y)
    assert len(losses) == 3
    assert all(found == clean for found, clean in losses)
    assert all(np.array_equal(found, clean) for found, clean in predictions)
    noisy = net.module_.train()(torch.from_numpy(X)).detach().numpy()
    assert not np.array_equal(predictions[-1][0], noisy)


RATE = 0.1  # at which the best epoch is neither the first nor the last


@cell("skorch", "weights")
def test_the_best_weights_are_clean(tmp_path):
    """Loaded back by the callback at the end of training."""
    best = Checkpoint(monitor="valid_loss_best", dirname=tmp_path, load_best=True)
    split = predefined_split(Dataset(X[:24], Y[:24]))
    net = regressor(best, train_split=split, max_epochs=6, lr=RATE).fit(X, Y)
    epoch = len(net.history)  # which is loaded with the weights
    assert 1 < epoch < 6
    assert noise_of(net.optimizer_).step_count == epoch * len(DATA)
    quick = partial(momentum, lr=RATE)
    check_explicit(net.module_, epoch * DATA, optimizer=quick)
    check_explicit(torch.load(tmp_path / "params.pt"), epoch * DATA, optimizer=quick)


class Accumulating(NeuralNetRegressor):
    """As skorch's documentation has it."""

    def __init__(self, *args, acc_steps=3, **kwargs):
        super().__init__(*args, **kwargs)
        self.acc_steps = acc_steps

    def get_loss(self, *args, **kwargs):
        return super().get_loss(*args, **kwargs) / self.acc_steps

    def train_step(self, batch, **fit_params):
        if len(self.history[-1, "batches"]) % self.acc_steps == 1:
            self.optimizer_.zero_grad()
        step = self.train_step_single(batch, **fit_params)
        if len(self.history[-1, "batches"]) % self.acc_steps == 0:
            self.optimizer_.step()
        return step


@cell("skorch", "accumulation")
def test_accumulated_batches_are_one_step():
    net = regressor(kind=Accumulating).fit(X, Y)
    assert noise_of(net.optimizer_).step_count == 4
    check_explicit(net.module_, 2 * DATA, accumulated=3)


@cell("skorch", "averages")
def test_averages_are_those_of_clean_weights():
    """skorch has none; torch's own, in a callback."""

    class Average(Callback):
        def on_train_begin(self, net, **_):
            moving = get_ema_multi_avg_fn(0.9)
            self.each = AveragedModel(net.module_), AveragedModel(net.module_, multi_avg_fn=moving)

        def on_batch_end(self, net, training, **_):
            for average in self.each if training else ():
                average.update_parameters(net.module_)

    found = Average()
    regressor(found).fit(X, Y)
    start = network()
    moving = get_ema_multi_avg_fn(0.9)
    expected = AveragedModel(start), AveragedModel(start, multi_avg_fn=moving)
    for n in range(1, 2 * len(DATA) + 1):
        for average in expected:
            average.update_parameters(explicit((2 * DATA)[:n]).clean)
    for mine, theirs in zip(found.each, expected, strict=True):
        check_same(mine.module, theirs.module)


@cell("skorch", "bad_input")
@pytest.mark.parametrize("sigma", [-0.1, float("nan")])
def test_a_wrong_sigma(sigma, record_property):
    net = regressor(noise={"sigma": sigma})
    with refused(record_property, ValueError, "sigma must be a finite number >= 0"):
        net.fit(X, Y)
    check_same(net.module_, network())


@cell("skorch", "bad_input")
def test_twice(record_property):
    net = regressor().fit(X, Y)
    with refused(record_property, ValueError, "this optimizer has noise already"):
        perturb(net.module_, net.optimizer_, SIGMA)


class Scaled(torch.nn.Module):
    """A loss with a parameter, which skorch gives to its optimizer."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, found, y):
        return mse_loss(found * self.scale, y)


@cell("skorch", "bad_input")
def test_a_criterion_with_parameters(record_property):
    net = regressor(criterion=Scaled)
    with refused(record_property, ValueError, r"not in the model; .*ModuleList\(\[model, loss"):
        net.fit(X, Y)
    check_same(net.module_, network())

    class Both(Noise):
        def on_train_begin(self, net, **_):
            self.both = torch.nn.ModuleList([net.module_, net.criterion_])
            perturb(self.both, net.optimizer_, **NOISE)

    net = regressor(criterion=Scaled)
    net.callbacks = [Both()]
    net.fit(X, Y)
    assert noise_of(net.optimizer_).step_count == 2 * len(DATA)


@cell("skorch", "bad_input")
def test_perturbed_before_fit_is_said(caplog):
    """`fit` throws away what `initialize` made: trained without noise, and the log says why."""
    net = regressor()
    net.callbacks = []
    net.initialize()
    perturb(net.module_, net.optimizer_, **NOISE)
    net.fit(X, Y)
    said = [record.getMessage() for record in caplog.records if record.name == "antipgd"]
    assert any("is gone and has made no step with it" in text for text in said)
    check_same(net.module_, explicit(2 * DATA, sigma=0.0).clean)
