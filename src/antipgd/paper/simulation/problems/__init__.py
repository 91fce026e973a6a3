"""The paper's problems by name, and anybody's own.

A problem is named by a string, so that a run can be written down: a built-in name, or
"module:Class" for a class of your own.
"""

import dataclasses
import importlib
import typing
from collections.abc import Mapping

from antipgd.checks import nearest
from antipgd.paper.simulation.problems.deep_linear import DeepLinear
from antipgd.paper.simulation.problems.digits_classifier import DigitsClassifier
from antipgd.paper.simulation.problems.digits_network import DigitsNetwork
from antipgd.paper.simulation.problems.matrix_sensing import MatrixSensing
from antipgd.paper.simulation.problems.one_hidden_unit import OneHiddenUnit
from antipgd.paper.simulation.problems.problem import Problem
from antipgd.paper.simulation.problems.quadratic_regression import QuadraticRegression
from antipgd.paper.simulation.problems.student_teacher import StudentTeacher
from antipgd.paper.simulation.problems.widening_valley import WideningValley

PROBLEMS: dict[str, type[Problem]] = {
    "quadratic_regression": QuadraticRegression,
    "matrix_sensing": MatrixSensing,
    "widening_valley": WideningValley,
    "one_hidden_unit": OneHiddenUnit,
    "digits_classifier": DigitsClassifier,
    "student_teacher": StudentTeacher,
    "digits_network": DigitsNetwork,
    "deep_linear": DeepLinear,
}
"""The problems by name."""
_own: dict[str, type[Problem]] = {}

Setting = int | float | str | bool


def name_of(problem: str | type[Problem]) -> str:
    """The name of a problem class; a class of the user's is remembered under module:Class."""
    if isinstance(problem, str):
        return problem
    if not (isinstance(problem, type) and issubclass(problem, Problem)):
        raise TypeError(f"a problem is a name or a subclass of Problem; got {problem!r}")
    for name, known in PROBLEMS.items():
        if known is problem:
            return name
    name = f"{problem.__module__}:{problem.__qualname__}"
    _own[name] = problem
    return name


def problem_class(name: str) -> type[Problem]:
    """The class behind a name."""
    known = PROBLEMS | _own
    if name in known:
        return known[name]
    module, colon, path = name.partition(":")
    if not colon:
        raise ValueError(
            f"unknown problem {name!r}; {nearest(name, list(PROBLEMS))}, "
            f"or module:Class for one of your own"
        )
    try:
        found = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever the user's module raises
        raise ValueError(f"cannot find problem {name!r}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Problem)):
        raise ValueError(f"{name!r} is not a subclass of antipgd.paper.Problem")
    return found


def _as_type_of(name: str, value: Setting, kind: object) -> Setting:
    """A setting as its field's type; text, as it comes from a command line, is read as that."""
    try:
        if kind is bool and isinstance(value, str):
            return {"true": True, "false": False}[value.lower()]
        if kind is int and not isinstance(value, str) and value != int(value):
            raise ValueError
        return kind(value) if kind in (int, float, str, bool) else value
    except (KeyError, TypeError, ValueError, OverflowError):
        wanted = getattr(kind, "__name__", kind)
        raise ValueError(f"setting {name} must be of type {wanted}; got {value!r}") from None


def make_problem(name: str, settings: Mapping[str, Setting]) -> Problem:
    """A problem with these settings, its defaults elsewhere; unknown settings are refused."""
    cls = problem_class(name)
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"{name} must be a frozen dataclass, its fields being its settings")
    kinds = typing.get_type_hints(cls)
    fields = [field.name for field in dataclasses.fields(cls)]
    for unknown in settings.keys() - set(fields):
        raise ValueError(f"unknown setting {unknown!r} of {name}; {nearest(unknown, fields)}")
    values = {key: _as_type_of(key, value, kinds[key]) for key, value in settings.items()}
    try:
        return cls(**values)
    except Exception as error:  # whatever the user's class raises
        raise ValueError(str(error) or f"{name} refuses {values}: {error!r}") from error


def settings_of(problem: Problem) -> dict[str, Setting]:
    """All settings of a problem, defaults filled in."""
    return dataclasses.asdict(problem)  # type: ignore[call-overload]


__all__ = [
    "PROBLEMS",
    "DeepLinear",
    "DigitsClassifier",
    "DigitsNetwork",
    "MatrixSensing",
    "OneHiddenUnit",
    "Problem",
    "QuadraticRegression",
    "Setting",
    "StudentTeacher",
    "WideningValley",
    "make_problem",
    "name_of",
    "problem_class",
    "settings_of",
]
