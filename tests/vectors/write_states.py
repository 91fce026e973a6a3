"""Writes noise-state-<format>.json, checkpoints that must load for ever; never over a file.

Run by hand when the saved noise has got a new format, or a field (FORMAT-FIELD):
python tests/vectors/write_states.py FORMAT
"""

import json
import sys
from pathlib import Path

import torch

from antipgd.torch import attach

CASES = {
    "anti": {"sigma": 0.1, "seed": 17},
    "positions": {"sigma": 0.1, "seed": 2**64 - 1, "law": "rademacher"},
    "every field": {
        "sigma": 0.2, "seed": 3, "law": "student-t:5", "taps": (1.0, -0.3, -0.7),
        "namespace": "teacher", "relative": True, "exclude": "b.1",
    },
    "no clean weights": {"sigma": 0.1, "seed": 0, "taps": (1.0, -0.9)},
}  # fmt: skip
BEFORE, AFTER = 4, 3


def make(case):
    """An optimizer with two param groups, in float64 and with weights that no generator draws."""
    shapes = {"a.0": (3, 4), "a.1": (4,), "b.0": (2, 3), "b.1": (5,)}
    weights = {
        name: torch.nn.Parameter(torch.linspace(-1, 1 + i, torch.Size(shape).numel(),
                                                dtype=torch.float64).reshape(shape))
        for i, (name, shape) in enumerate(shapes.items())
    }  # fmt: skip
    rows = list(weights.values() if case == "positions" else weights.items())
    groups = [{"params": rows[:2]}, {"params": rows[2:], "lr": 0.02, "sigma": 0.05}]
    return weights, torch.optim.SGD(groups, lr=0.05, momentum=0.9)


def train(weights, optimizer, steps):
    """Steps on Σ w² / 2."""
    for _ in range(steps):
        for weight in weights.values():
            weight.grad = weight.detach().clone()
        optimizer.step()


def numbers(weights):
    return {name: weight.detach().tolist() for name, weight in weights.items()}


def plain(state):
    """An optimizer's state with lists for tensors."""
    buffers = {
        str(i): {name: value.tolist() for name, value in entry.items()}
        for i, entry in state["state"].items()
    }
    return {"state": buffers, "param_groups": state["param_groups"]}


def written(case):
    weights, optimizer = make(case)
    noise = attach(optimizer, **CASES[case])
    train(weights, optimizer, BEFORE)
    found = {"model": numbers(weights), "optimizer": plain(optimizer.state_dict())}
    train(weights, optimizer, AFTER)
    found["weights after"] = numbers(weights)
    if noise.removable:
        with noise.clean():
            found["clean after"] = numbers(weights)
    noise.stop(remove=False)
    return found


def main():
    path = Path(__file__).with_name(f"noise-state-{sys.argv[1]}.json")
    if path.exists():
        raise SystemExit(f"{path.name} is there; a new format gets a file of its own")
    path.write_text(json.dumps({case: written(case) for case in CASES}, indent=1) + "\n")


if __name__ == "__main__":
    main()
