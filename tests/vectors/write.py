"""Writes noise-stream-<version>.json, the published test vectors; never over an existing file.

A frozen version has one file for ever. Run by hand when STREAM_VERSION has been raised:
python tests/vectors/write.py
"""

import json
from pathlib import Path

import numpy as np

from antipgd.noise import PURPOSES, STREAM_VERSION, draws, stream_key
from antipgd.noise.stream import stream_words

LAWS = ["gaussian", "rademacher", "uniform", "laplace", "student-t:2.5", "student-t:5"]
NAMES = ["weight", "module.layer1.0.conv1.weight", "αβγ", "0", ""]
PLACES = [(1, 0), (2, 3), (10_000, 12_345), (2**32 + 1, 2**32 - 2)]  # (step, first block)
SLICES = [(1, 0, 8), (2, 5, 13), (3, 127, 131), (2**32 + 1, 2**34 - 3, 2**34 + 3)]


def main() -> None:
    path = Path(__file__).with_name(f"noise-stream-{STREAM_VERSION}.json")
    if path.exists():
        raise SystemExit(f"{path.name} is published; raise STREAM_VERSION for a new format")
    streams = [
        *((0, "weight", purpose) for purpose in PURPOSES),
        *((seed, "weight", "noise") for seed in (1, 12345, 2**64 - 1)),
        *((7, name, "noise") for name in NAMES),
    ]
    keys = [
        {"seed": seed, "name": name, "purpose": purpose, "key": stream_key(seed, name, purpose)}
        for seed, name, purpose in streams
    ]
    words = [
        {"key": key, "step": step, "first_block": block, "words": stream_words(key, step, block, 2)}
        for key in (keys[0]["key"], keys[1]["key"])
        for step, block in PLACES
    ]
    unit = [
        {"seed": 0, "name": "weight", "law": law, "step": step, "start": start, "stop": stop}
        for law in LAWS
        for step, start, stop in SLICES
    ]
    for entry in keys + words:
        entry["key"] = f"{entry['key']:016x}"
    for entry in words:
        entry["words"] = [f"{word:08x}" for word in entry["words"].ravel()]
    for entry in unit:
        drawn = draws(**entry).view(np.uint32)
        entry["float32_bits"] = [f"{bits:08x}" for bits in drawn]
    vectors = {"stream_version": STREAM_VERSION, "keys": keys, "words": words, "draws": unit}
    path.write_text(json.dumps(vectors, indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
