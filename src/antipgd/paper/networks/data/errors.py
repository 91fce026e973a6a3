"""What can go wrong with data, as the user is told it."""

from collections.abc import Iterator
from contextlib import contextmanager

from antipgd.extras import how_to_install
from antipgd.paper.files import FilesError, FilesUsageError


class DataError(FilesError):
    """The data cannot be had, or are not what they should be; nothing of them is kept."""


class DataUsageError(DataError, FilesUsageError):
    """Something the user can put right: a name, a path, data that were not fetched yet."""


@contextmanager
def network_extra() -> Iterator[None]:
    """Around an import: a missing package is named with the extra that brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        hint = how_to_install("reading the data", error.name or str(error), "network")
        raise DataUsageError(hint) from error
