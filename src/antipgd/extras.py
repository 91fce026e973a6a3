"""What to install where a package is missing, said once.

The missing package comes first, which works wherever this one came from; the extra that has all of
a room is named as a clone installs it. Knows neither rooms nor packages: pyproject.toml has the
extras, and a test holds every sentence made here against it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

_DISTRIBUTIONS = {"PIL": "pillow", "llvmlite": "numba", "sklearn": "scikit-learn"}


class MissingPackageError(ImportError):
    """A package is not installed; says how to install it."""


def how_to_install(what: str, module: str, extra: str | None = None) -> str:
    """What needs the module, and the command; the extra where it has more that is needed.

    >>> how_to_install("a figure", "matplotlib.pyplot")
    'a figure needs matplotlib: pip install matplotlib'
    >>> print(how_to_install("antipgd.optax", "jax", "optax"))
    antipgd.optax needs jax: pip install jax, or all it needs in a clone: pip install '.[optax]'
    """
    package = module.partition(".")[0]
    package = _DISTRIBUTIONS.get(package, package)
    all_of_it = f", or all it needs in a clone: pip install '.[{extra}]'" if extra else ""
    return f"{what} needs {package}: pip install {package}{all_of_it}"


@contextmanager
def needed_by(what: str, extra: str | None = None) -> Iterator[None]:
    """Around imports: a module that is not there is an error that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        hint = how_to_install(what, error.name or str(error), extra)
        raise MissingPackageError(hint, name=error.name) from error
