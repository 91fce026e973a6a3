"""What each rank of a torchrun job does in test_distributed.py."""

import json
import re
from itertools import product

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from antipgd.noise import draws
from antipgd.torch import attach, expect_noise, perturb
from job import batch, even_model, full, make_model, run, sgd
from mutations import try_on_ranks

SEED, SIGMA, STEPS = 5, 0.05, 50


def train(model, optimizer, steps, rank=0, ranks=1):
    x, y = batch()
    x, y = x[rank::ranks], y[rank::ranks]
    for _ in range(steps):
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()


def output(model):
    with torch.no_grad():
        return model(batch()[0])


def check_noise(model, noise, step, law="gaussian"):
    """The gathered injected noise is bitwise the one that a single process has."""
    for name, parameter in model.named_parameters():
        name = name.removeprefix("module.")
        xi = draws(SEED, name, step, 0, parameter.numel(), law).reshape(parameter.shape)
        carried = full(noise.injected(parameter)).numpy()
        assert np.array_equal(carried, np.float32(SIGMA) * xi), name


def check_weights(model, expected, tolerance=1e-5):
    for name, parameter in model.named_parameters():
        difference = (full(parameter) - expected[name.removeprefix("module.")]).abs().max()
        assert difference < tolerance, (name, difference)


def single(make, steps=STEPS, law="gaussian"):
    """The weights of one process that sees all the data."""
    model = make()
    optimizer = sgd(model)
    noise = attach(optimizer, SIGMA, seed=SEED, namespace="", law=law)
    train(model, optimizer, steps)
    noise.stop(remove=False)
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def ddp(rank, ranks, folder):
    expected = single(make_model)
    model = DistributedDataParallel(make_model())
    optimizer = sgd(model)
    noise = attach(optimizer, SIGMA, seed=SEED)
    train(model, optimizer, STEPS, rank, ranks)
    check_noise(model, noise, STEPS)
    check_weights(model, expected)
    noise.stop()
    torch.manual_seed(100 + rank)  # ranks differ, as data loading often wants; rank 0's counts
    assert attach(optimizer, SIGMA).seed == 100


def sharded(rank, ranks, make=make_model, law="gaussian", tolerance=1e-5, **options):
    expected = single(make, law=law)
    model = make()
    for layer in model:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    optimizer = sgd(model)
    noise = attach(optimizer, SIGMA, seed=SEED, law=law, model=model)
    train(model, optimizer, STEPS, rank, ranks)
    check_noise(model, noise, STEPS, law)
    check_weights(model, expected, tolerance)
    before = [full(p) for p in model.parameters()]
    noisy = output(model)
    with noise.clean():
        plain = make()
        plain.load_state_dict({name: full(p) for name, p in model.named_parameters()})
        assert (output(model) - output(plain)).abs().max() < 100 * tolerance
        assert (output(model) - noisy).abs().max() > 1e-3
    assert torch.equal(output(model), noisy)
    assert all(torch.equal(full(p), w) for p, w in zip(model.parameters(), before, strict=True))
    noise.stop()


def fsdp(rank, ranks, folder):
    for law in ("gaussian", "rademacher", "student-t:5"):
        sharded(rank, ranks, law=law)


def fsdp_options(rank, ranks, folder):
    sharded(rank, ranks, offload_policy=CPUOffloadPolicy(pin_memory=False))
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    sharded(rank, ranks, mp_policy=half, tolerance=0.1)


def fsdp_other_dim(rank, ranks, folder):
    def last(parameter):
        """The last axis; torch wants it divisible there."""
        return Shard(parameter.dim() - 1 if parameter.shape[-1] % ranks == 0 else 0)

    sharded(rank, ranks, make=even_model, shard_placement_fn=last)


def relative(rank, ranks, folder):
    """Relative σ does not depend on the sharding."""
    model = make_model()
    scales = [m.scale for m in attach(sgd(model), 0.1, relative=True, seed=1).members]
    other = make_model()
    fully_shard(other)
    noise = attach(sgd(other), 0.1, relative=True, seed=1, namespace="other")
    assert [m.scale for m in noise.members] == scales


def _shaped(form, cut=None):
    """A model with layers that take turns and filters' shares, whole or cut along an axis."""
    model = even_model()
    if cut is not None:
        fully_shard(model, shard_placement_fn=lambda p: Shard(min(cut, p.dim() - 1)))
    optimizer = sgd(model)
    on = (optimizer,) if form == "weights" else (model, optimizer)
    add = attach if form == "weights" else perturb
    return model, optimizer, add(*on, SIGMA, relative="filter", layers="one", seed=SEED)


def shaped(rank, ranks, folder):
    """What each rank has of them is one process's, however cut; and it is resumed."""
    for cut, form in product((0, 1), ("weights", "forward")):
        alone, its_optimizer, its_noise = _shaped(form)
        model, optimizer, noise = _shaped(form, cut)
        for ours, whole in zip(noise.members, its_noise.members, strict=True):
            assert ours.scale == whole.scale
            assert whole.shares is None or torch.equal(ours.shares, whole.shares)
        for _ in range(5):
            train(alone, its_optimizer, 1)
            train(model, optimizer, 1)  # the same examples on every rank
            _check_same_noise(alone, its_noise, model, noise, 2)  # a layer's weight and bias
        check_weights(model, {name: full(p) for name, p in alone.named_parameters()})
        states = get_state_dict(model, optimizer)
        place = f"{folder}/shaped_{cut}_{form}"
        dcp.save({"model": states[0], "optimizer": states[1]}, checkpoint_id=place)
        other, other_optimizer, other_noise = _shaped(form, 1 - cut)
        states = get_state_dict(other, other_optimizer)
        loaded = {"model": states[0], "optimizer": states[1]}
        dcp.load(loaded, checkpoint_id=place)
        set_state_dict(other, other_optimizer, model_state_dict=loaded["model"],
                       optim_state_dict=loaded["optimizer"])  # fmt: skip
        train(model, optimizer, 3)
        train(other, other_optimizer, 3)
        _check_same_noise(model, noise, other, other_noise, 2)
        check_weights(other, {name: full(p) for name, p in model.named_parameters()})
        for one in (noise, its_noise, other_noise):
            one.stop()


def elements(rank, ranks, folder):
    """Each rank multiplies what it has of z, however cut, with its part of the one draw."""
    alone, model = even_model(), even_model()
    fully_shard(model, shard_placement_fn=lambda p: Shard(p.dim() - 1))
    optimizers = [sgd(alone), sgd(model)]
    noises = [perturb(one, optimizer, SIGMA, relative="element", seed=SEED)
              for one, optimizer in zip((alone, model), optimizers, strict=True)]  # fmt: skip
    for _ in range(5):
        train(alone, optimizers[0], 1)
        train(model, optimizers[1], 1)  # the same examples on every rank
        for p, q in zip(alone.parameters(), model.parameters(), strict=True):
            xi = noises[0].injected(p)
            torch.testing.assert_close(full(noises[1].injected(q)), xi, rtol=1e-5, atol=1e-8)
            assert p.dim() < 2 or xi.any()
    check_weights(model, {name: full(p) for name, p in alone.named_parameters()})
    for noise in noises:
        noise.stop()


def _check_same_noise(model, noise, other, other_noise, tensors):
    """Bit for bit the same, on so many tensors."""
    carried = [full(noise.injected(p)) for p in model.parameters()]
    theirs = [full(other_noise.injected(p)) for p in other.parameters()]
    assert all(map(torch.equal, carried, theirs))
    assert sum(bool(xi.any()) for xi in carried) == tensors


FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def checkpoint_model():
    model = make_model()
    fully_shard(model)
    return model, sgd(model)


def save(rank, ranks, folder):
    model, optimizer = checkpoint_model()
    noise = attach(optimizer, SIGMA, seed=SEED)
    train(model, optimizer, 20, rank, ranks)
    before = [full(p) for p in model.parameters()]
    for attempt, options in (("first", None), ("nested", None), ("flat", FLAT)):
        states = get_state_dict(model, optimizer, options=options)
        dcp.save({"model": states[0], "optimizer": states[1]}, checkpoint_id=f"{folder}/{attempt}")
        assert noise.step_count == 20
        for parameter, w in zip(model.parameters(), before, strict=True):
            assert torch.equal(full(parameter), w)


def load(rank, ranks, folder):
    expected = single(make_model)
    for form, attach_first in product(("nested", "flat"), (True, False)):
        options = FLAT if form == "flat" else None
        model, optimizer = checkpoint_model()
        if attach_first:
            noise = attach(optimizer, SIGMA, seed=SEED)
        else:
            expect_noise(optimizer)
        states = get_state_dict(model, optimizer, options=options)
        saved = {"model": states[0], "optimizer": states[1]}
        dcp.load(saved, checkpoint_id=f"{folder}/{form}")
        set_state_dict(
            model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"],
            options=options,
        )  # fmt: skip
        if not attach_first:
            noise = attach(optimizer, SIGMA)
        assert noise.step_count == 20, noise.step_count
        check_noise(model, noise, 20)
        train(model, optimizer, STEPS - 20, rank, ranks)
        check_noise(model, noise, STEPS)
        check_weights(model, expected)
        noise.stop(remove=False)


def replaced(rank, ranks, folder):
    """Each rank sees it in its own part, and all in the same step; a resume says nothing."""
    for shard in (False, True):
        model = make_model()
        if shard:
            fully_shard(model)
        else:
            model = DistributedDataParallel(model)
        optimizer = sgd(model)
        noise = attach(optimizer, SIGMA, seed=SEED, model=model)
        train(model, optimizer, 5, rank, ranks)
        best = [full(p).clone() for p in model.parameters()]
        state = optimizer.state_dict()
        train(model, optimizer, 5, rank, ranks)
        with torch.no_grad():
            for parameter, w in zip(model.parameters(), best, strict=True):
                new = w
                if shard:
                    mesh, placements = parameter.device_mesh, parameter.placements
                    new = distribute_tensor(w, mesh, placements)
                parameter.copy_(new)
        with pytest.raises(RuntimeError, match="weights were replaced since the last step"):
            noise.stop()
        optimizer.load_state_dict(state)
        check_noise(model, noise, 5)
        train(model, optimizer, 2, rank, ranks)
        noise.stop()


def save_plain_sgd(rank, ranks, folder):
    """DCP makes steps of its own at learning rate 0 when an optimizer has no state yet."""
    model = make_model()
    fully_shard(model)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05)
    noise = attach(optimizer, SIGMA, seed=SEED)
    train(model, optimizer, 3, rank, ranks)
    before = [full(p) for p in model.parameters()]
    for _ in range(2):
        get_state_dict(model, optimizer)
        assert noise.step_count == 3
        for parameter, w in zip(model.parameters(), before, strict=True):
            assert torch.equal(full(parameter), w)


def disagree(rank, ranks, folder):
    model = make_model()
    optimizer = sgd(model)
    before = [p.detach().clone() for p in model.parameters()]
    for settings, word in (
        ({"seed": rank}, "seed"),
        ({"seed": 1, "taps": (1, -1) if rank else (1,)}, "taps"),
        ({"seed": 1, "law": "laplace" if rank else "gaussian"}, "law"),
        ({"seed": 1, "schedule": lambda n: 1.0 + rank}, "sigma by tensor"),
    ):
        with pytest.raises(RuntimeError, match=f"the ranks disagree on the noise: {word} is"):
            attach(optimizer, 0.1, **settings)
    noise = attach(optimizer, 0.1, seed=1)
    state = optimizer.state_dict()
    own = json.loads(state["param_groups"][0]["antipgd"])
    state["param_groups"][0]["antipgd"] = json.dumps(own | {"step": rank})
    with pytest.raises(RuntimeError, match="the ranks disagree on the noise: step is"):
        optimizer.load_state_dict(state)
    assert noise.step_count == 0
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), before, strict=True))


def part(rank, ranks, folder):
    """What one rank alone does is found, without anyone waiting: after 50 steps, or at a save."""

    def other_sigma(optimizer, noise):
        noise.sigma = SIGMA * (1 + rank)

    def no_rate(optimizer, noise):
        optimizer.param_groups[0]["lr"] = 0.0 if rank == 1 else 0.05

    def nothing(optimizer, noise):
        pass

    def same(optimizer, noise):
        noise.sigma = 2 * SIGMA

    for change, act in product((other_sigma, no_rate, nothing, same), ("steps", "save", "stop")):
        model = make_model()
        optimizer = sgd(model)
        schedule = (lambda n: 1.0 + rank * (n > 3)) if change is nothing else None
        noise = attach(optimizer, SIGMA, seed=SEED, schedule=schedule)
        train(model, optimizer, 5)
        change(optimizer, noise)
        found = ""
        try:
            for _ in range(120 if act == "steps" else 3):
                optimizer.step()
            if act != "steps":
                optimizer.state_dict() if act == "save" else noise.stop()
        except RuntimeError as error:
            found = str(error)
        everyone = [None] * ranks
        dist.all_gather_object(everyone, found)
        assert any(everyone) == (change is not same), (change, act, everyone)
        word = "the ranks have parted in their noise: (step|clock|sigma of draws) is"
        assert all(re.match(word, text) for text in everyone if text), everyone
        noise.stop(remove=False)


def tensor_parallel(rank, ranks, folder):
    expected = single(even_model)
    model = even_model()
    mesh = init_device_mesh("cpu", (ranks,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = sgd(model)
    noise = attach(optimizer, SIGMA, seed=SEED)
    train(model, optimizer, STEPS)
    check_noise(model, noise, STEPS)
    check_weights(model, expected)


def nested(rank, ranks, folder):
    """FSDP2 over tensor parallel, on a mesh of 2 × 2."""
    expected = single(even_model)
    model = even_model()
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("data", "tensor"))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh["tensor"], plan)
    for layer in model:
        fully_shard(layer, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    optimizer = sgd(model)
    noise = attach(optimizer, SIGMA, seed=SEED)
    train(model, optimizer, STEPS, rank // 2, 2)
    check_noise(model, noise, STEPS)
    check_weights(model, expected)


def mutated_300(rank, ranks, folder, count=300):
    """One rank gets a state that is not right; nobody hangs, all have the same outcome."""
    found = try_on_ranks(count, 2, rank, ranks)
    everyone = [None] * ranks
    dist.all_gather_object(everyone, found)
    assert all(other == found for other in everyone), everyone
    assert found["load", "refused"] > count / 2
    assert found["load", "works"] > 0
    print(dict(found), flush=True)


def mutated_2000(rank, ranks, folder):
    mutated_300(rank, ranks, folder, 2000)


SCENARIOS = {
    f.__name__: f
    for f in (ddp, fsdp, fsdp_options, fsdp_other_dim, relative, shaped, elements, replaced, save,
              load, save_plain_sgd, disagree, part, tensor_parallel, nested, mutated_300,
              mutated_2000)
}  # fmt: skip

if __name__ == "__main__":
    run(SCENARIOS)
