"""Archives and folders of strangers → the few files wanted, in memory.

Nothing is written to the disk, so no member's name can lead anywhere. An archive that tries
(absolute, `..`, links) is refused all the same, as is one that unpacks to more than it may.
"""

import gzip
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import IO

from antipgd.paper.networks.data.errors import DataError, DataUsageError

Files = dict[str, bytes]


class _Limited:
    """A compressed file that refuses to give more than `limit` bytes."""

    def __init__(self, file: gzip.GzipFile, path: Path, limit: int) -> None:
        self._file, self._path, self._limit, self._left = file, path, limit, limit

    def read(self, size: int) -> bytes:
        content = self._file.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise DataError(
                f"{self._path} unpacks to more than {self._limit:,} bytes; not what is wanted here"
            )
        return content


def _check_member(member: tarfile.TarInfo, path: Path) -> None:
    name = PurePosixPath(member.name)
    if member.issym() or member.islnk():
        raise DataError(f"{path}: member {member.name!r} is a link; refused")
    if not (member.isreg() or member.isdir()):
        raise DataError(f"{path}: member {member.name!r} is neither file nor folder; refused")
    if name.is_absolute() or ".." in name.parts:
        raise DataError(f"{path}: member {member.name!r} would leave its folder; refused")


def _check_size(size: int, name: str, path: Path, largest: int) -> None:
    if size > largest:
        raise DataError(f"{path}: {name} has {size:,} bytes; at most {largest:,} are accepted")


def _read_members(file: IO[bytes], path: Path, wanted: Collection[str], largest: int) -> Files:
    files: Files = {}
    # A stream: members are met in order and none is skipped without having been counted.
    with tarfile.open(fileobj=file, mode="r|") as archive:
        for member in archive:
            _check_member(member, path)
            name = PurePosixPath(member.name).name
            if name not in wanted or not member.isreg():
                continue
            if name in files:
                raise DataError(f"{path} has more than one {name}; refused")
            _check_size(member.size, name, path, largest)
            content = archive.extractfile(member)
            assert content is not None  # it is a regular file
            files[name] = content.read()
    return files


def read_archive(path: Path, wanted: Collection[str], *, largest: int, limit: int) -> Files:
    """Members of a .tar.gz by the last part of their names: those wanted, in memory.

    No file may have more than `largest` bytes and the whole archive, unpacked, `limit`.
    """
    try:
        with gzip.open(path) as file:
            return _read_members(_Limited(file, path, limit), path, wanted, largest)  # type: ignore[arg-type]
    except gzip.BadGzipFile as error:
        raise DataError(f"{path} is not a .tar.gz archive, or is damaged: {error}") from error
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is truncated or damaged: {error}") from error
    except OSError as error:
        raise DataUsageError(f"cannot read {path}: {error.strerror}") from error


def read_folder(path: Path, wanted: Collection[str], *, largest: int) -> Files:
    """The files wanted of a folder, or of the folders in it, in memory."""
    files: Files = {}
    try:
        inner = sorted(entry for entry in path.iterdir() if entry.is_dir())
        for folder in (path, *inner):
            for name in set(wanted) - files.keys():
                if (folder / name).is_file():
                    _check_size((folder / name).stat().st_size, name, folder, largest)
                    files[name] = (folder / name).read_bytes()
    except OSError as error:
        raise DataUsageError(f"cannot read {error.filename}: {error.strerror}") from error
    return files
