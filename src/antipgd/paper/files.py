"""Files that are whole or not there: how everything of the paper is written.

A reader never meets a part of a file, and what a killed writer left behind is removed once nobody
can still be writing it. Knows nothing of what is in the files.
"""

import contextlib
import errno
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_WRITING = ".writing-"
_ABANDONED_SECONDS = 24 * 3600


class FilesError(Exception):
    """Something on the disk cannot be used, read or written; what is there stays as it was."""


class FilesUsageError(FilesError):
    """The path named is not one that this command can use."""


def write_atomically(path: Path, content: bytes) -> None:
    """The whole content under its name, or nothing; flushed to the disk before it is named."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=_WRITING)
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


def write(path: Path, content: bytes) -> None:
    """The same, into a folder that is made if need be, or a `FilesError` that says why not."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise FilesError(f"cannot write {path}: {why(error)}") from error


def why(error: OSError) -> str:
    """What the system says; where room is missing, what to do about it, too."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    hint = "; make room and run the same command again, it goes on" if full else ""
    return f"{error.strerror or error}{hint}"


def make_folder(path: Path) -> None:
    """A folder to write into, or a `FilesError` that says why not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise FilesUsageError(f"{path} must be a folder, but a file is in the way") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise FilesUsageError(f"{path} cannot be a folder: {error.strerror}") from error
        raise FilesError(f"cannot make the folder {path}: {error.strerror}") from error


def remove_abandoned(folder: Path, older_than: float = _ABANDONED_SECONDS) -> None:
    """Remove what killed writers left below a folder, once nobody can still be writing it."""
    for path in folder.rglob(f"{_WRITING}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > older_than:
                path.unlink()


def move_aside(path: Path, folder: Path, prefix: str = "") -> Path | None:
    """Move a damaged file into a folder under a name of its own, which is returned; None if
    somebody else was faster."""
    target = folder / f"{prefix}{path.stem}-{time.time_ns()}{path.suffix}"
    make_folder(folder)
    try:
        os.replace(path, target)
    except FileNotFoundError:
        return None
    return target


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Inside, no other command runs with what is in this folder."""
    if os.name == "nt":
        yield
        return
    import fcntl

    make_folder(folder)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FilesError(
                f"another command is running in {folder.parent}; wait for it, or use another --out"
            ) from None
        yield
