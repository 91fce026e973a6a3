"""Every optimizer of pytorch_optimizer's list under perturb, made and stepped as each needs it."""

import copy
import inspect
import io
from functools import partial

import pytest
import pytorch_optimizer
import torch
import torch.distributed as dist

from antipgd.noise import draws
from antipgd.torch import perturb
from explicit_model import explicit_gradients, loss_of, make, perturbed_gradients
from matrix import cell, refused

SEED, SIGMA = 17, 0.05
STEPS, SAVED_AT = 12, 5
NAMES = pytorch_optimizer.get_supported_optimizers()
STEPLESS = {"lomo", "adalomo"}  # fused_backward() moves the weights: refused
BY_USE_MUON = {"adago", "adamuon", "distributedmuon", "muon", "muonclip", "normuon"}
IN_PROCESS_GROUP = {"demo", "distributedmuon"}
OF_MATRICES = {"spectralsphere"}
OF_THE_MODEL = {"adammini"}
BY_CLOSURE = {"alig", "bsam", "lbfgs", "WSAM", "LookSAM", "FriendlySAM"}
BY_GRAPH = {"adahessian", "sophiah"}
SETTINGS = {"ranger21": {"num_iterations": 100}, "bsam": {"num_data": 20}}
AROUND_SGD = ("Lookahead", "OrthoGrad", "PCGrad", "ScheduleFreeWrapper", "TRAC")
OVER_SGD = ("WSAM", "LookSAM", "FriendlySAM")
pytestmark = pytest.mark.filterwarnings("ignore")  # of 130 optimizers, each about its own affairs


def by_name(name, model):
    """The optimizers that train the model; mostly one."""
    parameters = list(model.parameters())
    matrices = [p for p in parameters if p.ndim == 2]
    others = [p for p in parameters if p.ndim != 2]
    if name in AROUND_SGD:
        inner = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
        return [getattr(pytorch_optimizer, name)(inner)]
    if name in OVER_SGD:
        kind = getattr(pytorch_optimizer, name)
        first = [model] if "model" in inspect.signature(kind).parameters else []
        return [kind(*first, params=parameters, base_optimizer=torch.optim.SGD, lr=0.05)]
    kind = pytorch_optimizer.load_optimizer(name)
    settings = dict(SETTINGS.get(name, {}))
    if "lr" in inspect.signature(kind).parameters:
        settings["lr"] = 0.01
    if name in BY_USE_MUON:
        groups = [
            {"params": matrices, "use_muon": True}, {"params": others, "use_muon": False},
        ]  # fmt: skip
        return [kind(groups, **settings)]
    if name in OF_MATRICES:
        return [kind(matrices, **settings), torch.optim.AdamW(others, lr=0.01)]
    return [kind(model if name in OF_THE_MODEL else parameters, **settings)]


class Trial:
    """A model under one of them, with noise or in the explicit z-form."""

    def __init__(self, name):
        self.name = name
        self.model = make(torch.float32)
        torch.manual_seed(1)  # some are random by themselves
        self.optimizers = by_name(name, self.model)
        self.noise = None
        self.set_training()

    def set_training(self):
        for optimizer in self.optimizers:
            if hasattr(optimizer, "train"):
                optimizer.train()

    def perturb(self, seed=SEED):
        self.noise = perturb(self.model, self.optimizers, SIGMA, seed=seed)
        return self

    def gradients(self, n):
        with torch.enable_grad():
            if self.name in BY_GRAPH:
                self._graph(n)
            elif self.noise:
                perturbed_gradients(self.model, n)
            else:
                explicit_gradients(self.model, n, SIGMA, SEED)
        return torch.tensor(0.25)

    def _graph(self, n):
        """Gradients that can be differentiated again, down to z."""
        self.model.zero_grad()
        if self.noise:
            loss = loss_of(self.model, n)
        else:
            loss = loss_of(self._noisy_call(n), n)
        loss.backward(create_graph=True)

    def _noisy_call(self, n):
        own = dict(self.model.named_parameters())
        w = {name: z + self._xi(name, z, n) for name, z in own.items()} if n else own
        call = lambda x: torch.func.functional_call(self.model, w, (x,))  # noqa: E731
        call.parameters = self.model.parameters
        return call

    def _xi(self, name, z, n):
        xi = torch.from_numpy(draws(SEED, name, n, 0, z.numel())).reshape(z.shape)
        return xi * torch.tensor(SIGMA)

    def step(self, n):
        torch.manual_seed(50 + n)
        self.gradients(n)
        closure = [partial(self.gradients, n)] if self.name in BY_CLOSURE else []
        for optimizer in self.optimizers:
            optimizer.step(*closure)

    def steps(self, first, last):
        for n in range(first, last):
            self.step(n)
        return self

    def state(self):
        file = io.BytesIO()
        torch.save((self.model.state_dict(), [o.state_dict() for o in self.optimizers]), file)
        return file.getvalue()

    def load(self, data):
        weights, states = torch.load(io.BytesIO(data), weights_only=False)
        self.model.load_state_dict(weights)
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(state)
        self.set_training()
        return self


@pytest.fixture
def name(request, tmp_path):
    """With a group of one process for those that talk to others."""
    if request.param not in IN_PROCESS_GROUP:
        yield request.param
        return
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield request.param
    finally:
        dist.destroy_process_group()


ALL = [*sorted(set(NAMES) - STEPLESS), *AROUND_SGD, *OVER_SGD]
every = pytest.mark.parametrize("name", ALL, indirect=True)


def same(one, other):
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@cell("pytorch_optimizer", "weights", "evaluation")
@every
def test_bitwise_the_explicit_z_form(name):
    ours, theirs, start = Trial(name).perturb(), Trial(name), Trial(name)
    batch = torch.randn(7, 6)
    for n in range(STEPS):
        ours.step(n)
        theirs.step(n)
        assert ours.noise.step_count == n + 1
        if n % 4 == 3:
            assert torch.equal(ours.model.eval()(batch), theirs.model(batch))
            assert not torch.equal(ours.model.train()(batch), theirs.model(batch))
    assert same(ours, theirs)
    assert all(torch.isfinite(p).all() for p in ours.model.parameters())
    assert not same(ours, start)


@cell("pytorch_optimizer", "resume")
@every
def test_resume(name):
    ours = Trial(name).perturb().steps(0, SAVED_AT)
    other = Trial(name).perturb(seed=SEED + 1).load(ours.state())
    for trial in (ours, other):
        trial.steps(SAVED_AT, STEPS)
    assert (other.noise.step_count, other.noise.seed) == (STEPS, SEED)
    for mine, theirs in zip(ours.model.parameters(), other.model.parameters(), strict=True):
        drawn = other.noise.injected(theirs)
        assert drawn.any()
        assert torch.equal(drawn, ours.noise.injected(mine))
    assert same(ours, other)


@cell("pytorch_optimizer", "bad_input")
@pytest.mark.parametrize("name", sorted(STEPLESS))
def test_optimizers_without_steps_are_refused(name, record_property):
    model = make(torch.float32)
    optimizer = pytorch_optimizer.load_optimizer(name)(model)
    before = copy.deepcopy(model.state_dict())
    with refused(record_property, TypeError, "makes no steps that one could hear of"):
        perturb(model, optimizer, SIGMA)
    assert all(type(module._parameters) is dict for module in model.modules())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_nobody_is_left_out():
    assert len(NAMES) >= 128
    assert set(ALL) | STEPLESS >= set(NAMES)
