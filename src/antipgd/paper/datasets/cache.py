"""Where the data lie on this machine: a folder per dataset, checked whenever it is read."""

import contextlib
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from antipgd.paper.datasets.errors import DataError, DataUsageError, network_extra

VARIABLE = "ANTIPGD_DATA"
_ABANDONED_SECONDS = 24 * 3600


def cache_folder(given: Path | str | None = None) -> Path:
    """The folder given, that of the variable ANTIPGD_DATA, or the user's cache."""
    if given is not None:
        return Path(given)
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    with network_extra():
        from platformdirs import user_cache_path
    return user_cache_path("antipgd")


def make_cache(folder: Path) -> None:
    """A folder to write into, or why not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise DataUsageError(f"{folder} must be a folder, but a file is in the way") from None
    except OSError as error:
        raise DataError(f"cannot make the folder {folder}: {error.strerror}") from error


def read_all(folder: Path, names: Mapping[str, str]) -> dict[str, bytes] | None:
    """The contents of the files `names` (key → file name); None unless all are there."""
    try:
        return {key: (folder / name).read_bytes() for key, name in names.items()}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from error


def write_all(folder: Path, files: Mapping[str, bytes]) -> None:
    """Files by name, each whole or not at all, so that a reader never meets a part of one."""
    make_cache(folder)
    _remove_abandoned(folder)
    for name, content in files.items():
        try:
            _write(folder / name, content)
        except OSError as error:
            raise DataError(f"cannot write {folder / name}: {error.strerror}") from error


def _write(path: Path, content: bytes) -> None:
    # As `store.write_atomically`, which lies above this room.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _remove_abandoned(folder: Path) -> None:
    """What killed writers left, once nobody can still be writing it."""
    for path in folder.glob(".writing-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                path.unlink()
