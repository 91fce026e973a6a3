"""Dieharder on the words of the noise stream, laid out four ways: `make battery`.

A counter-based generator is used across elements, steps, names and seeds, so each of these must
look random by itself, not only the usual long run under one key. Needs Debian's `dieharder`.
Usage: battery.py [--all] [elements|steps|names|seeds …]; --all takes every test at every size
(half an hour for each layout), the default one size of each; --words LAYOUT writes raw words.
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TextIO

import numpy as np
from numba import njit

from antipgd.noise import kernels, stream_key
from antipgd.noise.kernels import _interleave, _philox

LAYOUTS = ("elements", "steps", "names", "seeds")
BLOCKS = 16  # taken from each step, name or seed: 64 words
# Dieharder's numbers, without those it calls suspect (5, 6, 7, 14) and the lagged sums (203),
# which read most of the words of --all.
TESTS = (*range(5), *range(8, 14), 15, 16, 17, 100, 101, 102, *range(204, 210))
WITH_SIZE = {200: 6, 201: 3, 202: 4}  # tests that want their tuple length
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


def calls() -> list[list[str]]:
    sized = [["-d", str(test), "-n", str(size)] for test, size in WITH_SIZE.items()]
    return [["-d", str(test)] for test in TESTS] + sized


def run(layout: str, arguments: list[str], log: TextIO) -> Counter[str]:
    """One call of dieharder; WEAK results are repeated by it until they are clear (-Y 1)."""
    source = subprocess.Popen([sys.executable, __file__, "--words", layout], stdout=subprocess.PIPE)
    tests = subprocess.Popen(
        ["dieharder", *arguments, "-g", "200", "-k", "2", "-Y", "1"],
        stdin=source.stdout, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    verdicts: Counter[str] = Counter()
    assert tests.stdout is not None
    for line in tests.stdout:
        log.write(line)
        log.flush()
        verdicts.update(re.findall(r"\b(PASSED|WEAK|FAILED)\b", line))
    source.kill()
    if tests.wait() != 0:
        raise SystemExit(f"dieharder {' '.join(arguments)} ended with code {tests.returncode}")
    return verdicts


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--words"]:
        write_words(arguments[1])
        return
    every = "--all" in arguments
    layouts = [argument for argument in arguments if argument != "--all"] or LAYOUTS
    folder = Path("results")
    folder.mkdir(exist_ok=True)
    failed = 0
    for layout in layouts:
        verdicts: Counter[str] = Counter()
        with (folder / f"dieharder-{layout}.txt").open("w") as log:
            for call in [["-a"]] if every else calls():
                verdicts += run(layout, call, log)
        failed += verdicts["FAILED"]
        print(f"{layout:9}" + "".join(f" {v} {n:3}" for v, n in verdicts.items()), flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
