"""Fashion-MNIST: every way into the cache, byte for byte or not at all."""

import gzip
import hashlib
import struct
import tarfile
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from antipgd.paper.networks.data import DataError, DataUsageError, command
from antipgd.paper.networks.data.fashion_mnist import (
    FASHION_MNIST,
    File,
    Published,
    fashion_mnist,
    idx_array,
)

NAMES = tuple(FASHION_MNIST.files)


def idx(array):
    """Written as the description of the format says it."""
    head = bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", n) for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


@pytest.fixture(scope="module")
def arrays():
    generator = np.random.default_rng(0)
    images = [generator.integers(0, 256, (n, 28, 28), np.uint8) for n in (5, 3)]
    labels = [generator.integers(0, 10, n, np.uint8) for n in (5, 3)]
    return images[0], labels[0], images[1], labels[1]


@pytest.fixture
def contents(arrays):
    return dict(zip(NAMES, map(idx, arrays), strict=True))


@pytest.fixture
def published(contents, tmp_path):
    """Small files, and nobody who answers."""
    files = {}
    for name, content in contents.items():
        packed = gzip.compress(content, mtime=0)
        files[name] = File(len(content), hashlib.md5(content).hexdigest(), len(packed),
                           hashlib.md5(packed).hexdigest())  # fmt: skip
    return Published(files, "http://127.0.0.1:9", tmp_path / "no debian here")


def write(folder, contents, packed):
    folder.mkdir(parents=True)
    for name, content in contents.items():
        target = folder / (f"{name}.gz" if packed else name)
        target.write_bytes(gzip.compress(content, mtime=7) if packed else content)
    return folder


def get(published, tmp_path, source=None):
    said = []
    told = fashion_mnist(published).fetch(tmp_path / "cache", source, said.append)
    return said, told


def check_loaded(published, tmp_path, arrays):
    images = fashion_mnist(published).load(tmp_path / "cache")
    assert images.shape == (28, 28, 1)
    assert images.classes[9] == "Ankle boot"
    for found, array in zip((images.train_images[..., 0], images.train_labels,
                             images.test_images[..., 0], images.test_labels), arrays,
                            strict=True):  # fmt: skip
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("packed", [True, False])
def test_a_folder_or_an_archive(published, contents, arrays, tmp_path, packed):
    folder = write(tmp_path / "given" / "inner", contents, packed)
    _, told = get(published, tmp_path, folder.parent)
    assert "all four checksums as published" in told[0]
    check_loaded(published, tmp_path, arrays)
    archive = tmp_path / "given.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, "data")
    other = tmp_path / "other"
    get(published, other, archive)
    check_loaded(published, other, arrays)


def test_debians_package_comes_first(published, contents, arrays, tmp_path):
    debian = write(tmp_path / "debian", contents, True)
    get(replace(published, debian=debian), tmp_path)
    check_loaded(published, tmp_path, arrays)
    said, _ = get(published, tmp_path)
    assert said == ["it was there already"]


def test_the_published_files(published, contents, arrays, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    for name, content in contents.items():
        (site / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        get(replace(published, address=address), tmp_path)
        server.shutdown()
    check_loaded(published, tmp_path, arrays)
    assert {p.name for p in (tmp_path / "cache").rglob("*") if p.is_file()} == set(NAMES)


def test_nothing_to_be_had_says_what_to_do(published, tmp_path):
    with pytest.raises(DataError, match=r"(?s)could not be had:.*127.0.0.1:9.*apt-get install"):
        get(published, tmp_path)
    with pytest.raises(DataUsageError, match=r"there is no .*nowhere; ways to get it"):
        get(published, tmp_path, tmp_path / "nowhere")
    with pytest.raises(DataUsageError, match=r"Fashion-MNIST is not in .*ways to get it"):
        fashion_mnist(published).load(tmp_path / "cache")
    assert fashion_mnist(published).state(tmp_path / "cache").endswith("antipgd data fashion-mnist")


@pytest.mark.parametrize("damage", ["changed", "longer", "truncated", "missing"])
def test_what_is_not_as_published_is_refused_and_nothing_written(
    published, contents, tmp_path, damage
):
    folder = write(tmp_path / "given", contents, True)
    target = folder / f"{NAMES[2]}.gz"
    content = contents[NAMES[2]]
    message = {"changed": "is not Fashion-MNIST's: expected MD5", "truncated": "is damaged",
               "longer": "is not Fashion-MNIST's", "missing": "it lacks t10k-images"}  # fmt: skip
    if damage == "missing":
        target.unlink()
    else:
        changed = {"changed": content[:-1] + bytes([content[-1] ^ 1]), "longer": content + b"\0",
                   "truncated": content}[damage]  # fmt: skip
        packed = gzip.compress(changed)
        target.write_bytes(packed[:-30] if damage == "truncated" else packed)
    with pytest.raises(DataError, match=message[damage]):
        get(published, tmp_path, folder)
    assert not (tmp_path / "cache" / "fashion-mnist").exists()


def test_a_damaged_cache_is_found_and_replaced(published, contents, arrays, tmp_path):
    folder = write(tmp_path / "given", contents, False)
    get(published, tmp_path, folder)
    (tmp_path / "cache" / "fashion-mnist" / NAMES[1]).write_bytes(b"no labels")
    assert fashion_mnist(published).state(tmp_path / "cache").startswith("damaged:")
    with pytest.raises(DataError, match=r"(?s)expected MD5.*gets it again"):
        fashion_mnist(published).load(tmp_path / "cache")
    said, _ = get(published, tmp_path, folder)
    assert said[0].startswith("damaged, to be replaced")
    check_loaded(published, tmp_path, arrays)


@pytest.mark.parametrize("content", [b"", b"\0\0\x09\1\0\0\0\0", b"\0\0\x08\1\0\0\0\2a"])
def test_what_is_no_idx_file(content):
    with pytest.raises(DataError, match="not an idx file of bytes"):
        idx_array(content)


def test_the_command_lists_it(published, tmp_path, capsys):
    sets = {"fashion-mnist": fashion_mnist(published)}
    assert command.data(None, None, tmp_path, print, sets) == 0
    assert "70,000 grey images of 28 x 28" in capsys.readouterr().out


# What gzip wrote when the files were published: seconds since 1970, for training and for test
WRITTEN = {"train": 1_504_176_606, "t10k": 1_504_176_627}


@pytest.mark.skipif(
    not FASHION_MNIST.debian.is_dir(), reason="Debian's dataset-fashion-mnist is not installed"
)
@pytest.mark.parametrize("name", NAMES)
def test_debians_files_are_the_published_ones_under_another_header(name):
    known = FASHION_MNIST.files[name]
    packed = Path(FASHION_MNIST.debian, f"{name}.gz").read_bytes()
    assert packed[3] == 0  # no name in the header, which has ten bytes then
    seconds = struct.pack("<I", WRITTEN[name.split("-")[0]])
    head = b"\x1f\x8b\x08\x08" + seconds + b"\0\3" + name.encode() + b"\0"
    rebuilt = head + packed[10:]
    assert len(rebuilt) == known.packed_size
    assert hashlib.md5(rebuilt).hexdigest() == known.packed_md5
    content = gzip.decompress(rebuilt)
    assert (len(content), hashlib.md5(content).hexdigest()) == (known.size, known.md5)
