"""Fashion-MNIST: four idx files, as published, and how they get into the cache.

An idx file is a magic number, the sizes of its axes and then bytes. What is checked is the MD5 of
the unpacked files: Debian's package has the same ones under another gzip header, so that its .gz
have other checksums than the published (a test puts the published headers before Debian's bytes and
finds the published MD5). Images by Han Xiao, Kashif Rasul and Roland Vollgraf, 2017, MIT licence.
"""

import gzip
import io
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from antipgd.paper.files import make_folder
from antipgd.paper.networks.data.cache import cache_folder, read_all, write_all
from antipgd.paper.networks.data.cifar10 import checksum
from antipgd.paper.networks.data.data_set import Cache, DataSet, Say
from antipgd.paper.networks.data.download import download
from antipgd.paper.networks.data.errors import DataError, DataUsageError
from antipgd.paper.networks.data.images import Images
from antipgd.paper.networks.data.unpacking import Files, read_archive, read_folder

NAME, SIDE = "fashion-mnist", 28
CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker",
           "Bag", "Ankle boot")  # fmt: skip
CITATION = 'Xiao, Rasul and Vollgraf, "Fashion-MNIST: a Novel Image Dataset", 2017'
HOME = "https://github.com/zalandoresearch/fashion-mnist"


@dataclass(frozen=True)
class File:
    """What is known of a file beforehand: unpacked, and as the .gz that was published."""

    size: int
    md5: str
    packed_size: int
    packed_md5: str


@dataclass(frozen=True)
class Published:
    """The four files and where they are found. Tests bring smaller ones."""

    files: Mapping[str, File]
    address: str = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
    debian: Path = field(default=Path("/usr/share/datasets/fashion-mnist"))

    @property
    def largest(self) -> int:
        """No file of any source has more bytes, packed or not."""
        return max(max(file.size, file.packed_size) for file in self.files.values()) + 2**16


FASHION_MNIST = Published({
    "train-images-idx3-ubyte": File(
        47_040_016, "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    ),
    "train-labels-idx1-ubyte": File(
        60_008, "9018921c3c673c538a1fc5bad174d6f9", 29_515, "25c81989df183df01b3e8a0aad5dffbe"
    ),
    "t10k-images-idx3-ubyte": File(
        7_840_016, "8181f5470baa50b63fa0f6fddb340f0a",
        4_422_102, "bef4ecab320f06d8554ea6380940ec79",
    ),
    "t10k-labels-idx1-ubyte": File(
        10_008, "15d484375f8d13e6eb1aabb0c3f46965", 5_148, "bb300cfdad3c16e7a12a480ee83cd310"
    ),
})  # fmt: skip


def ways(cache: Path) -> str:
    """What a user can do to get Fashion-MNIST into the cache."""
    return f"""ways to get it:
  apt-get install dataset-fashion-mnist, on Debian; then antipgd data {NAME}
  antipgd data {NAME}
      takes that package's files, or downloads the published ones
  antipgd data {NAME} --from PATH
      takes a folder or archive with the four idx files, packed (.gz) or not ({HOME})
  ANTIPGD_DATA=DIR in the environment
      use DIR/{NAME}, if it is there already (now: {cache / NAME})"""


def check_files(files: Mapping[str, bytes], published: Published, source: str) -> None:
    """Refuse what is not, byte for byte, what was published."""
    for name, known in published.files.items():
        found = checksum(files[name])
        if found != known.md5:
            raise DataError(
                f"{source}: {name} is not Fashion-MNIST's: expected MD5 {known.md5}, found {found}"
            )


def _unpacked(packed: bytes, name: str, source: str, size: int) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            return file.read(size + 1)  # one more, so that a longer one is found by its checksum
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{source}: {name}.gz is damaged: {error}") from error


def _checked(found: Files, source: str, published: Published) -> Files:
    """The four files, unpacked where they were packed."""
    files: Files = {}
    for name, known in published.files.items():
        if name in found:
            files[name] = found[name]
        elif f"{name}.gz" in found:
            files[name] = _unpacked(found[f"{name}.gz"], name, source, known.size)
    lacking = [name for name in published.files if name not in files]
    if lacking:
        raise DataError(f"{source} does not hold Fashion-MNIST: it lacks {', '.join(lacking)}")
    check_files(files, published, source)
    return files


def _from_path(path: Path, published: Published) -> Files:
    wanted = frozenset(published.files) | {f"{name}.gz" for name in published.files}
    if path.is_dir():
        found = read_folder(path, wanted, largest=published.largest)
    else:
        limit = 4 * published.largest
        found = read_archive(path, wanted, largest=published.largest, limit=limit)
    return _checked(found, str(path), published)


def _downloaded(cache: Path, published: Published, say: Say) -> Files:
    found: Files = {}
    for name, known in published.files.items():
        url = f"{published.address}/{name}.gz"
        say(f"downloading {url} ({known.packed_size / 1e6:,.1f} MB)")
        target = cache / f"{name}.gz"
        download(url, target, size=known.packed_size, md5=known.packed_md5)
        try:
            found[f"{name}.gz"] = target.read_bytes()
        finally:
            target.unlink(missing_ok=True)
    return _checked(found, published.address, published)


def _from_anywhere(cache: Path, published: Published, say: Say) -> Files:
    failures = []
    if published.debian.is_dir():
        try:
            return _from_path(published.debian, published)
        except DataError as error:
            say(f"not from there: {error}")
            failures.append(f"  {error}")
    try:
        return _downloaded(cache, published, say)
    except DataError as error:
        failures.append(f"  {error}")
    tried = "\n".join(failures)
    raise DataError(f"Fashion-MNIST could not be had:\n{tried}\n{ways(cache)}")


def cached_files(cache: Path, published: Published = FASHION_MNIST) -> Files | None:
    """The checked files in the cache; None if they are not there, an error if damaged."""
    found = read_all(cache / NAME, {name: name for name in published.files})
    if found is not None:
        check_files(found, published, str(cache / NAME))
    return found


def fetch(cache: Cache, source: Path | None, say: Say, published: Published) -> list[str]:
    """Put Fashion-MNIST into the cache, from `source` if given; returns what to tell the user."""
    root = cache_folder(cache)
    if source is not None and not Path(source).exists():
        raise DataUsageError(f"there is no {source}; {ways(root)}")
    try:
        there = cached_files(root, published) is not None
    except DataError as error:
        say(f"damaged, to be replaced: {error}")
        there = False
    if there:
        say("it was there already")
    else:
        make_folder(root)
        write_all(root / NAME, _from_path(Path(source), published) if source is not None
                  else _from_anywhere(root, published, say))  # fmt: skip
    said = [f"Fashion-MNIST is in {root / NAME}, all four checksums as published"]
    if root != cache_folder(None):
        said.append(f"other commands find it with ANTIPGD_DATA={cache} in the environment")
    return [*said, f"cite {CITATION} ({HOME})"]


def idx_array(content: bytes) -> NDArray[np.uint8]:
    """The bytes of an idx file in the shape that it says."""
    axes = content[3] if len(content) > 3 else 0
    shape = np.frombuffer(content[4 : 4 + 4 * axes], ">u4").astype(int).tolist()
    if content[:3] != b"\0\0\x08" or len(content) != 4 + 4 * axes + int(np.prod(shape)):
        raise DataError(f"not an idx file of bytes: it begins with {content[:4].hex()}")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _load(cache: Cache, published: Published) -> Images:
    root = cache_folder(cache)
    try:
        files = cached_files(root, published)
    except DataError as error:
        raise DataError(f"{error}\n`antipgd data {NAME}` gets it again; {ways(root)}") from error
    if files is None:
        raise DataUsageError(f"Fashion-MNIST is not in {root / NAME}; {ways(root)}")
    arrays = [idx_array(files[name]) for name in FASHION_MNIST.files]
    train, train_labels, test, test_labels = arrays
    return Images(NAME, train[..., None], train_labels.astype(np.int64), test[..., None],
                  test_labels.astype(np.int64), CLASSES)  # fmt: skip


def _state(cache: Cache, published: Published) -> str:
    root = cache_folder(cache)
    try:
        there = cached_files(root, published) is not None
    except DataError as error:
        return f"damaged: {error}"
    return f"in {root / NAME}, checked" if there else f"not in {root / NAME}: antipgd data {NAME}"


def fashion_mnist(published: Published = FASHION_MNIST) -> DataSet:
    """The data set, of the published files or of smaller ones that tests bring."""
    return DataSet(
        name=NAME,
        about="70,000 grey images of 28 x 28 in 10 classes, clothes",
        shape=(1, SIDE, SIDE),
        training=60_000,
        testing=10_000,
        load=lambda cache: _load(cache, published),
        fetch=lambda cache, source, say: fetch(cache, source, say, published),
        state=lambda cache: _state(cache, published),
    )
