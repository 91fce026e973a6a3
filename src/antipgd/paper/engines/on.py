"""How `--on` is read: `processes[=N]`, `ray[=ADDRESS]` or `slurm[=local|debug]`, and needs.

`ray=10.0.0.1:6379,gpus=1,memory=8G`. Opens nothing and imports nothing of the engines.
"""

import re
from dataclasses import dataclass
from typing import Any

from antipgd.checks import nearest, one_of

ENGINES = ("processes", "ray", "slurm")
_NEEDS = {"processes": (), "ray": ("cpus", "gpus", "memory"),
          "slurm": ("cpus", "gpus", "memory", "time", "partition")}  # fmt: skip
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
ACCEPTED = (
    "processes[=N], ray[=HOST:PORT] or slurm[=local|debug], the last two with ,cpus=N ,gpus=N "
    ",memory=8G for each training, slurm also with ,time=MINUTES ,partition=NAME"
)


@dataclass(frozen=True)
class On:
    """Which engine, where it is, and what it is to give each job."""

    engine: str = "processes"
    where: str = ""  # Ray's address, submitit's executor
    count: int | None = None  # of processes
    cpus: int = 1
    gpus: int | None = None  # None: one where the device is a GPU
    memory: int | None = None  # bytes
    time: int = 60  # minutes
    partition: str = ""


HERE = On()


def _whole(name: str, text: str, least: int = 1) -> int:
    if not re.fullmatch(r"\d+", text) or int(text) < least:
        raise ValueError(f"--on: {name} must be a whole number >= {least}; got {text!r}")
    return int(text)


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMGT])", text.upper().removesuffix("B").removesuffix("I"))
    if not found or not int(found[1]):
        raise ValueError(f"--on: memory takes a size such as 8G or 500M; got {text!r}")
    return int(found[1]) * _UNITS[found[2]]


def _need(name: str, text: str) -> Any:
    if name == "partition":
        return text
    if name == "memory":
        return _bytes(text)
    return _whole(name, text, 0 if name == "gpus" else 1)


def read_on(text: str) -> On:
    """What `--on` says.

    >>> read_on("slurm,gpus=1,time=240,partition=short").time
    240
    """
    first, *rest = text.split(",")
    engine, equals, where = first.partition("=")
    one_of("engine", engine, ENGINES)
    if equals and not where:
        raise ValueError(f"--on {first} names nothing after =; accepted: {ACCEPTED}")
    values: dict[str, Any] = {"engine": engine}
    if engine == "processes" and where:
        values["count"] = _whole("processes", where)
    elif engine == "slurm" and where:
        values["where"] = one_of("executor of slurm", where, ("local", "debug"))
    else:
        values["where"] = where
    for item in rest:
        name, equals, value = item.partition("=")
        if name not in _NEEDS[engine] or not value:
            what = nearest(name, _NEEDS[engine]) if _NEEDS[engine] else "accepted: nothing more"
            raise ValueError(f"--on {engine}: {item!r} is not understood; {what}")
        values[name] = _need(name, value)
    return On(**values)
