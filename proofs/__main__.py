"""Runs every derivation, or those whose name contains the words given; one line each."""

import importlib
import inspect
import pkgutil
import sys
import time
from collections.abc import Callable, Iterator

import proofs

APART = {"comparing", "__main__"}


def derivations() -> Iterator[tuple[str, Callable[[], None]]]:
    """Name and function of each, as docs/theory.md has them: proofs/linear.py::pgd_moment."""
    for found in pkgutil.iter_modules(proofs.__path__):
        if found.name in APART:
            continue
        module = importlib.import_module(f"proofs.{found.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_"):
                yield f"proofs/{found.name}.py::{name}", function


def failure(function: Callable[[], None]) -> str:
    """Why a derivation does not come through, "" if it does."""
    try:
        function()
    except Exception as error:  # a proof that breaks off has proved nothing, whatever the reason
        return f"{type(error).__name__}: {error}"
    return ""


def main(words: list[str]) -> int:
    """How many failed, as an exit code."""
    chosen = [one for one in derivations() if all(word in one[0] for word in words)]
    failed, began = 0, time.perf_counter()
    for name, function in chosen:
        why = failure(function)
        failed += bool(why)
        print(f"{name:58} {'FAILED ' + why if why else 'proved'}", flush=True)
    seconds = time.perf_counter() - began
    print(f"{len(chosen) - failed} proved, {failed} failed, {seconds:.0f} s")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
