"""torch.distributed.checkpoint in one process: entries by name, nested or flattened."""

import copy
import logging

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)

from antipgd.torch import attach, expect_noise
from training import SEED, flat, make_model, train

# torch's own, about running without process group
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch.distributed")


def make():
    model = make_model(torch.float32)
    groups = [
        {"params": list(model[0].parameters())},
        {"params": list(model[2:].parameters()), "lr": 0.02, "sigma": 0.03},
    ]
    return model, torch.optim.AdamW(groups, lr=0.01)


def save(model, optimizer, folder, options):
    states = get_state_dict(model, optimizer, options=options)
    saved = dict(zip(("model", "optimizer"), states, strict=True))
    dcp.save(saved, checkpoint_id=folder, no_dist=True)


def load(model, optimizer, folder, options):
    states = get_state_dict(model, optimizer, options=options)
    saved = dict(zip(("model", "optimizer"), states, strict=True))
    dcp.load(saved, checkpoint_id=folder, no_dist=True)
    set_state_dict(
        model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"],
        options=options,
    )  # fmt: skip


@pytest.mark.parametrize("flattened", [False, True])
@pytest.mark.parametrize("order", ["attach, load", "load, attach"])
def test_resume_is_bitwise(tmp_path, flattened, order):
    options = StateDictOptions(flatten_optimizer_state_dict=flattened)
    model, optimizer = make()
    noise = attach(optimizer, sigma=0.1, seed=SEED, model=model)
    train(model, optimizer, 4)
    noise.pause()  # a field that is not written as long as it is false
    save(model, optimizer, tmp_path, options)
    noise.resume()
    train(model, optimizer, 4)
    whole = flat(model)
    noise.stop(remove=False)

    model, optimizer = make()
    if order == "attach, load":
        noise = attach(optimizer, sigma=0.1, seed=1, model=model)
    else:
        expect_noise(optimizer)
    load(model, optimizer, tmp_path, options)
    if order == "load, attach":
        noise = attach(optimizer, sigma=0.1, seed=1, model=model)
    assert (noise.step_count, noise.paused) == (4, True)
    noise.resume()
    train(model, optimizer, 4)
    assert np.array_equal(flat(model), whole)
    noise.stop()


def test_a_checkpoint_without_noise_does_not_meet_the_expectation(tmp_path):
    model, optimizer = make()
    save(model, optimizer, tmp_path, None)
    expect_noise(optimizer)
    with pytest.raises(CheckpointException, match=r"Missing key in checkpoint.*antipgd"):
        load(model, optimizer, tmp_path, None)


def test_what_was_expected_and_did_not_come():
    """Nothing was loaded: the noise begins, also after a plain save and load."""
    model, optimizer = make()
    expect_noise(optimizer)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    noise = attach(optimizer, sigma=0.1)
    assert noise.step_count == 0
    train(model, optimizer, 1)
    noise.stop()
    assert all("antipgd" not in group for group in optimizer.param_groups)


def test_noise_that_was_dropped_on_the_way_is_asked_for(tmp_path, caplog):
    model, optimizer = make()
    noise = attach(optimizer, sigma=0.1, seed=SEED, model=model)
    train(model, optimizer, 2)
    save(model, optimizer, tmp_path, None)
    noise.stop(remove=False)
    model, optimizer = make()
    load(model, optimizer, tmp_path, None)  # into an optimizer that expects none
    with caplog.at_level(logging.INFO, logger="antipgd"):
        attach(optimizer, sigma=0.1, seed=SEED, model=model)
    assert "expect_noise(optimizer)" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="antipgd"):
        attach(make()[1], sigma=0.1, seed=SEED)
    assert "expect_noise" not in caplog.text
