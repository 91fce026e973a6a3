"""Where the data lie on this machine: a folder per dataset, checked whenever it is read."""

import os
from collections.abc import Mapping
from pathlib import Path

from antipgd.paper.files import make_folder, remove_abandoned, write
from antipgd.paper.networks.data.errors import DataError, network_extra

VARIABLE = "ANTIPGD_DATA"


def cache_folder(given: Path | str | None = None) -> Path:
    """The folder given, that of the variable ANTIPGD_DATA, or the user's cache."""
    if given is not None:
        return Path(given)
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    with network_extra():
        from platformdirs import user_cache_path
    return user_cache_path("antipgd")


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
    make_folder(folder)
    remove_abandoned(folder)
    for name, content in files.items():
        write(folder / name, content)
