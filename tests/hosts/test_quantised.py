"""8-bit optimizers keep 8-bit states here, and weights of fewer than 16 bits are refused."""

import bitsandbytes
import pytest
import torch
import torchao
from torch import nn
from torchao.prototype.quantized_training import int8_weight_only_quantized_training
from torchao.quantization import Int8WeightOnlyConfig

from antipgd.torch import perturb
from matrix import cell, refused
from optimizer_rigs import RIGS, SEED, SIGMA

SMALL, LARGE = "0.weight", "3.weight"  # 384 and 4096 elements
QUANTISED = {
    ("torchao", "8 bit"): "OptimState8bit", ("torchao", "4 bit"): "OptimState4bit",
    ("torchao", "fp8"): "OptimStateFp8",
}  # fmt: skip


@pytest.mark.parametrize("label", RIGS["bitsandbytes"])
def test_the_8_bit_path_of_bitsandbytes_is_reached(label):
    rig = RIGS["bitsandbytes"][label]()
    perturb(rig.model, rig.given, SIGMA, seed=SEED)
    rig.train(0)
    state = rig.optimizers[0].state
    assert state[rig.model.get_parameter(LARGE)]["state1"].dtype == torch.uint8
    assert state[rig.model.get_parameter(SMALL)]["state1"].dtype == torch.float32


@pytest.mark.parametrize("label", RIGS["torchao"])
def test_the_quantised_path_of_torchao_is_reached(label):
    rig = RIGS["torchao"][label]()
    perturb(rig.model, rig.given, SIGMA, seed=SEED)
    with torch.compiler.set_stance("force_eager"):
        rig.train(0)
    state = rig.optimizers[0].state
    expected = QUANTISED["torchao", label]
    assert type(state[rig.model.get_parameter(LARGE)]["exp_avg"]).__name__ == expected
    assert type(state[rig.model.get_parameter(SMALL)]["exp_avg"]) is torch.Tensor


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 1))


def in_torchao(config):
    model = plain()
    torchao.quantize_(model, config, filter_fn=lambda module, name: name == "0")
    return model


def in_bitsandbytes(kind, **settings):
    model = plain()
    model[0] = kind(64, 64, **settings)
    return model.to("cpu")


def refuse(model, said, record_property):
    rest = [p for name, p in model.named_parameters() if name != "0.weight"]
    optimizer = torch.optim.SGD(rest, lr=0.1)
    with refused(record_property, TypeError, said):
        perturb(model, optimizer, SIGMA, frozen="0.weight")
    assert type(model[0]._parameters) is dict
    noise = perturb(model, optimizer, SIGMA)  # the others take theirs
    model(torch.randn(3, 64)).square().mean().backward()
    optimizer.step()
    assert noise.injected(model[1].weight).any()


@cell("torchao", "bad_input")
@pytest.mark.parametrize(
    "config", [Int8WeightOnlyConfig(), int8_weight_only_quantized_training()]
)  # fmt: skip
def test_noise_on_weights_that_torchao_has_quantised(config, record_property):
    refuse(in_torchao(config), "a tensor of its own kind; exclude it", record_property)


@cell("bitsandbytes", "bad_input")
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (bitsandbytes.nn.Linear4bit, {}),
        (bitsandbytes.nn.Linear8bitLt, {"has_fp16_weights": False}),
        (bitsandbytes.nn.Linear8bitLt, {"has_fp16_weights": True}),  # its codes hang on the weight
    ],
)
def test_noise_on_weights_that_bitsandbytes_has_quantised(kind, settings, record_property):
    refuse(
        in_bitsandbytes(kind, **settings), "a tensor of its own kind; exclude it", record_property
    )
