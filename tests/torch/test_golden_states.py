"""Checkpoints of every format that was ever written go on as they would have then."""

import copy
import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from antipgd.torch import attach, clean_state_dict
from antipgd.torch.members import rms
from antipgd.torch.record import FORMAT

VECTORS = Path(__file__).parents[1] / "vectors"
spec = importlib.util.spec_from_file_location("write_states", VECTORS / "write_states.py")
writing = importlib.util.module_from_spec(spec)
spec.loader.exec_module(writing)

WRITTEN = [
    *range(FORMAT + 1),
    "1-samples",
    "1-clocks",
]  # fields that came without a new format stand after it
GOLDEN = {name: json.loads((VECTORS / f"noise-state-{name}.json").read_text()) for name in WRITTEN}


def tensors(state):
    """An optimizer's state as torch has it, from its plain form."""
    buffers = {
        int(i): {name: torch.tensor(value, dtype=torch.float64) for name, value in entry.items()}
        for i, entry in state["state"].items()
    }
    return {"state": buffers, "param_groups": copy.deepcopy(state["param_groups"])}


COUNTED_ALIKE = ("anti", "positions")  # at all times; other taps were not looked at before


def clock_of(case):
    """Σησ²/(1−momentum) as it stands in the vectors, by hand."""
    if case == "no clean weights":
        return math.nan
    steps = writing.BEFORE / 0.1
    if case != "every field":
        return steps * (16 * 0.05 * 0.1**2 + 11 * 0.02 * 0.05**2) / 27
    weights, _ = writing.make(case)
    sizes = {name: rms(weight) ** 2 for name, weight in weights.items()}
    rates = [12 * 0.05 * 0.2**2 * sizes["a.0"], 4 * 0.05 * 0.2**2 * sizes["a.1"],
             6 * 0.02 * 0.05**2 * sizes["b.0"]]  # fmt: skip
    return steps * sum(rates) / 22 * (1 + 0.7**2)  # draws are carried with 1 and .7


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
    expected = clock_of(case) if "clocks" in str(written) or case in COUNTED_ALIKE else math.nan
    assert noise.clock == pytest.approx(expected, rel=1e-12, nan_ok=True)
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
