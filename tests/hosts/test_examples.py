"""The examples that need a host, small: what they print is so, and what they leave is clean.

The weights they leave are measured again here, without the example's code and without noise.
"""

import os
import re
import runpy
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from sklearn.datasets import load_digits
from transformers import BertForSequenceClassification, GPT2LMHeadModel

from examples_page import EXAMPLES


def run(name, folder, **environment):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")], cwd=folder, capture_output=True, text=True,
        timeout=900, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lightning(tmp_path):
    printed = run("lightning_classifier", tmp_path, EPOCHS="40")
    (sigma,) = re.findall(r"^sigma (\S+) \[", printed, re.M)
    assert 0.01 < float(sigma) < 1
    readings = re.findall(r"^Reading\(step (\d+), sigma (\S+),", printed, re.M)
    noisy = [(step, sigma) for step in ("100", "200", "300")]
    assert readings == [*noisy, ("400", "0")]  # the last sixth is without noise
    pixels, digits = map(torch.tensor, load_digits(return_X_y=True))
    test = torch.randperm(1797, generator=torch.Generator().manual_seed(0))[600:]
    for name in ("plain", "noise"):
        (path,) = (tmp_path / f"lightning-{name}").glob("*.ckpt")
        z = torch.load(path, weights_only=False)["state_dict"]
        hidden = (pixels[test].float() / 16 @ z["network.0.weight"].T + z["network.0.bias"]).relu()
        answers = (hidden @ z["network.2.weight"].T + z["network.2.bias"]).argmax(1)
        right = float((answers == digits[test]).double().mean())
        assert f"{name}: test accuracy {right:.1%}, trace at equal loss" in printed


def test_fine_tuning(tmp_path):
    printed = run("fine_tuning", tmp_path, EPOCHS="3")
    (none, noise) = re.findall(r"^relative sigma (\S+): test accuracy (\S+)%$", printed, re.M)
    assert (none[0], noise[0]) == ("0.0", "0.1")
    generator = torch.Generator().manual_seed(2)
    words = torch.randint(32, (2000, 8), generator=generator)
    labels = torch.randint(2, (2000,), generator=generator)
    turned = torch.where(labels[:, None] == 1, words[:, :4].flip(1), words[:, 4:])
    words = torch.cat([words[:, :4], turned], dim=1)
    model = BertForSequenceClassification.from_pretrained(tmp_path / "fine-tuned").eval()
    with torch.no_grad():
        right = float((model(words).logits.argmax(1) == labels).double().mean())
    assert f"{right:.1%}" == f"{noise[1]}%"


def test_lora_merges_adapters_and_no_noise(tmp_path):
    """What was added to a matrix of the base has the rank of the adapters; noise has full rank."""
    printed = run("lora", tmp_path, STEPS="40")
    rows = re.findall(
        r"^relative sigma (\S+) on the base: loss (\S+), merged (\S+)$", printed, re.M
    )
    assert [sigma for sigma, *_ in rows] == ["0.0", "0.1"]
    assert all(adapted == merged for _, adapted, merged in rows)
    assert rows[0][1] != rows[1][1]  # the noise did something
    merged = GPT2LMHeadModel.from_pretrained(tmp_path / "merged").state_dict()
    base = GPT2LMHeadModel.from_pretrained(tmp_path / "base").state_dict()
    adapted = [name for name in base if not torch.equal(base[name], merged[name])]
    assert len(adapted) == 8
    for name in adapted:
        sizes = torch.linalg.svdvals(merged[name].double() - base[name].double())
        assert sizes[3] > 1e-4
        assert sizes[4] < 1e-6


@pytest.mark.parametrize("sigma", [0.0, 0.3])
def test_nnx(sigma, monkeypatch, capsys):
    """Without noise it is Optax's own training; with it, another one."""
    monkeypatch.setenv("STEPS", "30")
    example = runpy.run_path(str(EXAMPLES / "jax_nnx.py"))
    table = re.findall(r"^ +\d +(0.0|0.3) +\d+\.\d%$", capsys.readouterr().out, re.M)
    assert table == ["0.0", "0.3"] * 3
    model, images, labels = example["Network"](1), example["images"], example["labels"]
    rate = optax.cosine_decay_schedule(0.05, 30)
    optimizer = nnx.Optimizer(model, optax.sgd(rate, 0.9), wrt=nnx.Param)
    for batch in np.random.default_rng(1).integers(300, size=(30, 30)):
        gradient = nnx.grad(example["loss"])(model, images[batch], labels[batch])
        optimizer.update(model, gradient)
    pairs = zip(*(jax.tree.leaves(nnx.state(one, nnx.Param))
                  for one in (model, example["train"](sigma, 1))), strict=True)  # fmt: skip
    furthest = max(float(abs(a - b).max()) for a, b in pairs)
    assert furthest < 1e-5 if sigma == 0 else 1e-3 < furthest < 1
