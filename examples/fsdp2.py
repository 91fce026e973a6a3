"""FSDP2 on two processes, with checkpoints and one clean file to export.

Shard, make the optimizer, perturb: each rank makes the noise of the part of a weight that it holds,
bit for bit what one process would read. Kill it, run it again: it goes on from its last checkpoint.

    pip install '.[torch]' scikit-learn
    torchrun --nproc_per_node=2 examples/fsdp2.py      # half a minute on the CPU
"""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import antipgd.torch

STEPS, EVERY, RUNS = int(os.environ.get("STEPS", "200")), 50, Path("runs-fsdp2")
pixels, digits = map(torch.tensor, load_digits(return_X_y=True))
images, labels = pixels.float() / 16, digits


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, mesh = network(), init_device_mesh("cpu", (ranks,))
    for layer in (model[0], model[2], model[4], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    noise = antipgd.torch.perturb(model, optimizer, sigma=0.3, relative=True, seed=0)
    whole = [path.parent for path in RUNS.glob("*/.metadata")]  # which is written last
    if whole:
        state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.load(state, checkpoint_id=max(whole))
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
    for step in range(noise.step_count, STEPS):
        seen = torch.Generator().manual_seed(step * ranks + rank)  # another batch on each rank
        batch = torch.randint(1000, (32,), generator=seen)
        optimizer.zero_grad()
        cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        if noise.step_count % EVERY == 0:
            state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
            dcp.save(state, checkpoint_id=RUNS / f"{noise.step_count:06}")
    right = (model.eval()(images[1000:]).argmax(1) == labels[1000:]).sum()  # eval mode: no noise
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        torch.save(weights, RUNS / "weights.pt")
        alone = network()  # a plain model, in one process
        alone.load_state_dict(torch.load(RUNS / "weights.pt"))
        again = (alone(images[1000:]).argmax(1) == labels[1000:]).sum()
        print(f"{noise.step_count} steps of noise on {ranks} ranks")
        print(f"test accuracy: {right / 797:.1%} sharded, {again / 797:.1%} from weights.pt")
    time.sleep(0.5)  # else gloo's threads may hold tensors when Python ends, and torch aborts
    dist.destroy_process_group()


main()
