"""memory="recompute": no w outlives its layer's call, and nobody else's memory saving is undone."""

import weakref

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call, grad
from torch.utils.checkpoint import checkpoint

from antipgd.torch import perturb
from antipgd.torch.forward.forming import Former
from explicit import SEED, same, weighted
from kinds import Reads
from test_reads import SIGMA, perturbed, same_gradients, sgd

WIDTH, LAYERS, ROWS = 64, 4, 64
MATRIX = 4 * WIDTH * WIDTH  # bytes


def deep(mode=None):
    """Layers of equal size, each under a checkpoint if a mode is given."""

    def through(self, x):
        for layer in self.layers:
            x = layer(x) if mode is None else checkpoint(layer, x, use_reentrant=mode)
        return x

    def layer():
        return nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.GELU(), nn.GELU(), nn.GELU())

    torch.manual_seed(0)
    return Reads(through, layers=nn.ModuleList([layer() for _ in range(LAYERS)]))


def rows():
    return torch.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH).requires_grad_()


@pytest.fixture
def alive(monkeypatch):
    """The w that live now, and the most bytes of them that ever lived at once."""
    found = weakref.WeakSet()
    made = Former.form

    def form(self, z, draw, known=None):
        w = made(self, z, draw, known)
        found.add(w)
        found.most = max(found.most, held(found))
        return w

    found.most = 0
    monkeypatch.setattr(Former, "form", form)
    return found


def held(tensors):
    """The bytes of the memory behind tensors that are alive in Python or in autograd's graph."""
    return sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values()
    )


@pytest.mark.parametrize("memory", ["keep", "recompute"])
def test_bytes_between_and_inside_steps(memory, alive):
    model = deep()
    _kept = perturbed(model, run=lambda one: one(rows()), memory=memory)
    assert held(alive) == 0  # between steps, in either mode
    alive.most = 0
    loss = weighted(model(rows()))
    after_forward = held(alive)
    at_most = alive.most
    loss.backward()
    assert held(alive) == 0
    if memory == "keep":
        assert after_forward == LAYERS * MATRIX
    else:
        assert after_forward == 0
        assert at_most == MATRIX
        assert alive.most <= MATRIX  # in backward


def saved_bytes(model, x):
    """What autograd keeps of one pass, the parameters and the input apart."""
    kept = {}
    own = {p.untyped_storage().data_ptr() for p in [*model.parameters(), x]}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda packed: packed):
        loss = weighted(model(x))
    total = sum(size for size, _ in kept.values())
    del loss
    return total


@pytest.mark.parametrize("memory", ["keep", "recompute"])
def test_a_users_own_hooks_see_the_other_tensors(memory):
    model = deep()
    explicit, *_ = perturbed(model, run=lambda one: one(rows()), memory=memory)
    ours, plain = saved_bytes(model, rows()), saved_bytes(explicit.at_z(), rows())
    assert ours - plain == (LAYERS * MATRIX if memory == "keep" else 0)
    assert plain > LAYERS * ROWS * WIDTH * 4


@pytest.mark.parametrize("memory", ["keep", "recompute"])
def test_a_users_own_hooks_may_change_what_is_kept(memory):
    model = deep()
    explicit, *_ = perturbed(model, run=lambda one: one(rows()), memory=memory)
    packed = []

    def pack(tensor):
        packed.append(tensor.numel())
        return tensor.double().numpy()

    for one in (model, explicit.carrier):
        with saved_tensors_hooks(pack, lambda array: torch.from_numpy(array).float()):
            loss = weighted(one(rows().detach()))
        loss.backward()
    assert same_gradients(model, explicit.carrier)
    assert packed


class Counting:
    """Counts the bytes that CPU tensors allocate and still hold, by torch's own profiler."""

    def __init__(self, run):
        with torch.profiler.profile(profile_memory=True) as found:
            self.result = run()
        self.bytes = sum(event.self_cpu_memory_usage for event in found.key_averages())


@pytest.mark.parametrize("memory", ["keep", "recompute"])
@pytest.mark.parametrize("mode", [True, False])
def test_checkpointing_still_saves(memory, mode):
    model, plain = deep(mode), deep(mode)
    _kept = perturbed(model, run=lambda one: one(rows()), memory=memory)
    x = rows()
    with_noise = Counting(lambda: model(x)).bytes
    without = Counting(lambda: plain(x)).bytes
    uncheckpointed = deep()
    unsaved = Counting(lambda: uncheckpointed(x)).bytes
    assert without < unsaved / 2
    assert with_noise == without


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("outside", [True, False])
def test_recomputed_inside_and_around_checkpoints(mode, outside):
    model = deep(None if outside else mode)

    def run(one):
        return checkpoint(one, rows(), use_reentrant=mode) if outside else one(rows())

    explicit, *_ = perturbed(model, run=run, memory="recompute")
    for one in (model, explicit.carrier):
        weighted(run(one)).backward()
    assert same_gradients(model, explicit.carrier)


def test_hooks_are_balanced_after_an_error():
    def through(self, x):
        self.part(x)
        raise ValueError("here")

    model = Reads(through, part=nn.Linear(6, 6))
    optimizer = sgd(model)
    perturb(model, optimizer, SIGMA, seed=SEED, memory="recompute")
    with pytest.raises(ValueError, match="here"):
        model(torch.ones(2, 6))
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_retained_graphs_and_two_backwards():
    model = deep()
    explicit, *_ = perturbed(model, run=lambda one: one(rows()), memory="recompute")
    for one in (model, explicit.carrier):
        loss = weighted(one(rows()))
        loss.backward(retain_graph=True)
        loss.backward()
    assert same_gradients(model, explicit.carrier)


def test_z_changed_between_forward_and_backward_is_refused():
    model = deep()
    _kept = perturbed(model, run=lambda one: one(rows()), memory="recompute")
    loss = weighted(model(rows()))
    with torch.no_grad():
        model.layers[2][0].weight.mul_(0.5)
    with pytest.raises(RuntimeError, match=r"'layers.2.0.weight' was changed between forward and"):
        loss.backward()


def test_torch_func_is_refused():
    model = deep()
    _kept = perturbed(model, run=lambda one: one(rows()), memory="recompute")
    own = {name: p.detach() for name, p in model.named_parameters()}
    x = rows().detach()
    with pytest.raises(RuntimeError, match=r"memory='recompute' does not work in torch.func"):
        grad(lambda p: weighted(functional_call(model, p, x)))(own)
    assert same(model(rows()), model(rows()))
