"""Whatever happens in a measurement, the model and the world around it are as before."""

import random
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from antipgd.flatness import expected_sharpness, hessian_trace
from antipgd.flatness.measuring import measuring
from antipgd.flatness.state import evaluating, generator_states, same_values, undisturbed
from antipgd.torch.recalibration import recalibrated

METHODS = ["exact", "hutchinson", "hutch++", "auto"]


def bits(tensor):
    return None if tensor is None else tensor.detach().contiguous().numpy().tobytes()


class World:
    """Everything that a measurement must leave alone, with the identity of the tensors."""

    def __init__(self, module):
        self.module = module

    def look(self):
        parts = list(self.module.modules())
        return (
            generator_states(),
            [part.training for part in parts],
            [(key, id(b), bits(b)) for part in parts for key, b in part._buffers.items()],
            [(name, id(p), p.data_ptr(), p.dtype, p.requires_grad, bits(p), p._version)
             for name, p in self.module.named_parameters()],
            [(id(p.grad), bits(p.grad)) for p in self.module.parameters()],
            torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
            dict(nn.modules.module._global_forward_pre_hooks),
            torch.backends.mha.get_fastpath_enabled(),
        )  # fmt: skip


def model(seed=0, dtype=torch.float64, frozen=True):
    """Batch norms in different modes, a frozen layer, gradients on some parameters."""
    generator = torch.Generator().manual_seed(seed)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8),
                           nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)  # fmt: skip
    module[4].eval()
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    module[3].requires_grad_(not frozen)
    module[0].weight.grad = torch.ones_like(module[0].weight)
    return module


def data(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(12, 4, generator=generator).to(dtype)
    return [(x[:5], x[:5, :2]), (x[5:], x[5:, :2])]


def loss_of(module):
    return lambda batch: ((module(batch[0]) - batch[1]) ** 2).mean()


@pytest.fixture
def world():
    module = model()
    return World(module), module


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", [None, "eval", "train", "estimated"])
def test_nothing_changes(world, method, mode):
    world, module = world
    before = world.look()
    trace = hessian_trace(loss_of(module), module, data(), method=method, batch_norm=mode)
    assert trace.batch_norm == (mode or "mixed")
    assert "3.weight" not in trace.names
    assert world.look() == before


def test_nothing_changes_with_a_tolerance(world):
    world, module = world
    before = world.look()
    assert hessian_trace(loss_of(module), module, data(), tolerance=0.1).converged
    assert world.look() == before


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("call", [1, 2, 3, 4, 5, 9, 14])
@pytest.mark.parametrize("float64", [False, True])
def test_nothing_changes_after_an_error_in_the_loss(error, call, float64):
    """The ninth call is beside the weights, where a loss need not exist."""
    module = model(dtype=torch.float32)
    world, plain, calls = World(module), loss_of(module), []

    def loss(batch):
        calls.append(batch)
        found = plain(batch)
        random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
        if len(calls) == call:
            raise error("in the loss")
        return found

    before = world.look()
    options = {"batch_norm": "estimated", "float64": float64, "method": "hutchinson"}
    beside = call == 9 and error is RuntimeError
    with nullcontext() if beside else pytest.raises(error, match="in the loss"):
        hessian_trace(loss, module, data(torch.float32), max_probes=130, **options)
    assert world.look() == before


def test_nothing_changes_after_an_error_in_the_data(world):
    world, module = world

    class Broken:
        def __iter__(self):
            yield data()[0]
            raise OSError("disk on fire")

    before = world.look()
    with pytest.raises(OSError, match="on fire"):
        hessian_trace(loss_of(module), module, Broken())
    assert world.look() == before


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_a_caller_without_gradients(world, around):
    world, module = world
    expected = hessian_trace(loss_of(module), module, data(), method="exact")
    with around():
        before = world.look()
        made_inside = data()
        for batches in (data, lambda: made_inside, lambda: iter(made_inside)):
            found = hessian_trace(loss_of(module), module, batches(), method="exact")
            assert found.mean == expected.mean
        assert world.look() == before


def test_a_caller_with_autocast(world):
    world, module = world
    module.float()
    expected = hessian_trace(loss_of(module), module, data(torch.float32), method="hutch++")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = world.look()
        found = hessian_trace(loss_of(module), module, data(torch.float32), method="hutch++")
        assert world.look() == before
    assert found.mean == expected.mean


@pytest.mark.parametrize("frozen", [False, True])
def test_float64_gives_the_storage_back(frozen):
    """Also with frozen parameters and buffers, which must be in float64 as well."""
    module = model(dtype=torch.float32, frozen=frozen)
    world, batches = World(module), data(torch.float32)
    before = world.look()
    found = hessian_trace(loss_of(module), module, batches, method="exact", float64=True)
    assert world.look() == before
    twin = model(dtype=torch.float32, frozen=frozen).double()
    expected = hessian_trace(loss_of(twin), twin, data(torch.float32), method="exact", float64=True)
    assert found.mean == pytest.approx(expected.mean, rel=1e-12)


def test_tensors_in_place_of_a_module(world):
    """Then nobody says which modules the loss calls; their buffers stay as they are."""
    world, module = world
    before = world.look()
    tensors = dict(module.named_parameters())
    found = hessian_trace(loss_of(module), tensors, data(), method="hutchinson")
    assert found.batch_norm == "mixed"
    assert "3.weight" in found.names
    assert world.look() == before
    module.eval()
    assert hessian_trace(loss_of(module), tensors, data()).batch_norm == "eval"


def test_other_modules_that_the_loss_calls():
    teacher, student = model(0), nn.Linear(4, 2).double()
    world = World(teacher)
    before = world.look()

    def loss(batch):
        return ((student(batch[0]) - teacher(batch[0]).detach()) ** 2).mean()

    assert hessian_trace(loss, student, data()).method == "exact"
    assert world.look() == before


def test_a_buffer_that_is_replaced_or_added():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3).double())
            self.register_buffer("last", torch.zeros(3).double())
            self.register_buffer("nothing", None)

        def forward(self, x):
            self.last = x.detach().clone()
            self.register_buffer("cache", x.detach())
            return (x * self.weight**3).sum()

    module = Counting()
    world = World(module)
    before = world.look()
    assert hessian_trace(module, module, [torch.ones(1, 3).double()]).mean == pytest.approx(18)
    assert world.look() == before


def test_buffers_that_are_only_read_keep_their_version():
    module = model().eval()
    module[1].running_mean[0] = torch.nan
    before = [b._version for b in module.buffers()]
    with undisturbed(module, list(module.parameters())):
        module.running = [b.sum() for b in module.buffers()]
    assert [b._version for b in module.buffers()] == before


def test_gradients_that_the_loss_writes(world):
    world, module = world
    before = world.look()
    with measuring(loss_of(module), module, data()) as objective:
        objective.loss(data()[0]).backward()
    assert world.look() == before


def test_generators_of_a_loader():
    x = torch.arange(12.0).reshape(6, 2).double()
    w = torch.ones(2, dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(TensorDataset(x), batch_size=2, generator=generator)
    before = generator.get_state(), generator_states()
    found = hessian_trace(lambda batch: ((batch[0] @ w) ** 4).mean(), [w], loader)
    assert found.method == "exact"
    assert torch.equal(generator.get_state(), before[0])
    assert generator_states() == before[1]


def test_losses_that_draw_numbers_they_do_not_use(world):
    world, module = world
    plain = loss_of(module)

    def loss(batch):
        random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
        return plain(batch)

    before = world.look()
    hessian_trace(loss, module, data(), max_probes=48)
    assert world.look() == before


def test_other_threads_are_left_alone():
    """A module that another thread calls meanwhile keeps what it learns."""
    import threading

    w, norm = torch.ones(3, dtype=torch.float64), nn.BatchNorm1d(2)
    expected = nn.BatchNorm1d(2)
    x = torch.arange(8.0).reshape(4, 2)
    expected(x)

    def loss():
        if not called:
            called.append(threading.Thread(target=norm, args=(x,)))
            called[0].start()
            called[0].join()
        return (w**4).sum()

    called = []
    hessian_trace(loss, [w])
    assert torch.equal(norm.running_mean, expected.running_mean)


def test_nothing_warns(world):
    _, module = world
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hessian_trace(loss_of(module), module, data(), batch_norm="estimated")


def test_estimated_statistics_are_torchs_own():
    """In the place where noise is taken out and in a measurement: one implementation."""
    module, twin, batches = model(), model(), data()
    for norm in (module[1], module[4], twin[1], twin[4]):
        norm.running_mean.fill_(3.0)
        norm.num_batches_tracked.fill_(5)
    torch.optim.swa_utils.update_bn(batches, twin)
    expected = [bits(b) for b in twin.buffers()]
    with recalibrated(module, batches):
        assert [bits(b) for b in module.buffers()] == expected
    with measuring(loss_of(module), module, batches, batch_norm="estimated"):
        assert [bits(b) for b in module.buffers()] == expected
    assert [bits(b) for b in module.buffers()] != expected


def transformer(dtype=torch.float32):
    """In evaluation mode, with padded sequences, some of them shorter than the batch is long."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).to(dtype).eval()
    x, lengths = torch.randn(20, 8, 16, dtype=dtype), torch.randint(2, 7, (20,))
    padded = torch.arange(8)[None] >= lengths[:, None]

    def loss(batch):
        return encoder(batch[0], src_key_padding_mask=batch[1]).pow(3).mean()

    return loss, encoder, [(x, padded)]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_values_of_a_transformer_are_those_that_are_differentiated():
    loss, encoder, batches = transformer()
    with torch.enable_grad():
        wanted = loss(batches[0]).item()
    with torch.no_grad():
        assert loss(batches[0]).item() != pytest.approx(wanted, rel=1e-2)  # by torch's fast path
    for fast in (True, False):
        torch.backends.mha.set_fastpath_enabled(fast)
        try:
            found = expected_sharpness(loss, encoder, batches, 1e-3, draws=4)
            assert torch.backends.mha.get_fastpath_enabled() == fast
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
        assert found.loss == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("error", [None, KeyError])
def test_evaluating_leaves_every_mode_as_it_was(world, error):
    world, module = world
    before = world.look()
    try:
        with evaluating(module), evaluating(None):
            assert not any(part.training for part in module.modules())
            if error:
                raise error
    except KeyError:
        pass
    assert world.look() == before


def test_same_values():
    a = torch.tensor([1.0, torch.nan])
    assert same_values(a, a.clone())
    assert not same_values(a, torch.tensor([1.0, 2.0]))
    assert not same_values(a, a[None])
