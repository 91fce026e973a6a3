"""What each rank of a torchrun job does in test_torchrun.py: DDP, FSDP2, both in Accelerate too."""

import math
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import (
    DataLoaderConfiguration,
    DistributedType,
    FullyShardedDataParallelPlugin,
)
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset
from torch_ema import ExponentialMovingAverage

from antipgd.torch import AnticorrelatedBatches, perturb
from explicit_z import SEED, SIGMA, Explicit, Reads, check_same, clean, momentum, noisy, own
from job import batch, full, make_model, run

BEFORE, AFTER = 6, 4
WHOLE = StateDictOptions(full_state_dict=True)


def ddp(model):
    return DistributedDataParallel(model)


def fsdp2(model):
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


KINDS = {"ddp": ddp, "fsdp2": fsdp2}


def backward_of(rank, ranks):
    """A backward pass over this rank's share of the examples."""
    x, y = batch()

    def backward(model):
        (model(x[rank::ranks]) - y[rank::ranks]).square().mean().backward()

    return backward


class Run:
    """A training of one kind beside the explicit z-form."""

    def __init__(self, kind, backward):
        self.make, self.backward = lambda: KINDS[kind](make_model()), backward
        self.model = self.make()
        self.optimizer = momentum(self.model)
        self.noise = perturb(self.model, self.optimizer, SIGMA, seed=SEED)

    def train(self, steps, explicit=None, after=lambda: None):
        self.model.train()
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.backward(self.model)
            self.optimizer.step()
            if explicit is not None:
                explicit.step(self.backward)
            after()
        return self

    def explicit(self):
        return Explicit(self.make, momentum)


def save(rank, ranks, folder):
    for kind in KINDS:
        run = Run(kind, backward_of(rank, ranks)).train(BEFORE)
        states = get_state_dict(run.model, run.optimizer)
        dcp.save(dict(zip("mo", states, strict=True)), checkpoint_id=f"{folder}/{kind}")
        weights = clean(own(run.train(AFTER).model))
        if rank == 0:
            torch.save((ranks, weights), f"{folder}/{kind}.pt")
        run.noise.stop()


def resume(rank, ranks, folder):
    """Bitwise on as many ranks; on others, which sum in another order, the draws are bitwise."""
    for kind in KINDS:
        run = Run(kind, backward_of(rank, ranks))
        states = dict(zip("mo", get_state_dict(run.model, run.optimizer), strict=True))
        dcp.load(states, checkpoint_id=f"{folder}/{kind}")
        set_state_dict(
            run.model, run.optimizer, model_state_dict=states["m"], optim_state_dict=states["o"]
        )
        assert run.noise.step_count == BEFORE
        reads = Reads(run.model)
        for step in range(BEFORE, BEFORE + AFTER):
            expected = noisy(clean(own(run.model)), step)
            run.train(1)
            reads.check(expected)
        saved_by, weights = torch.load(f"{folder}/{kind}.pt")
        for name, z in clean(own(run.model)).items():
            tolerance = 0.0 if saved_by == ranks else 1e-5
            torch.testing.assert_close(z, weights[name], rtol=0, atol=tolerance)
        run.noise.stop()


def evaluate(rank, ranks, folder):
    x, _ = batch()
    for kind in KINDS:
        run = Run(kind, backward_of(rank, ranks))
        for _ in range(2):
            run.train(3)
            plain = make_model()
            plain.load_state_dict(clean(own(run.model)))
            with torch.no_grad():
                assert torch.equal(run.model.eval()(x), plain(x))
                assert not torch.equal(run.model.train()(x), plain(x))
        run.noise.stop()


def export(rank, ranks, folder):
    """The whole state_dict that users write to a file is z."""
    for kind in KINDS:
        run = Run(kind, backward_of(rank, ranks))
        explicit, still = run.explicit(), Run(kind, backward_of(rank, ranks))
        still.noise.stop()
        run.train(BEFORE, explicit)
        found = get_model_state_dict(run.model, options=WHOLE)
        without = clean(own(still.train(BEFORE).model))
        for name, z in clean(explicit.z).items():
            assert torch.equal(found[name], z), name
            assert not torch.equal(without[name], z), name
        run.noise.stop()


def accumulate(rank, ranks, folder):
    """Three micro-batches a step, synchronised in the last, as torch's documentation has it."""
    x, y = (one[rank::ranks] for one in batch())

    def backward(model):
        for i in range(3):
            if hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(i == 2)
            with model.no_sync() if i < 2 and hasattr(model, "no_sync") else nullcontext():
                ((model(x[i::3]) - y[i::3]).square().mean() / 3).backward()

    for kind in KINDS:
        run = Run(kind, backward)
        explicit = run.explicit()
        run.train(BEFORE, explicit)
        assert run.noise.step_count == BEFORE
        check_same(own(run.model), explicit.z)
        run.noise.stop()


def average(rank, ranks, folder):
    """torch's own under DDP; of FSDP2, which forbids copies of the model, a list of shards."""
    for kind in KINDS:
        run = Run(kind, backward_of(rank, ranks))
        explicit = run.explicit()
        z = list(explicit.z.values())
        ours, theirs = (
            ExponentialMovingAverage(p, decay=0.9) for p in (own(run.model).values(), z)
        )
        swa = AveragedModel(run.model.module) if kind == "ddp" else None
        each = []

        def update():
            ours.update(list(own(run.model).values()))  # noqa: B023
            theirs.update(z)  # noqa: B023
            each.append(clean(explicit.z))  # noqa: B023
            if swa is not None:  # noqa: B023
                swa.update_parameters(run.model.module)  # noqa: B023

        run.train(BEFORE, explicit, update)
        for mine, expected in zip(ours.shadow_params, theirs.shadow_params, strict=True):
            assert torch.equal(full(mine), full(expected))
        for name, found in own(swa.module).items() if swa else ():
            mean = torch.stack([found[name] for found in each]).mean(0)
            torch.testing.assert_close(found.detach(), mean)
        run.noise.stop()


def refuse(rank, ranks, folder):
    """On all ranks, before anything changes; what is said goes into a file."""
    said = []
    for kind in KINDS:
        model = make_model()
        early = momentum(model)  # fully_shard puts other parameters in place of these
        model = KINDS[kind](model)
        before = clean(own(model))
        late = momentum(model)
        tries = [
            (late, {"sigma": math.nan if rank == 0 else SIGMA}, "sigma must be|rank 0 refused"),
            (late, {"sigma": SIGMA, "seed": rank}, "the ranks disagree on the noise: seed is"),
        ]
        if kind == "fsdp2":
            tries.append((early, {"sigma": SIGMA}, "that is not in the model"))
        for optimizer, settings, words in tries:
            with pytest.raises((ValueError, RuntimeError), match=words) as error:
                perturb(model, optimizer, **settings)
            said.append(str(error.value))
        assert all(torch.equal(z, before[name]) for name, z in clean(own(model)).items())
        assert all(type(module._parameters) is dict for module in model.modules())
    if rank == 0:
        Path(folder, "said").write_text("\n".join(dict.fromkeys(said)))


def accelerated(rank, ranks, folder):
    """Under Accelerate: DDP and FSDP2, perturbed after `prepare` and before it.

    For FSDP2 it puts other parameters into model and optimizer, which the noise follows.
    """
    for sharded, first in product((False, True), repeat=2):
        accelerator = Accelerator(cpu=True)
        if sharded:  # which it would not do without a GPU
            plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False)
            accelerator.state.fsdp_plugin = plugin
            accelerator.state.distributed_type = DistributedType.FSDP
        model = make_model()
        optimizer = momentum(model)
        noise = perturb(model, optimizer, SIGMA, seed=SEED) if first else None
        model, optimizer = accelerator.prepare(model, optimizer)
        noise = noise or perturb(model, optimizer, SIGMA, seed=SEED)
        assert isinstance(next(model.parameters()), DTensor) == sharded, (sharded, first)
        explicit = Explicit(lambda: (fully_shard if sharded else ddp)(make_model()), momentum)  # noqa: B023
        backward, reads = backward_of(rank, ranks), Reads(model)
        for step in range(BEFORE):
            expected = noisy(clean(own(model)), step)
            optimizer.zero_grad()
            backward(model)
            reads.check(expected)
            explicit.step(backward)
            optimizer.step()
            check_same(own(model), explicit.z)
        assert noise.step_count == BEFORE
        noise.stop()


def dealt(rank, ranks, folder):
    """Batches that are parts already: Accelerate's loader is refused, and as it is right."""
    data = TensorDataset(torch.arange(100))
    settings = ({}, {"split_batches": True}, {"even_batches": False}, {"dispatch_batches": True})
    for setting, drop_last in product(settings, (False, True)):
        AcceleratorState._reset_state()
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**setting))
        batches = AnticorrelatedBatches(data, 20, drop_last=drop_last)
        plain = DataLoader(data, batch_sampler=batches)
        prepared = accelerator.prepare(plain)
        with pytest.raises(RuntimeError, match="deals batches out to processes"):
            next(iter(prepared))
        with pytest.raises((RuntimeError, ValueError), match=r"deals batches out|needs a loader"):
            next(batches.counted(prepared))
        found = torch.cat([rows for (rows,) in batches.counted(plain)])
        assert batches.state_dict()["done"] == 5
        every = [torch.empty_like(found) for _ in range(ranks)]
        dist.all_gather(every, found)
        assert torch.cat(every).sort().values.tolist() == list(range(100))


SCENARIOS = {
    f.__name__: f
    for f in (save, resume, evaluate, export, accumulate, average, refuse, accelerated, dealt)
}

if __name__ == "__main__":
    run(SCENARIOS)
