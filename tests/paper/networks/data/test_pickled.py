"""Pickles are read, never run."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from antipgd.paper.networks.data import DataError, pickled


class Touch:
    """Unpickled by the usual means, this makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def with_first(small, content):
    return small.pickled | {"data_batch_1": content}


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("wrap", [lambda bad: bad, lambda bad: {"labels": [bad]}])
def test_a_pickle_that_would_run_something_does_not(small, tmp_path, protocol, wrap):
    target = tmp_path / "made"
    content = pickle.dumps(wrap(Touch(target)), protocol)
    with pytest.raises(DataError, match=r"data_batch_1 is refused.*asks for (posix|nt)\.system"):
        pickled.batches(with_first(small, content), small.published)
    assert not target.exists()
    pickle.loads(content)
    assert target.exists()  # so the test could have failed


@pytest.mark.parametrize("name", ["builtins\neval", "numpy\nload", "numpy.core.multiarray\nscalar"])
def test_only_three_names_are_known(small, name):
    content = b"c" + name.encode() + b"\n."
    with pytest.raises(DataError, match=f"asks for {name.replace(chr(10), '.')}"):
        pickled.batches(with_first(small, content), small.published)


def test_what_python_3_wrote_is_read_as_well(small):
    files = {}
    for name in small.pickled:
        pixels = small.pixels[name].transpose(0, 3, 1, 2).reshape(-1, 3072)
        values = {b"labels": small.labels[name], b"data": np.asfortranarray(pixels)}
        files[name] = pickle.dumps(values, protocol=3)
    assert pickled.batches(files, small.published) == pickled.batches(
        small.pickled, small.published
    )


PIXELS = np.zeros((3, 3072), np.uint8)
GOOD = {b"labels": [0, 1, 2], b"data": PIXELS}
BROKEN = {
    "not a pickle": b"hello",
    "empty": b"",
    "truncated": pickle.dumps(GOOD, 3)[:-500],
    "no dictionary": pickle.dumps([1, 2]),
    "no labels": pickle.dumps({b"data": PIXELS}, 3),
    "labels missing": pickle.dumps(GOOD | {b"labels": [0, 1]}, 3),
    "labels no list": pickle.dumps(GOOD | {b"labels": 10**12}, 3),
    "labels too large": pickle.dumps(GOOD | {b"labels": [0, 1, 256]}, 3),
    "no array": pickle.dumps(GOOD | {b"data": b"abc"}, 3),
    "shape": pickle.dumps(GOOD | {b"data": PIXELS[:2]}, 3),
    "type": pickle.dumps(GOOD | {b"data": PIXELS.astype(np.int32)}, 3),
    "array without state": b"\x80\x03}(C\x06labels](K\x00K\x00K\x00eC\x04datacnumpy\nndarray\nu.",
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_what_is_no_batch_is_refused(small, content):
    with pytest.raises(DataError, match="data_batch_1 is not a pickled batch of CIFAR-10: "):
        pickled.batches(with_first(small, content), small.published)


def copied(levels, copies):
    """A tuple of copies of a tuple of copies …, as the key of a dictionary: hashed without end."""
    inner = b"".join(b"q\x010(" + b"h\x01" * copies + b"t" for _ in range(levels))
    return b"\x80\x02})" + inner + b"K\x01s."


HUNGRY = {
    "a place in the memo": b"\x80\x02Nr\xff\xff\xff\x01.",
    "a place in decimals": b"Np33554431\n.",
    "bytes that are not there": b"\x80\x04\x8e" + (2**33).to_bytes(8, "little") + b"abc.",
    "text that is not there": b"\x80\x04\x8d" + (2**33).to_bytes(8, "little") + b"abc.",
    "an array that is not there": b"\x80\x05\x96" + (2**33).to_bytes(8, "little") + b"abc.",
    "a string that is not there": b"\x80\x02T" + (2**31 - 1).to_bytes(4, "little") + b"abc.",
    "a number that is not there": b"\x80\x02\x8b" + (2**31 - 1).to_bytes(4, "little") + b"1.",
    "a frame that is not there": b"\x80\x04\x95" + (2**33).to_bytes(8, "little") + b"N.",
    "digits": b"L" + b"9" * 100_000 + b"L\n.",
    "a key as deep as the stack": b"\x80\x02})" + b"\x85" * 2_000_000 + b"K\x01s.",
    "a key of copies of copies": copied(20, 100),
    "a key of two copies each": b"\x80\x02})" + b"2\x86" * 60 + b"K\x01s.",
    "a key of sets": b"\x80\x04}(\x91" + b"\x8f0(" * 30 + b"K\x01s.",
    "operations": b"N0" * 600_000 + b"N.",
}
EATING = """
import resource, sys
from antipgd.paper.networks.data import DataError, pickled
from antipgd.paper.networks.data.cifar10 import CIFAR10
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
content = sys.stdin.buffer.read()
before = peak()
try:
    pickled.batches(dict.fromkeys(pickled.NAMES, content), CIFAR10)
except DataError as error:
    print((peak() - before) // 1024, error)
"""


@pytest.mark.parametrize("content", HUNGRY.values(), ids=HUNGRY)
def test_few_bytes_take_neither_memory_nor_time_nor_the_stack(content):
    """In a process of its own, which such a pickle could end."""
    result = subprocess.run(
        [sys.executable, "-c", EATING], input=content, capture_output=True, timeout=60, check=True
    )
    mebibytes, said = result.stdout.decode().split(maxsplit=1)
    assert int(mebibytes) < 40 + 3 * len(content) / 2**20
    assert said.startswith("data_batch_1 is not a pickled batch of CIFAR-10: ")
