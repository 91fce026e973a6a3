"""What is refused of Muon with AdamW and of schedule-free optimizers, and what is said instead."""

import pytest
import schedulefree
import torch

from antipgd.torch import attach, perturb
from explicit_model import make
from matrix import cell, refused
from optimizer_rigs import SEED, SIGMA, muon_and_adamw


def plain(model):
    return all(type(module._parameters) is dict for module in model.modules())


@cell("muon", "bad_input")
def test_a_noise_for_each_of_two_optimizers(record_property):
    rig = muon_and_adamw()
    muon, adamw = rig.optimizers
    noise = perturb(rig.model, muon, SIGMA, seed=SEED)
    with refused(record_property, ValueError, r"give perturb both optimizers at once"):
        perturb(rig.model, adamw, SIGMA, seed=SEED)
    assert "antipgd" not in adamw.param_groups[0]
    noise.stop()
    assert plain(rig.model)


@cell("muon", "resume")
def test_one_of_two_loaded_is_said():
    rig = muon_and_adamw()
    perturb(rig.model, rig.given, SIGMA, seed=SEED)
    for n in range(3):
        rig.train(n)
    weights, states = rig.state()
    other = muon_and_adamw()
    noise = perturb(other.model, other.given, SIGMA, seed=SEED)
    other.model.load_state_dict(weights)
    other.optimizers[0].load_state_dict(states[0])
    with pytest.warns(UserWarning, match="1 of 2 optimizers were loaded; the noise goes on from"):
        other.train(3)
    assert noise.step_count == 4


KINDS = [getattr(schedulefree, f"{name}ScheduleFree") for name in ("SGD", "AdamW", "RAdam")]


@cell("schedulefree", "bad_input", form="weights")
@pytest.mark.parametrize("kind", KINDS)
def test_noise_in_averaged_weights(kind, record_property):
    model = make(torch.float32)
    optimizer = kind(model.parameters(), lr=0.01)
    with refused(record_property, ValueError, "moves weights towards an average"):
        attach(optimizer, SIGMA)
    assert not optimizer._optimizer_step_post_hooks
    assert plain(model)
