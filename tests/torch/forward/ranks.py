"""What each rank of a torchrun job does in test_ranks.py, with noise in the forward pass."""

import itertools
import json
import random
from contextlib import nullcontext
from functools import partial
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from antipgd.torch import perturb
from explicit_z import SEED, SIGMA, Explicit, Reads, adamw, check_same, clean, momentum, noisy, own
from job import batch, full, make_model, run, sgd

STEPS = 10
KINDS = tuple(product((momentum, adamw), ("keep", "recompute")))


def share(rank, ranks):
    x, y = batch()
    return x[rank::ranks], y[rank::ranks]


def backward_of(x, y):
    def backward(model):
        ((model(x).float() - y) ** 2).mean().backward()

    return backward


def compare(
    make, data, optimizer=momentum, type_read=None, drawn=(0, 1), wrap=None, steps=STEPS,
    backward=None, **options,
):  # fmt: skip
    """Reads are one process's, parameters bit for bit the explicit z-form's."""
    reference = Explicit(lambda: (wrap or _as_it_is)(make()), optimizer, type_read, drawn)
    model = make()
    parameters, stepper = own(model), optimizer(model)
    noise = perturb(model, stepper, SIGMA, seed=SEED, **options)
    reads, backward = Reads(model), backward or backward_of(*data)
    called = (wrap or _as_it_is)(model)
    for step in range(steps):
        expected = noisy(clean(parameters), step, type_read, *drawn)
        stepper.zero_grad()
        backward(called)
        reads.check(expected)
        reference.step(backward)
        stepper.step()
        check_same(parameters, reference.z)
    assert noise.step_count == steps
    noise.stop()


def _as_it_is(model):
    return model


def each(model, **options):
    """fully_shard on every layer and on the root."""
    for layer in model:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def children(model, **options):
    """fully_shard on the layers alone: each begins lazily, while the pass is open."""
    for layer in model:
        fully_shard(layer, **options)
    return model


HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
OPTIONS = (
    {"reshard_after_forward": True},
    {"reshard_after_forward": False},
    {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
    {"mp_policy": HALF},
)


def sharded(how, options, data, optimizer, memory):
    type_read = torch.bfloat16 if "mp_policy" in options else None
    compare(
        lambda: how(make_model(), **options), data, optimizer, type_read=type_read, memory=memory
    )


def all_kinds(rank, ranks, folder):
    for how, options, kind in product((each, children, fully_shard), OPTIONS, KINDS):
        sharded(how, options, share(rank, ranks), *kind)


def fsdp(rank, ranks, folder):
    """Some of them: every way to shard, every option, every optimizer, both memories."""
    ways = (each, children, each, children)
    for how, options, kind in zip(ways, OPTIONS, KINDS, strict=True):
        sharded(how, options, share(rank, ranks), *kind)


def rounded(rank, ranks, folder):
    """Gathered in bfloat16, a small sigma is lost, though the parameters are float32."""
    model = each(make_model(), mp_policy=HALF)
    optimizer = momentum(model)
    with pytest.raises(ValueError, match=r"whose type torch.bfloat16 would round it away"):
        perturb(model, optimizer, 1e-5, seed=SEED)
    untouched(model, optimizer)
    noise = perturb(model, optimizer, SIGMA, seed=SEED)
    with pytest.raises(ValueError, match=r"whose type torch.bfloat16 would round it away"):
        noise.sigma = 1e-5
    assert noise.sigma == SIGMA
    noise.stop()


class Block(torch.nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up, self.down = torch.nn.Linear(width, inner), torch.nn.Linear(inner, width)

    def forward(self, h):
        return h + self.down(torch.tanh(self.up(self.norm(h))))


class Text(torch.nn.Module):
    """Token by token, with sizes that no number of ranks divides; a block may come twice."""

    def __init__(self, words=11, width=8, inner=12, tied=False, twice=False, saving=None):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(words, width)
        self.blocks = torch.nn.ModuleList(Block(width, inner) for _ in range(1 if twice else 2))
        self.head = torch.nn.Linear(width, words, bias=False)
        self.saving = saving
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        h = self.embed(tokens)
        for i in range(2):
            block = self.blocks[i % len(self.blocks)]
            h = block(h) if self.saving is None else self.recomputed(block, h)
        return self.head(h)

    def recomputed(self, block, h):
        return checkpoint(block, h, use_reentrant=self.saving == "reentrant")


def text(rank=0, ranks=1):
    tokens = torch.randint(0, 11, (12, 12), generator=torch.Generator().manual_seed(2))
    tokens = tokens[rank::ranks]
    return tokens, torch.nn.functional.one_hot(tokens.roll(1, 1), 11).float()


def by_block(model, **options):
    for part in (model.embed, *model.blocks, model.head):
        fully_shard(part, **options)
    return fully_shard(model, **options)


def saving_text(saving):
    return by_block(Text(saving=saving))


def fsdp_text(rank, ranks, folder):
    """Activation checkpointing, a block twice in a pass, tied weights."""
    data = text(rank, ranks)
    for memory, saving in product(("keep", "recompute"), ("reentrant", "not reentrant")):
        compare(partial(saving_text, saving), data, adamw, memory=memory)
    for memory in ("keep", "recompute"):
        compare(lambda: by_block(Text(twice=True)), data, memory=memory)
        compare(lambda: fully_shard(Text(tied=True)), data, memory=memory)


PLAN = {
    "embed": RowwiseParallel(input_layouts=Replicate()),
    "blocks.*.up": ColwiseParallel(),
    "blocks.*.down": RowwiseParallel(),
    "head": ColwiseParallel(output_layouts=Replicate()),
}
SEQUENCE = {
    "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "blocks.*.norm": SequenceParallel(),
    "blocks.*.up": ColwiseParallel(input_layouts=Shard(1)),
    "blocks.*.down": RowwiseParallel(output_layouts=Shard(1)),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}


def parallel_text(mesh, plan):
    return parallelize_module(Text(), mesh, plan)


def tensor_parallel(rank, ranks, folder):
    mesh = init_device_mesh("cpu", (ranks,))
    for optimizer, plan in product((momentum, adamw), (PLAN, SEQUENCE)):
        compare(partial(parallel_text, mesh, plan), text(), optimizer)


def two_ways(rank, ranks, folder):
    """FSDP2 over tensor parallel."""
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("data", "tensor"))
    data = text(rank // (ranks // 2), 2)

    def make(plan):
        return by_block(parallel_text(mesh["tensor"], plan), mesh=mesh["data"])

    for optimizer, plan in product((momentum, adamw), (PLAN, SEQUENCE)):
        compare(partial(make, plan), data, optimizer)


def hybrid(rank, ranks, folder):
    """Shards within, replicas across; and a smaller mesh after forward."""
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicas", "shards"))
    for memory in ("keep", "recompute"):
        compare(lambda: each(make_model(), mesh=mesh), share(rank, ranks), memory=memory)
        compare(
            lambda: each(make_model(), reshard_after_forward=2), share(rank, ranks), memory=memory
        )


def replicas(rank, ranks, folder):
    """DDP, perturbed after and before it wraps the model; the ranks read one draw."""
    data = share(rank, ranks)
    for optimizer, memory in KINDS:
        compare(lambda: DistributedDataParallel(make_model()), data, optimizer, memory=memory)
    compare(make_model, data, wrap=DistributedDataParallel)


def rank_draws(rank, ranks, folder):
    """Every rank its own draw, or a half of a pair ±."""
    data = share(rank, ranks)
    pair = (rank // 2, -1 if rank % 2 else 1)
    for antithetic, drawn in ((False, (rank, 1)), (True, pair)):
        options = {"draws": "rank", "antithetic": antithetic, "drawn": drawn}
        compare(lambda: DistributedDataParallel(make_model()), data, **options)
        compare(make_model, data, wrap=DistributedDataParallel, **options)


class Branches(torch.nn.Module):
    """Two ways through, of which a pass takes one."""

    def __init__(self):
        super().__init__()
        self.ways = torch.nn.ModuleList([make_model(), make_model(4)])
        self.way = 0

    def forward(self, x):
        return self.ways[self.way](x)


def unused(rank, ranks, folder):
    """Ranks that go different ways, so that each leaves parameters unused, and in turn."""

    def backward_at(step, x, y):
        def backward(model):
            model.module.way = (rank + step) % 2 if step % 3 else 0
            backward_of(x, y)(model)

        return backward

    def make():
        return DistributedDataParallel(Branches(), find_unused_parameters=True)

    reference, model = Explicit(make, momentum), make()
    parameters, stepper = own(model), momentum(model)
    noise = perturb(model, stepper, SIGMA, seed=SEED)
    for step in range(STEPS):
        backward = backward_at(step, *share(rank, ranks))
        stepper.zero_grad()
        backward(model)
        reference.step(backward)
        stepper.step()
        check_same(parameters, reference.z)
    noise.stop()


def accumulated(rank, ranks, folder):
    """Three micro-batches a step, of which the last one synchronises; DDP and FSDP2."""
    x, y = share(rank, ranks)

    def backward(model):
        for i in range(3):
            last = i == 2
            if hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(last)
            with nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync():
                backward_of(x[i::3], y[i::3])(model)

    for memory in ("keep", "recompute"):
        for make in (lambda: DistributedDataParallel(make_model()), lambda: each(make_model())):
            compare(make, None, backward=backward, memory=memory)


def uneven(rank, ranks, folder):
    """Under join() a rank whose data has ended makes no step: its count stays, as momentum does."""
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    noise = perturb(model, optimizer, SIGMA, seed=SEED)
    with model.join():
        for _ in range(5 - rank):
            optimizer.zero_grad()
            backward_of(*share(rank, ranks))(model)
            optimizer.step()
    assert noise.step_count == 5 - rank
    everyone = [None] * ranks
    dist.all_gather_object(everyone, [p.detach() for p in model.parameters()])
    assert all(torch.equal(p, q) for p, q in zip(everyone[0], everyone[-1], strict=True))
    state = [optimizer.state_dict()]
    dist.broadcast_object_list(state)
    optimizer.load_state_dict(state[0])
    assert noise.step_count == 5
    reads = Reads(model)
    expected = noisy(clean(own(model)), 5)
    backward_of(*share(rank, ranks))(model)
    reads.check(expected)
    noise.stop()


def fsdp_rank_draws(rank, ranks, folder):
    """FSDP2 gathers whole weights, so that every rank can read its own draw."""
    x, y = share(rank, ranks)
    for antithetic, memory in product((False, True), ("keep", "recompute")):
        drawn = (rank // 2, -1 if rank % 2 else 1) if antithetic else (rank, 1)
        model, alone = each(make_model()), make_model()
        stepper = momentum(model)
        parameters = own(model)
        noise = perturb(
            model, stepper, SIGMA, seed=SEED, draws="rank", antithetic=antithetic, memory=memory
        )
        reads = Reads(model)
        for step in range(STEPS):
            expected = noisy(clean(parameters), step, None, *drawn)
            stepper.zero_grad()
            backward_of(x, y)(model)
            reads.check(expected)
            alone.load_state_dict(expected)
            alone.zero_grad()
            backward_of(x, y)(alone)
            for name, p in alone.named_parameters():
                dist.all_reduce(p.grad)
                torch.testing.assert_close(full(parameters[name].grad), p.grad / ranks)
            stepper.step()
        noise.stop()


def disagree(rank, ranks, folder):
    """What the ranks do not have alike is refused on all of them, and nothing changes."""
    model = make_model()
    optimizer = sgd(model)
    first = rank == 0
    for settings, word in (
        ({"seed": rank}, "seed is"),
        ({"sigma": 0.1 + rank}, "sigma is"),
        ({"hold": 1 + rank}, "hold is"),
        ({"draws": "rank" if first else "step"}, "draws is"),
        ({"antithetic": first}, "antithetic is"),
        ({"law": "laplace" if first else "gaussian"}, "law is"),
        ({"taps": (1, -1) if first else (1, 0, -1)}, "taps is"),
        ({"exclude": "0.*" if first else "2.*"}, "names is"),
        ({"exclude": "0.*" if first else None}, "names is"),
        ({"relative": first}, "relative is"),
        ({"namespace": str(rank)}, "namespace is"),
        ({"schedule": lambda n: 1.0 + rank}, "sigma by tensor is"),
    ):
        with pytest.raises(RuntimeError, match=f"the ranks disagree on the noise: {word}"):
            perturb(model, optimizer, **{"sigma": 0.1, "seed": 1} | settings)
        untouched(model, optimizer)
    kind, words = (ValueError, "hold") if first else (RuntimeError, "rank 0 refused, so all do")
    with pytest.raises(kind, match=words):
        perturb(model, optimizer, 0.1, hold=0 if first else 1)
    kind, words = (ValueError, "matches no") if first else (RuntimeError, "rank 0 refused")
    with pytest.raises(kind, match=words):
        perturb(model, optimizer, 0.1, exclude="nobody" if first else None)
    untouched(model, optimizer)


def untouched(model, optimizer):
    assert all(type(module._parameters) is dict for module in model.modules())
    hooks = [hook for module in model.modules() for hook in module._forward_pre_hooks.values()]
    assert not any(type(hook).__module__.startswith("antipgd") for hook in hooks)
    assert not optimizer._optimizer_step_post_hooks
    assert "antipgd" not in optimizer.param_groups[0]


def disagree_at_load(rank, ranks, folder):
    model = make_model()
    optimizer = sgd(model)
    noise = perturb(model, optimizer, 0.1, seed=1)
    state = optimizer.state_dict()
    own_record = json.loads(state["param_groups"][0]["antipgd"])
    for changed, word in (({"step": rank}, "step is"), ({"seed": rank}, "seed is")):
        state["param_groups"][0]["antipgd"] = json.dumps(own_record | changed)
        with pytest.raises(RuntimeError, match=f"the ranks disagree on the noise: {word}"):
            optimizer.load_state_dict(state)
    kind, words = (ValueError, "hold") if rank else (RuntimeError, "rank 1 refused, so all do")
    state["param_groups"][0]["antipgd"] = json.dumps(own_record | ({"hold": 2} if rank else {}))
    with pytest.raises(kind, match=words):
        optimizer.load_state_dict(state)
    state["param_groups"][0]["antipgd"] = json.dumps(own_record)
    if rank:
        del state["param_groups"][0]["antipgd"]
    with pytest.raises(RuntimeError, match="disagree on the noise: noise in the checkpoint is"):
        optimizer.load_state_dict(state)
    assert (noise.step_count, noise.seed) == (0, 1)
    noise.stop()


def refused(rank, ranks, folder):
    """What tensor-parallel weights cannot have, on all ranks before anything changes."""
    mesh = init_device_mesh("cpu", (ranks,))
    model = parallelize_module(Text(), mesh, PLAN)
    optimizer = momentum(model)
    for options, words in (
        ({"draws": "rank"}, "draws='rank' does not work with tensor-parallel weights"),
        ({"memory": "recompute"}, "memory='recompute' does not work with tensor-parallel weights"),
    ):
        with pytest.raises(ValueError, match=words):
            perturb(model, optimizer, SIGMA, seed=SEED, **options)
        untouched(model, optimizer)


class Raw(torch.nn.Module):
    """Reads weights past its modules, or not."""

    def __init__(self, raw):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(6, 4 * 3), torch.nn.Linear(4 * 3, 1)
        self.raw = raw

    def forward(self, x):
        penalty = 0.0
        if self.raw:
            penalty = (dict(self.named_parameters())["second.weight"] ** 2).sum()
            penalty = penalty.full_tensor() if hasattr(penalty, "full_tensor") else penalty
        return self.second(torch.tanh(self.first(x))) + penalty


RAW_PLAN = {"first": ColwiseParallel(), "second": RowwiseParallel()}


def audit(rank, ranks, folder):
    """Finds what was read past the noise; says nothing where all is well (see `compare`)."""
    mesh = init_device_mesh("cpu", (ranks,))
    find_raw(DistributedDataParallel(Raw(True)), share(rank, ranks))
    find_raw(fully_shard(Raw(True)), share(rank, ranks))
    find_raw(parallelize_module(Raw(True), mesh, RAW_PLAN), batch())


def find_raw(model, data):
    optimizer, parameters = momentum(model), own(model)
    noise = perturb(model, optimizer, SIGMA, seed=SEED)
    before = clean(parameters)
    backward_of(*data)(model)
    with pytest.raises(RuntimeError, match=r"read without noise.*'second.weight'") as found:
        optimizer.step()
    assert "first" not in str(found.value)
    after = clean(parameters)
    assert all(torch.equal(after[name], z) for name, z in before.items())
    noise.stop()


class Mixed(torch.nn.Module):
    """Reads a replicated weight in two ways, whose gradients lie differently on the ranks."""

    def __init__(self, mesh):
        super().__init__()
        self.norm = torch.nn.LayerNorm(6)
        self.mesh = mesh

    def forward(self, x):
        rows = DTensor.from_local(x, self.mesh, [Replicate()])
        whole = torch.nn.functional.layer_norm(rows, (6,), self.norm.weight, self.norm.bias)
        parts = self.norm(rows.redistribute(placements=[Shard(0)]))
        return (parts.full_tensor() + whole.to_local()).sum(1, keepdim=True)


def audit_of_mixed(rank, ranks, folder):
    mesh = init_device_mesh("cpu", (ranks,))
    compare(
        lambda: parallelize_module(Mixed(mesh), mesh, {"norm": SequenceParallel(sequence_dim=0)}),
        batch(),
    )


def audit_two_ways(rank, ranks, folder):
    """A raw read is found under FSDP2 over tensor parallel, too."""
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("data", "tensor"))
    model = parallelize_module(Raw(True), mesh["tensor"], RAW_PLAN)
    find_raw(fully_shard(model, mesh=mesh["data"]), share(rank // (ranks // 2), 2))


def part(rank, ranks, folder):
    """What one rank alone does is found, without anyone waiting: after 50 steps, or at a save."""
    for apart, saves in product((True, False), repeat=2):
        model = make_model()
        optimizer = sgd(model)
        noise = perturb(model, optimizer, SIGMA, seed=SEED)
        noise.sigma = SIGMA * (1 + rank * apart)
        found = ""
        try:
            for _ in range(3 if saves else 120):
                optimizer.step()
            if saves:
                optimizer.state_dict()
        except RuntimeError as error:
            found = str(error)
        everyone = [None] * ranks
        dist.all_gather_object(everyone, found)
        assert any(everyone) == apart, everyone
        assert all("the ranks have parted in their noise" in text for text in everyone if text)
        noise.stop()


def random_models(rank, ranks, folder, count=12):
    """Widths, depths, ways to shard, options, optimizers and settings by chance, alike on all."""
    chance = random.Random(ranks)
    for _ in range(count):
        widths = [6, *(chance.randint(1, 9) for _ in range(chance.randint(1, 4))), 1]
        how = chance.choice((each, children, fully_shard))
        options = chance.choice(OPTIONS)
        type_read = torch.bfloat16 if "mp_policy" in options else None
        make = partial(_made, widths, how, options)
        kind, memory = chance.choice(KINDS)
        compare(make, share(rank, ranks), kind, type_read=type_read, memory=memory)


def _made(widths, how, options):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    return how(torch.nn.Sequential(*layers), **options)


SCENARIOS = {
    f.__name__: f
    for f in (fsdp, all_kinds, rounded, fsdp_text, tensor_parallel, two_ways,
              hybrid, replicas, rank_draws, unused, accumulated, uneven, fsdp_rank_draws, disagree,
              disagree_at_load, refused, audit, audit_of_mixed, audit_two_ways, part, random_models)
}  # fmt: skip

if __name__ == "__main__":
    run(SCENARIOS)
