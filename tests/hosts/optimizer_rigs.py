"""A small model under the optimizers of each host, set up, stepped, saved and loaded as one does.

`rows("resume")` is the list of them for a test, each marked as the answer to that cell.
"""

import io
import warnings
from functools import partial

import bitsandbytes
import pytest
import pytorch_optimizer
import schedulefree
import torch
import torchao.optim
from torch import nn
from torchtitan.components.optimizer import OptimizersContainer

from explicit_model import explicit_gradients, loss_of, make, perturbed_gradients
from matrix import cell

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit, on import of torch's own parts
    from torch.distributed import optim

SEED, SIGMA = 17, 0.05


class Rig:
    """A model, what perturb is given beside it, and the optimizers in the order they step in."""

    def __init__(self, model, given):
        self.model, self.given = model, given
        self.optimizers = list(given) if isinstance(given, list) else [given]
        self.set_training(True)

    def gradients(self, n, parts=1):
        perturbed_gradients(self.model, n, parts)

    def explicit_gradients(self, n, parts=1):
        explicit_gradients(self.model, n, SIGMA, SEED, partial(perturbed_gradients, parts=parts))

    def train(self, n, parts=1):
        """A step of the training loop."""
        self.gradients(n, parts)
        for optimizer in self.optimizers:
            optimizer.step()

    def train_explicitly(self, n, parts=1):
        """The same in the explicit z-form, of a model without noise."""
        self.backward_explicitly(n, partial(perturbed_gradients, parts=parts))

    def backward_explicitly(self, n, gradients):
        explicit_gradients(self.model, n, SIGMA, SEED, gradients)
        for optimizer in self.optimizers:
            optimizer.step()

    def set_training(self, training):
        """Before training and before evaluation; schedule-free optimizers want to know, too."""
        self.model.train(training)
        for optimizer in self.optimizers:
            if hasattr(optimizer, "train"):
                optimizer.train() if training else optimizer.eval()

    def state(self):
        return self.model.state_dict(), [o.state_dict() for o in self.optimizers]

    def load_state(self, state):
        self.model.load_state_dict(state[0])
        for optimizer, own in zip(self.optimizers, state[1], strict=True):
            optimizer.load_state_dict(own)
        self.set_training(True)

    def saved(self):
        file = io.BytesIO()
        torch.save(self.state(), file)
        return file.getvalue()

    def load(self, data, weights_only=True):
        self.load_state(torch.load(io.BytesIO(data), weights_only=weights_only))


class InBackward(Rig):
    """Steps are made inside backward, each as soon as its gradient is there."""

    def train(self, n, parts=1):
        one_backward(self.model, n, parts)

    def train_explicitly(self, n, parts=1):
        self.backward_explicitly(n, partial(one_backward, parts=parts))


def one_backward(model, n, parts):
    """Several micro-batches, one backward pass: each would make its own step."""
    model.zero_grad()
    sum(loss_of(model, n, part, parts) for part in range(parts)).backward()


class InClosure(Rig):
    """The optimizer asks for gradients itself, more than once in a step."""

    def train(self, n, parts=1):
        self.gradients(n, parts)
        self.optimizers[0].step(lambda: self.gradients(n, parts))

    def train_explicitly(self, n, parts=1):
        self.explicit_gradients(n, parts)
        self.optimizers[0].step(lambda: self.explicit_gradients(n, parts))


class InTwoSteps(Rig):
    """SAM as its authors use it: up, gradients there, down."""

    def train(self, n, parts=1):
        self._both(lambda: self.gradients(n, parts))

    def train_explicitly(self, n, parts=1):
        self._both(lambda: self.explicit_gradients(n, parts))

    def _both(self, gradients):
        for step in (self.optimizers[0].first_step, self.optimizers[0].second_step):
            gradients()
            step(zero_grad=True)


class Titan(Rig):
    """Two parts of a model, as pipelines have them, in TorchTitan's container."""

    def __init__(self, container):
        self.container = container
        whole = nn.Sequential(*container.model_parts)
        super().__init__(whole, container)
        self.optimizers = list(container)

    def state(self):
        return self.model.state_dict(), self.container.state_dict()

    def load_state(self, state):
        self.model.load_state_dict(state[0])
        self.container.load_state_dict(state[1])


def one(kind, **settings):
    """One optimizer over all parameters."""

    def build():
        model = make(torch.float32)
        return Rig(model, kind(list(model.parameters()), **settings))

    return build


def wrapped(wrapper, kind=torch.optim.SGD, rig=Rig, **settings):
    def build():
        model = make(torch.float32)
        return rig(model, wrapper(kind(model.parameters(), lr=0.05), **settings))

    return build


def sam(rig):
    model = make(torch.float32)
    base = torch.optim.SGD
    return rig(model, pytorch_optimizer.SAM(model.parameters(), base, lr=0.05, momentum=0.9))


def schedule_free_closure():
    model = make(torch.float32)
    optimizer = schedulefree.SGDScheduleFreeClosure(model.parameters(), lr=0.05)
    return InClosure(model, optimizer)


def muon_and_adamw():
    model = make(torch.float32)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    muon = torch.optim.Muon(matrices, lr=0.01)
    return Rig(model, [muon, torch.optim.AdamW(others, lr=0.01)])


def hooked():
    """As torch's tutorial has it: an optimizer for each parameter, which steps in a hook."""
    model = make(torch.float32)
    own = {p: torch.optim.AdamW([p], lr=0.01) for p in model.parameters()}

    def step(parameter):
        own[parameter].step()
        own[parameter].zero_grad()

    for parameter in own:
        parameter.register_post_accumulate_grad_hook(step)
    return InBackward(model, list(own.values()))


def applied():
    """By torch.distributed's own function."""
    model = make(torch.float32)
    settings = {"lr": 0.05, "momentum": 0.9}
    optim._apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), settings)
    return InBackward(model, optim._get_in_backward_optimizers(model))


def titan():
    model = make(torch.float32)
    settings = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    return Titan(OptimizersContainer([model[:3], model[3:]], torch.optim.AdamW, settings))


small = {"lr": 0.005, "eps": 1e-4}
RIGS = {
    "torchao": {
        "8 bit": one(torchao.optim.AdamW8bit, **small),
        "4 bit": one(torchao.optim.AdamW4bit, **small),
        "fp8": one(torchao.optim.AdamWFp8, **small),
    },
    "bitsandbytes": {
        "AdamW": one(bitsandbytes.optim.AdamW8bit, **small),
        "Lion": one(bitsandbytes.optim.Lion8bit, lr=0.001),
        "AdEMAMix": one(bitsandbytes.optim.AdEMAMix8bit, **small),
    },
    "schedulefree": {
        "SGD": one(schedulefree.SGDScheduleFree, lr=0.05),
        "AdamW": one(schedulefree.AdamWScheduleFree, **small),
        "RAdam": one(schedulefree.RAdamScheduleFree, **small),
        "wrapper": wrapped(schedulefree.ScheduleFreeWrapper, momentum=0.9),
        "closure": schedule_free_closure,
    },
    "pytorch_optimizer": {
        "Lookahead": wrapped(pytorch_optimizer.Lookahead, k=5),
        "ScheduleFreeWrapper": wrapped(pytorch_optimizer.ScheduleFreeWrapper, momentum=0.9),
        "SAM, a closure": partial(sam, InClosure),
        "SAM, two steps": partial(sam, InTwoSteps),
        "Prodigy": one(pytorch_optimizer.Prodigy, lr=1.0),
    },
    "muon": {"with AdamW": muon_and_adamw},
    "in_backward": {"a hook": hooked, "torch.distributed": applied},
    "torchtitan": {"two parts": titan},
}


def rows(*qualities, without=()):
    """All of them, for a test that answers these cells."""
    return pytest.mark.parametrize("build", [
        pytest.param(build, id=f"{host}, {label}", marks=cell(host, *qualities))
        for host, builds in RIGS.items() if host not in without
        for label, build in builds.items()
    ])  # fmt: skip
