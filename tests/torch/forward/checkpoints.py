"""What each rank does about checkpoints in test_ranks.py: saved by some ranks, loaded by others."""

import copy
import logging
import warnings
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard

from antipgd.torch import attach, expect_noise, perturb
from explicit_z import SEED, SIGMA, Reads, adamw, clean, momentum, noisy, own
from job import batch, full, make_model, run

BEFORE, AFTER = 6, 4
FORMS = {
    "nested": StateDictOptions(),
    "flat": StateDictOptions(flatten_optimizer_state_dict=True),
}


def sharded():
    model = make_model()
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def two(model):
    """Matrices with one optimizer, vectors with the other."""
    named = list(model.named_parameters())
    return [
        torch.optim.SGD([(n, p) for n, p in named if p.dim() > 1], lr=0.05, momentum=0.9),
        torch.optim.AdamW([(n, p) for n, p in named if p.dim() == 1], lr=0.01),
    ]


OPTIMIZERS = {"one": lambda model: [adamw(model)], "two": two}


def train(model, optimizers, steps, rank, ranks):
    x, y = batch()
    for _ in range(steps):
        model.zero_grad()
        ((model(x[rank::ranks]) - y[rank::ranks]) ** 2).mean().backward()
        for optimizer in optimizers:
            optimizer.step()


def check_whole(parameters, expected):
    found = clean(parameters)
    assert all(torch.equal(found[name], z) for name, z in expected.items())


def states(model, optimizers, options):
    return dict(
        zip(("model", "optim"), get_state_dict(model, optimizers, options=options), strict=True)
    )


def load(model, optimizers, folder, options):
    saved = states(model, optimizers, options)
    dcp.load(saved, checkpoint_id=folder)
    set_state_dict(
        model, optimizers, model_state_dict=saved["model"], optim_state_dict=saved["optim"],
        options=options,
    )  # fmt: skip


def save(rank, ranks, folder):
    """Checkpoints of each form after some steps, and the weights some steps later."""
    for kind, make in OPTIMIZERS.items():
        model = sharded()
        parameters, optimizers = own(model), make(model)
        noise = perturb(model, optimizers, SIGMA, seed=SEED)
        train(model, optimizers, BEFORE, rank, ranks)
        for form, options in FORMS.items():
            dcp.save(
                states(model, optimizers, options), checkpoint_id=f"{folder}/{kind}-{form}-{ranks}"
            )
        train(model, optimizers, AFTER, rank, ranks)
        assert noise.step_count == BEFORE + AFTER
        weights = clean(parameters)
        if rank == 0:
            torch.save(weights, f"{folder}/{kind}-after-{ranks}.pt")
        noise.stop()


def resume(rank, ranks, folder):
    """From every number of ranks: the count and the draws go on, and so do the weights."""
    found = sorted(Path(folder).glob("*-after-*.pt"))
    assert found
    for path, form, first in product(found, FORMS, (True, False)):
        kind, _, others = path.stem.split("-")
        model = sharded()
        parameters, optimizers = own(model), OPTIMIZERS[kind](model)
        if first:
            noise = perturb(model, optimizers, SIGMA, seed=1)
        else:
            for optimizer in optimizers:
                expect_noise(optimizer)
        load(model, optimizers, f"{folder}/{kind}-{form}-{others}", FORMS[form])
        if not first:
            noise = perturb(model, optimizers, SIGMA)
        assert (noise.step_count, noise.seed) == (BEFORE, SEED)
        reads = Reads(model)
        for step in range(AFTER):
            expected = noisy(clean(parameters), BEFORE + step)
            train(model, optimizers, 1, rank, ranks)
            reads.check(expected)
        for name, z in torch.load(path).items():
            ours = full(parameters[name])
            if int(others) == ranks:
                assert torch.equal(ours, z), (name, path)
            torch.testing.assert_close(ours, z, rtol=0, atol=1e-5)
        noise.stop()


def from_rank_0(rank, ranks, folder):
    """A whole state that only rank 0 has, into optimizers that have made no step."""
    for make in OPTIMIZERS.values():
        model = sharded()
        optimizers = make(model)
        noise = perturb(model, optimizers, SIGMA, seed=SEED)
        train(model, optimizers, 3, rank, ranks)
        saved = states(model, optimizers, StateDictOptions(full_state_dict=True, cpu_offload=True))
        assert bool(saved["optim"]) == (rank == 0)
        z = clean(own(model))
        noise.stop()
        model = sharded()
        optimizers = make(model)
        noise = perturb(model, optimizers, SIGMA, seed=SEED)
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(model, saved["model"], options=options)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            set_optimizer_state_dict(model, optimizers, saved["optim"], options=options)
            assert noise.step_count == 3
            check_whole(own(model), z)
            train(model, optimizers, 1, rank, ranks)
        assert not any("optimizers were loaded" in str(word.message) for word in said)
        noise.stop()


def lost(rank, ranks, folder):
    """Where the noise was dropped on the way the weights are clean, and a word says so."""
    words = []
    handler = logging.Handler()
    handler.emit = lambda record: words.append(record.getMessage())
    logger = logging.getLogger("antipgd")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    model = sharded()
    optimizers = [adamw(model)]
    noise = perturb(model, optimizers, SIGMA, seed=SEED)
    train(model, optimizers, 3, rank, ranks)
    state = copy.deepcopy(optimizers[0].state_dict())
    dcp.save(states(model, optimizers, None), checkpoint_id=f"{folder}/kept")
    z = clean(own(model))
    del state["param_groups"][0]["antipgd"]
    optimizers[0].load_state_dict(state)
    assert words[-1].startswith("the checkpoint has no noise in it: its weights are taken to be")
    assert noise.step_count == 0
    noise.stop()
    model = sharded()
    optimizers = [adamw(model)]
    load(model, optimizers, f"{folder}/kept", None)  # into an optimizer that expects none
    noise = perturb(model, optimizers, SIGMA, seed=SEED)
    assert any("the noise begins at step 0" in text for text in words), words
    assert noise.step_count == 0
    check_whole(own(model), z)
    reads = Reads(model)
    train(model, optimizers, 1, rank, ranks)
    reads.check(z)
    noise.stop()
    logger.removeHandler(handler)


def other_form(rank, ranks, folder):
    """Noise in the weights is not taken for clean weights, nor the reverse."""
    ways = {
        "weights": (r"its noise is in the weights \(attach\).*clean_state_dict", attach, perturb),
        "forward": (r"its weights are clean \(perturb\).*delete 'antipgd'", perturb, attach),
    }
    for form, (words, before, after) in ways.items():
        noises = []
        for begin in (before, after):
            model = sharded()
            optimizer = momentum(model)
            if begin is perturb:
                noises.append(perturb(model, optimizer, SIGMA, seed=SEED))
            else:
                noises.append(attach(optimizer, SIGMA, seed=SEED, model=model))
            if begin is before:
                train(model, [optimizer], 2, rank, ranks)
                dcp.save(states(model, optimizer, None), checkpoint_id=f"{folder}/{form}")
            else:
                with pytest.raises(ValueError, match=words):
                    load(model, optimizer, f"{folder}/{form}", None)
                assert noises[-1].step_count == 0
            noises[-1].stop()


SCENARIOS = {f.__name__: f for f in (save, resume, from_rank_0, lost, other_form)}

if __name__ == "__main__":
    run(SCENARIOS)
