"""A CIFAR-10 of three images per batch, in all the forms in which the real one is found."""

import hashlib
import io
import json
import pickle
import struct
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from antipgd.paper.networks.data.cifar10 import BATCHES, CIFAR10, Published

N = 3


class Python2Pickler(pickle._Pickler):
    """Writes strings as Python 2 did, which is how the published pickles were made."""

    dispatch = pickle._Pickler.dispatch.copy()

    def save_bytes(self, value):
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    dispatch[bytes] = save_bytes


def python2_pickle(value):
    out = io.BytesIO()
    Python2Pickler(out, protocol=2).dump(value)
    return out.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def png(pixels):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def add_file(archive, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def write_archive(path, files, folder="data"):
    with tarfile.open(path, "w:gz") as archive:
        top = tarfile.TarInfo(folder)
        top.type = tarfile.DIRTYPE
        archive.addfile(top)
        for name, content in files.items():
            add_file(archive, f"{folder}/{name}", content)
    return path


def write_folder(path, files):
    path.mkdir(parents=True)
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path


@dataclass(frozen=True)
class Small:
    labels: dict[str, list[int]]
    pixels: dict[str, np.ndarray]  # (N, 32, 32, 3)
    published: Published

    @property
    def binary(self) -> dict[str, bytes]:
        """Written byte by byte, as the description of the format says it."""
        files = {}
        for name in BATCHES:
            rows = bytearray()
            for label, image in zip(self.labels[name], self.pixels[name], strict=True):
                rows.append(label)
                for channel in range(3):
                    for y in range(32):
                        rows += bytes(image[y, x, channel] for x in range(32))
            files[f"{name}.bin"] = bytes(rows)
        return files

    @property
    def pickled(self) -> dict[str, bytes]:
        return {
            name: python2_pickle(
                {
                    b"batch_label": b"training batch",
                    b"labels": self.labels[name],
                    b"data": self.pixels[name].transpose(0, 3, 1, 2).reshape(N, 3072).copy(),
                    b"filenames": [b"a.png", b"b.png", b"c.png"],
                }
            )
            for name in BATCHES
        }

    @property
    def npm(self) -> dict[str, bytes]:
        files = {f"{name}.png": png(self.pixels[name].reshape(N, 1024, 3)) for name in BATCHES}
        train = [label for name in BATCHES[:-1] for label in self.labels[name]]
        files["train_lables.json"] = json.dumps(train).encode()
        files["test_lables.json"] = json.dumps(self.labels["test_batch"]).encode()
        return files

    def kind(self, name: str) -> dict[str, bytes]:
        return {"binary": self.binary, "python": self.pickled, "npm": self.npm}[name]

    def served(self, url: str, archive: Path) -> Published:
        """The same, with the archive at another address."""
        content = archive.read_bytes()
        return replace(
            self.published,
            archive_url=url,
            archive_size=len(content),
            archive_md5=hashlib.md5(content).hexdigest(),
        )


@pytest.fixture(scope="session")
def small():
    generator = np.random.default_rng(0)
    labels = {name: generator.integers(0, 10, N).tolist() for name in BATCHES}
    pixels = {name: generator.integers(0, 256, (N, 32, 32, 3), np.uint8) for name in BATCHES}
    made = Small(labels, pixels, replace(CIFAR10, images=N))
    checksums = {name[:-4]: hashlib.md5(file).hexdigest() for name, file in made.binary.items()}
    # port 9 of this machine: nobody answers
    nowhere = "http://127.0.0.1:9/cifar-10-binary.tar.gz"
    return replace(
        made, published=replace(made.published, batch_md5=checksums, archive_url=nowhere)
    )


@pytest.fixture(scope="session")
def forms():
    """How to write archives and folders, for tests that damage them."""

    class Forms:
        archive = staticmethod(write_archive)
        folder = staticmethod(write_folder)
        member = staticmethod(add_file)
        python2 = staticmethod(python2_pickle)
        image = staticmethod(png)

    return Forms
