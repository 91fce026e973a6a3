"""Whether torch is there, said before anything begins. Imports nothing of it."""

import importlib.util

from antipgd.extras import MissingPackageError, how_to_install


def check_torch() -> None:
    """Say what to install where torch is missing."""
    if importlib.util.find_spec("torch") is None:
        raise MissingPackageError(how_to_install("training networks", "torch", "network"))
