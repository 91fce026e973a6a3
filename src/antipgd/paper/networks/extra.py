"""Whether torch is there, said before anything begins. Imports nothing of it."""

import importlib.util


class ExtraError(ImportError):
    """A package is missing; says which extra has it."""


def check_torch() -> None:
    """Say what to install where torch is missing."""
    if importlib.util.find_spec("torch") is None:
        raise ExtraError("training networks needs torch: pip install 'antipgd[network]'")
