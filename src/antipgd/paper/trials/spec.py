"""What a trial is: a function by name, the digest of its source files, and the arguments of a call.

A changed file makes other trials of all of them: the module that is named, and the file that the
function is written in where that is another. What these import is not looked at.
"""

import functools
import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from antipgd.checks import nearest, number, whole
from antipgd.paper.record import canonical, name_of

Setting = int | float | str | bool
FOLDER = "folder"  # an argument that is given, if the function takes it, and is no setting


@dataclass(frozen=True)
class Trial:
    """One call. Its record has a row for each number that came back, at a place of that name."""

    function: str
    source: str
    arguments: tuple[tuple[str, Setting], ...]

    measure = (1,)
    measures = ("value",)
    places = ()  # whatever the function names
    steps = 1

    @property
    def name(self) -> str:
        """32 hexadecimal digits, the hash of its canonical JSON."""
        return name_of(self.canonical())

    @property
    def method(self) -> str:
        """Its function."""
        return self.function

    @property
    def seed(self) -> int:
        """Trials that differ in it alone are repetitions."""
        return int(dict(self.arguments)["seed"])

    @property
    def settings(self) -> tuple[tuple[str, Setting], ...]:
        """All arguments but the seed."""
        return tuple((name, value) for name, value in self.arguments if name != "seed")

    @property
    def versions(self) -> dict[str, int]:
        """Of what is kept."""
        return {"trials": 1}

    @property
    def label(self) -> str:
        """As a call is written."""
        return f"{self.function} " + " ".join(f"{k}={v}" for k, v in self.arguments)

    def canonical(self) -> str:
        """As JSON with one spelling."""
        return canonical(self)

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> "Trial":
        """From its parsed JSON."""
        arguments = tuple((str(name), value) for name, value in values["arguments"])
        return cls(values["function"], values["source"], arguments)


def name_for(function: str | Callable) -> str:
    """`module:function` of a function, refused where no other process would find it."""
    if isinstance(function, str):
        return function
    where, path = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if where is None or where == "__main__" or not path or "<" in path:
        raise ValueError(
            f"{function!r} must be a function of a module, so that other processes find it: put it "
            "into a file of its own and give module:function"
        )
    name = f"{where}:{path}"
    if not any(function is one for one in (find_function(name), *_REPLACED.get(name, ()))):
        raise ValueError(
            f"{function!r} calls itself {name}, but that is another function (was it "
            "decorated, or its module loaded anew?): give the name that its module has for it, "
            "module:function"
        )
    return name


def find_function(name: str) -> Callable[..., Any]:
    """The function behind `module:function`."""
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise ValueError(f"a function is named module:function; got {name!r}")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except SystemExit as error:
        raise ValueError(
            f"cannot find {name!r}: {module} calls sys.exit({error.code!r}) when it is imported; "
            'put what is for a script below `if __name__ == "__main__":`'
        ) from error
    except Exception as error:  # whatever the user's module raises
        raise ValueError(f"cannot find {name!r}: {error}") from error
    if not callable(found):
        raise ValueError(f"{name!r} is no function: {found!r}")
    return found


def _innermost(function: Any) -> Any:
    """What is written in a file behind decorators, partials and objects that can be called."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif inspect.isroutine(function) or inspect.isclass(function):
            return function
        else:
            return type(function)


def _files_of(name: str) -> list[Path]:
    """The file of the module named, and that of the function if it is another one."""
    path = getattr(importlib.import_module(name.partition(":")[0]), "__file__", None)
    if path is None:
        raise ValueError(f"{name!r} comes from no file, so a change of it could not be seen")
    try:
        written = Path(inspect.getfile(_innermost(find_function(name))))
    except TypeError:  # compiled
        return [Path(path)]
    return [Path(path)] + [written] * (written != Path(path) and written.is_file())


def source_of(name: str) -> str:
    """A digest of the files that the function comes from, as they are now."""
    digest = hashlib.blake2b(digest_size=8)
    for path in _files_of(name):
        digest.update(hashlib.blake2b(path.read_bytes()).digest())
    return digest.hexdigest()


_IMPORTED: dict[str, str] = {}  # the digest of what this process runs; "" where nobody knows
_REPLACED: dict[str, list[Callable]] = {}  # functions whose files were loaded anew


def _source_to_run(name: str) -> str:
    """The digest of the files; whether this process has imported just them is remembered."""
    there = name.partition(":")[0] in sys.modules  # by somebody else, who knows when
    find_function(name)
    source = source_of(name)
    _IMPORTED.setdefault(name, "" if there else source)
    return source


def loaded(name: str, source: str) -> Callable[..., Any] | None:
    """The function as it is in files of this digest; None if they are others by now.

    A file that changes after it was imported does not change what is run. A process that has
    imported an earlier version, as a driver that works itself may have, loads it anew.
    """
    function = find_function(name)
    if name not in _IMPORTED:
        _IMPORTED[name] = source_of(name)
    if _IMPORTED[name] != source and source_of(name) == source:
        _REPLACED.setdefault(name, []).append(function)
        for module in (getattr(_innermost(function), "__module__", ""), name.partition(":")[0]):
            if module in sys.modules:
                importlib.reload(sys.modules[module])
        function, _IMPORTED[name] = find_function(name), source
    return function if _IMPORTED[name] == source else None


def takes(function: Callable, name: str) -> bool:
    """Whether a function has an argument of that name."""
    return name in inspect.signature(function).parameters


def _check_call(name: str, function: Callable, given: Iterable[str]) -> None:
    """Refuse arguments that the function does not take, and name those that it needs."""
    taken = inspect.signature(function).parameters
    anything = any(one.kind is one.VAR_KEYWORD for one in taken.values())
    for argument in given:
        if argument == FOLDER:
            raise ValueError(f"{FOLDER!r} is given to each trial by itself: it is no setting")
        if argument not in taken and not anything:
            raise ValueError(f"{name} takes no {argument!r}; {nearest(argument, taken)}")
    for argument, one in taken.items():
        named = one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        if named and one.default is one.empty and argument not in (*given, FOLDER):
            raise ValueError(f"{name} needs {argument!r}, and no value is given for it")


def _setting(name: str, value: Any) -> Setting:
    """A value that has one spelling in JSON."""
    if not isinstance(value, int | float | str | bool):
        raise ValueError(f"{name} takes numbers, words or truth values; got {value!r}")
    if isinstance(value, float):
        return number(name, value) + 0.0  # -0.0 is 0.0
    return value


def _several(name: str, values: Any) -> list[Any]:
    """Values of an argument, each once: 1 and 1.0 are one value, True is another."""
    many = [values] if isinstance(values, str) or not isinstance(values, Iterable) else [*values]
    if not many:
        raise ValueError(f"{name} needs at least one value; got none")
    each: dict[tuple[bool, Setting], Setting] = {}
    for value in (_setting(name, one) for one in many):
        each.setdefault((isinstance(value, bool), value), value)
    return [*each.values()]


def plan_trials(
    function: str | Callable,
    *,
    seeds: int | Sequence[int],
    sigma: float | Sequence[float] | None = None,
    lr: float | Sequence[float] | None = None,
    set: Mapping[str, Setting | Sequence[Setting]] | None = None,
) -> list[Trial]:
    """Every combination, each once; all is checked before anything runs."""
    name = name_for(function)
    source = _source_to_run(name)
    given = {"sigma": sigma, "lr": lr}
    grid: dict[str, list[Any]] = {
        key: [number(key, one, 0) for one in _several(key, values)]
        for key, values in given.items()
        if values is not None
    }
    for key, values in sorted((set or {}).items()):  # in whatever order: the same trials
        if key in ("sigma", "lr", "seed") or not key.isidentifier():
            raise ValueError(f"set: {key!r} cannot be a setting of its own")
        grid[key] = _several(key, values)
    chosen = range(whole("seeds", seeds, 1)) if isinstance(seeds, int) else seeds
    grid["seed"] = [whole("seed", seed, 0) for seed in chosen]
    _check_call(name, find_function(name), grid)
    if not grid["seed"]:
        raise ValueError("seeds needs at least one; got none")
    calls = (tuple(zip(grid, values, strict=True)) for values in product(*grid.values()))
    trials = (Trial(name, source, call) for call in calls)
    return [*{trial.name: trial for trial in trials}.values()]
