"""One trial in whatever process: find the function, call it, and take what it returns."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from antipgd.checks import number
from antipgd.paper.engines.engine import EngineError, Result, Tell
from antipgd.paper.record import Record
from antipgd.paper.trials.spec import FOLDER, Trial, loaded, takes


def try_one(trial: Trial, *, tell: Tell, device: str, root: Path, threads: int = 1) -> list[Result]:
    """The work of an engine: the record of one call, made with so many threads everywhere."""
    os.environ["OMP_NUM_THREADS"] = str(threads)  # read when torch is first imported
    function = loaded(trial.function, trial.source)
    if function is None:
        raise EngineError(
            f"the file of {trial.function} is not the one that the command began with: it was "
            "changed since, or differs on this machine; the same command begins with it as it is"
        )
    arguments: dict[str, Any] = dict(trial.arguments)
    if takes(function, FOLDER):
        arguments[FOLDER] = root / trial.name
        arguments[FOLDER].mkdir(parents=True, exist_ok=True)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    try:
        with threadpool_limits(threads):
            returned = function(**arguments)
    except SystemExit as error:  # it would end a worker, or the command, without a word
        raise RuntimeError(f"{trial.function} called sys.exit({error.code!r})") from error
    return [record_of(trial, returned)]


def record_of(trial: Trial, returned: Any) -> Record:
    """What a call returned as a record; refused unless it is a dictionary of finite numbers."""
    if not isinstance(returned, Mapping) or not returned:
        raise TypeError(
            f"{trial.function} must return a dictionary of numbers such as "
            f"{{'accuracy': 0.9}}; got {returned!r:.200}"
        )
    for name in returned:
        if not isinstance(name, str) or name in dict(trial.arguments):
            raise ValueError(f"{trial.function} returned {name!r}, which is no name of a result")
    points = tuple((1, name, _number(name, value)) for name, value in returned.items())
    return Record(trial, "ok", None, None, points, {}, None, None)


def _number(name: str, value: Any) -> float:
    item = getattr(value, "item", None)  # of a tensor or array of one element
    try:
        return number(name, item() if callable(item) else value)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must be a finite number; got {value!r:.200}") from error
