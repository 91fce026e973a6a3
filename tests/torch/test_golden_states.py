"""Checkpoints of every format that was ever written go on as they would have then."""

import copy
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from antipgd.torch import attach, clean_state_dict
from antipgd.torch.record import FORMAT

VECTORS = Path(__file__).parents[1] / "vectors"
spec = importlib.util.spec_from_file_location("write_states", VECTORS / "write_states.py")
writing = importlib.util.module_from_spec(spec)
spec.loader.exec_module(writing)

WRITTEN = [*range(FORMAT + 1), "1-samples"]  # fields that came without a new format stand after it
GOLDEN = {name: json.loads((VECTORS / f"noise-state-{name}.json").read_text()) for name in WRITTEN}


def tensors(state):
    """An optimizer's state as torch has it, from its plain form."""
    buffers = {
        int(i): {name: torch.tensor(value, dtype=torch.float64) for name, value in entry.items()}
        for i, entry in state["state"].items()
    }
    return {"state": buffers, "param_groups": copy.deepcopy(state["param_groups"])}


def close(weights, expected):
    for name, weight in weights.items():
        assert np.allclose(weight.detach().numpy(), expected[name], rtol=0, atol=1e-13), name


@pytest.mark.parametrize("order", ["attach, load", "load, attach"])
@pytest.mark.parametrize("case", writing.CASES)
@pytest.mark.parametrize("written", GOLDEN)
def test_a_checkpoint_of_each_format_goes_on(written, case, order):
    golden = GOLDEN[written][case]
    settings = writing.CASES[case] | {"seed": 1, "sigma": 0.01}  # the checkpoint's win
    weights, optimizer = writing.make(case)
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(torch.tensor(golden["model"][name], dtype=torch.float64))
    if order == "attach, load":
        noise = attach(optimizer, **settings)
    optimizer.load_state_dict(tensors(golden["optimizer"]))
    if order == "load, attach":
        noise = attach(optimizer, **settings)
    assert noise.step_count == writing.BEFORE
    writing.train(weights, optimizer, writing.AFTER)
    close(weights, golden["weights after"])
    if noise.removable:
        with noise.clean():
            close(weights, golden["clean after"])
    noise.stop(remove=False)


@pytest.mark.parametrize("case", [case for case in writing.CASES if case != "no clean weights"])
def test_clean_weights_from_each_format_are_the_same(case):
    names = list(writing.make(case)[0]) if case == "positions" else None
    found = []
    for golden in GOLDEN.values():
        model = {
            name: torch.tensor(value, dtype=torch.float64)
            for name, value in golden[case]["model"].items()
        }
        found.append(clean_state_dict(model, golden[case]["optimizer"], names))
        assert any(not torch.equal(found[-1][name], model[name]) for name in model)
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in other)
