"""Dieharder on the words of the noise stream, laid out four ways: `make battery`.

A counter-based generator is used across elements, steps, names and seeds, so each of these must
look random by itself, not only the usual long run under one key. Needs Debian's `dieharder`.
Usage: battery.py [elements|steps|names|seeds …], or battery.py --words LAYOUT to write raw words.
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from numba import njit

from antipgd.noise import kernels, stream_key
from antipgd.noise.kernels import _interleave, _philox

LAYOUTS = ("elements", "steps", "names", "seeds")
BLOCKS = 16  # taken from each step, name or seed: 64 words
ROUND = 1024  # places made at a time


@njit
def fill(keys, steps, first_blocks, out):
    words = np.empty(4 * kernels._BLOCKS, np.int32)
    for i in range(len(keys)):
        _philox(keys[i], steps[i], first_blocks[i], BLOCKS, words)
        _interleave(BLOCKS, words, out[i])


def places(layout: str, begin: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Key, step and first block of the next ROUND places of a layout."""
    index = np.arange(begin, begin + ROUND, dtype=np.uint64)
    one = np.ones(ROUND, np.uint64)
    key = one * np.uint64(stream_key(0, "weight"))
    if layout == "elements":
        return key, one, index * np.uint64(BLOCKS)
    if layout == "steps":
        return key, index + one, 0 * one
    if layout == "names":
        keys = [stream_key(0, f"layer{i}.weight") for i in index]
    else:
        keys = [stream_key(int(i), "weight") for i in index]
    return np.array(keys, np.uint64), one, 0 * one


def write_words(layout: str) -> None:
    out = np.empty((ROUND, 4 * BLOCKS), np.int32)
    begin = 0
    while True:
        fill(*places(layout, begin), out)
        try:
            sys.stdout.buffer.write(out.tobytes())
        except BrokenPipeError:
            return
        begin += ROUND


def run(layout: str) -> Counter[str]:
    source = subprocess.Popen([sys.executable, __file__, "--words", layout], stdout=subprocess.PIPE)
    tests = subprocess.run(
        ["dieharder", "-a", "-g", "200", "-k", "2", "-Y", "1"],
        stdin=source.stdout, capture_output=True, text=True, check=True,
    )  # fmt: skip
    source.kill()
    log = Path("results") / f"dieharder-{layout}.txt"
    log.parent.mkdir(exist_ok=True)
    log.write_text(tests.stdout)
    return Counter(re.findall(r"\b(PASSED|WEAK|FAILED)\b", tests.stdout))


def main() -> None:
    if sys.argv[1:2] == ["--words"]:
        write_words(sys.argv[2])
        return
    failed = 0
    for layout in sys.argv[1:] or LAYOUTS:
        counts = run(layout)
        failed += counts["FAILED"]
        print(
            f"{layout:9}" + "".join(f" {verdict} {n:4}" for verdict, n in counts.items()),
            flush=True,
        )
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
