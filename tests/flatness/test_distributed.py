"""Two and three gloo ranks give the numbers of one process.

This file is also what each rank runs.
"""

import os
import subprocess
import sys
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from antipgd.flatness import (
    ChangedError,
    NotDeterministicError,
    at,
    effective_sharpness,
    hessian_trace,
    trace_at_equal_loss,
)
from antipgd.flatness import objective as objective_module

METHODS = ["exact", "hutchinson", "hutch++", "auto"]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make(convolution=False):
    layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 3)]
    if not convolution:
        layers = [nn.Flatten(), nn.Linear(25, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3)]
    module = nn.Sequential(*layers)
    with torch.no_grad():
        for k, p in enumerate(module.parameters()):
            p.copy_(normal(*p.shape, seed=k))
    return module


def batches():
    x, y = normal(20, 1, 5, 5, seed=7), normal(20, 3, seed=8)
    return [(x[:8], y[:8]), (x[8:], y[8:])]


def measure(module, called=None, **options):
    called = called or module

    def loss(batch):
        return ((called(batch[0]) - batch[1]) ** 2).mean()

    return hessian_trace(loss, module, batches(), **options)


def same(one, other, bitwise):
    assert one.method == other.method
    assert one.products == other.products
    if bitwise:
        assert (one.samples.values == other.samples.values).all()
        assert (one.mean, one.sem) == (other.mean, other.sem)
    else:
        assert one.mean == pytest.approx(other.mean, rel=1e-12)
        assert one.sem == pytest.approx(other.sem, rel=1e-9)


def methods():
    """One by one the same bits; vectorised, matrix products of other shapes add otherwise."""
    for convolution in (True, False):
        module = make(convolution)
        for method in METHODS:
            options = {"method": method, "float64": True}
            if method != "exact":
                options |= {"max_probes": 49}
            found = measure(module, distributed=True, **options)
            same(found, measure(module, **options), bitwise=convolution)
    for method in ("hutchinson", "auto"):
        options = {"method": method, "float64": True, "tolerance": 0.3}
        same(measure(module, distributed=True, **options), measure(module, **options), False)
    objective_module._VECTORISED = 0
    one, other = (measure(module, distributed=shared) for shared in (True, False))
    same(one, other, bitwise=True)


def ddp():
    """With the wrapped model as a user has it, which goes on training afterwards."""
    plain, module = make(), DistributedDataParallel(make())
    for mode in ("train", "eval", "estimated"):
        found = measure(module, batch_norm=mode, method="hutchinson", distributed=True)
        same(found, measure(plain, batch_norm=mode, method="hutchinson"), bitwise=False)
        assert found.batch_norm == mode
        assert found.names == measure(plain).names
    before = [b.clone() for b in module.buffers()]
    x, y = batches()[dist.get_rank() % 2]
    for _ in range(2):
        measure(module, distributed=True)
        assert all(torch.equal(a, b) for a, b in zip(module.buffers(), before, strict=True))
        ((module(x) - y) ** 2).mean().backward()
        before = [b.clone() for b in module.buffers()]
    gathered = [torch.empty_like(plain[1].weight) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, module.module[1].weight.grad)
    assert all(torch.equal(gathered[0], other) for other in gathered)


def disagree():
    """Each rank with its own part of the data, or its own model."""
    x, y = normal(20, 4, seed=dist.get_rank()), normal(20, 1)
    module = nn.Linear(4, 1)
    nn.init.ones_(module.weight)
    nn.init.ones_(module.bias)

    def loss(batch):
        return ((module(batch[0]) - batch[1]) ** 4).mean()

    with pytest.raises(ValueError, match="the ranks disagree on the loss of the first batch"):
        hessian_trace(loss, module, [(x, y)], distributed=True)
    nn.init.constant_(module.weight, 1 + dist.get_rank())
    with pytest.raises(ValueError, match=r"the ranks disagree on the norm .* all of the data"):
        hessian_trace(loss, module, [(normal(20, 4), y)], distributed=True)
    with pytest.raises(NotDeterministicError):
        hessian_trace(lambda b: loss(b) * torch.rand(()), module, [(x, y)], distributed=True)


def changed():
    """Weights that changed on one rank are refused on all of them, and nobody waits."""
    module = make()

    def loss(batch):
        return ((module(batch[0]) - batch[1]) ** 2).mean()

    here = at(loss, module, batches(), distributed=True)
    same(here.trace(max_probes=48), measure(module, max_probes=48), bitwise=False)
    if dist.get_rank() == 1:
        module[1].bias.data.add_(1)
    text = "the values of '1.bias' changed" if dist.get_rank() == 1 else "another rank's weights"
    with pytest.raises(ChangedError, match=text):
        here.trace(max_probes=48)


def at_a_rate():
    """Effective sharpness and the trace at equal loss, which decide by what they find."""
    module = make().double()
    data = [(x.double(), y.double()) for x, y in batches()]

    def loss(batch):
        return ((module(batch[0]) - batch[1]) ** 2).mean()

    one, other = (
        effective_sharpness(loss, module, data, 0.02, 0.5, distributed=shared, batch_norm="eval")
        for shared in (True, False)
    )
    assert one.products == other.products
    assert one.mean == pytest.approx(other.mean, rel=1e-9)
    assert one.sem == pytest.approx(other.sem, rel=1e-6)
    labelled = [(x, module.eval()(x).argmax(1)) for x, _ in data]
    found = [
        trace_at_equal_loss(module, labelled, max_probes=48, distributed=shared)
        for shared in (True, False)
    ]
    assert found[0].temperature == found[1].temperature
    assert found[0].mean == pytest.approx(found[1].mean, rel=1e-9)


SCENARIOS = [methods, ddp, disagree, changed, at_a_rate]


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks(ranks, tmp_path):
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(tmp_path / "store"), str(ranks)]
    started = [
        subprocess.Popen([*command, str(rank)], env=environment, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=300)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    for scenario in SCENARIOS:
        for output in said:
            assert f"{scenario.__name__}: done" in output, "\n".join(said)[-4000:]


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch.distributed's own
    store, world, own = sys.argv[1:]
    dist.init_process_group("gloo", f"file://{store}", rank=int(own), world_size=int(world))
    for scenario in SCENARIOS:
        scenario()
        dist.barrier()
        print(f"{scenario.__name__}: done", flush=True)
    time.sleep(0.5)  # else gloo's threads may hold tensors when Python ends, and torch aborts
    dist.destroy_process_group()
