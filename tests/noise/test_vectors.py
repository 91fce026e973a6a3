"""The published vectors: the format is frozen, so these files never change."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from antipgd.noise import STREAM_VERSION, draws, stream_key, transforms
from antipgd.noise.inplace import Targets
from antipgd.noise.stream import stream_words

VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / f"noise-stream-{STREAM_VERSION}.json").read_text()
)


def test_keys():
    for v in VECTORS["keys"]:
        assert f"{stream_key(v['seed'], v['name'], v['purpose']):016x}" == v["key"]


def test_words():
    for v in VECTORS["words"]:
        words = stream_words(int(v["key"], 16), v["step"], v["first_block"], 2)
        assert [f"{word:08x}" for word in words.ravel()] == v["words"]


@pytest.mark.parametrize("v", VECTORS["draws"], ids=lambda v: f"{v['law']}-{v['step']}")
def test_draws(v):
    place = v["seed"], v["name"], v["step"], v["start"], v["stop"]
    got = draws(*place, v["law"])
    assert [f"{bits:08x}" for bits in got.view(np.uint32)] == v["float32_bits"]


def test_the_injected_noise_is_that_of_the_vectors():
    for v in VECTORS["draws"]:
        if v["start"] == 0:
            w = np.zeros(v["stop"], np.float32)
            key = stream_key(v["seed"], v["name"])
            Targets([w], [key]).inject(v["step"], [[1.0]], v["law"])
            assert [f"{bits:08x}" for bits in w.view(np.uint32)] == v["float32_bits"]


def test_the_published_constants_are_those_of_the_code():
    page = (Path(__file__).parents[2] / "docs" / "noise-stream.md").read_text()
    for name in ("LOG", "SIN", "COS", "EXPM1"):
        published = re.search(rf"^\| {name} \| `([^`]*)`", page, re.MULTILINE)[1].split(", ")
        constants = np.array(getattr(transforms, name), np.float32).view(np.uint32)
        assert published == [f"{bits:08x}" for bits in constants]
    single = [transforms.LN2, transforms.LN2_HIGH, transforms.LN2_LOW, transforms.SQRT_HALF]
    for value in (*single, transforms.SQRT3_PER_UNIT * 2**31):
        assert f"`{np.float32(value).view(np.uint32):08x}`" in page
