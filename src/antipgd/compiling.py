"""How compiled code is compiled and kept: numba's cache on disk, made trustworthy and optional; and
whoever waits for the compiler is told.

By itself that cache notices changes in a function's own file only, and where no folder can be
written to numba refuses to compile at all. Knows no kernel. Needs numba (the `numba` extra), so
only modules of compiled code import this one.
"""

import hashlib
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from numba import njit
from numba.core.event import Event, Listener, register

log = logging.getLogger("antipgd")


@cache
def _say_that_nothing_is_kept() -> None:
    log.warning(
        "no folder for numba's cache can be written to, so kernels are compiled in memory, anew in "
        "every process (seconds); set NUMBA_CACHE_DIR to a folder that can"
    )


@cache
def _say_that_it_compiles(module: str) -> None:
    log.warning("compiling %s for this machine (once; up to a minute)", module)


class _Compiling(Listener):
    """Hears of what numba compiles, not of what it finds on disk; names each module of ours once.

    What is compiled on the way belongs to the function that was called.
    """

    def __init__(self) -> None:
        self._within = 0

    def on_start(self, event: Event) -> None:
        module = event.data["dispatcher"].py_func.__module__
        if not self._within and module.partition(".")[0] == __package__:
            _say_that_it_compiles(module)
        self._within += 1

    def on_end(self, event: Event) -> None:
        self._within -= 1


register("numba:compile", _Compiling())  # type: ignore[no-untyped-call]


def _digest(sources: tuple[ModuleType, ...]) -> str:
    try:
        texts = b"".join(Path(str(source.__file__)).read_bytes() for source in sources)
    except OSError:  # an application in one file: what cannot be read does not change either
        texts = b""
    return hashlib.blake2b(texts, digest_size=8).hexdigest()


def jit_with(*sources: ModuleType) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: compiled without the interpreter's lock, kept on disk if that is possible.

    `sources` are the other modules whose constants or compiled functions the code is made of. A
    change in one of them makes it look new to the cache: a digest of them is part of the
    function's qualified name, and so of its file's name there.
    """
    digest = _digest(sources)

    def jit(function: Callable[..., Any]) -> Any:
        function.__qualname__ += f"-{digest}"
        try:
            return njit(nogil=True, cache=True)(function)
        except RuntimeError as error:
            if "cannot cache function" not in str(error):
                raise
        _say_that_nothing_is_kept()
        return njit(nogil=True)(function)

    return jit
