"""The derivations come through, and none would if the code were wrong."""

import dataclasses
import inspect
import pkgutil

import numpy as np
import pytest

import antipgd.theory
from antipgd.theory import (
    batches,
    equivalences,
    finder,
    linear,
    pac_bayes,
    regularisation,
    valley,
)
from antipgd.theory.finite_rate import clocks, flows, ratios, regularisers
from proofs.__main__ import derivations, failure, main
from proofs.comparing import NotProved, agrees, close, holds, same, value

DERIVATIONS = dict(derivations())
# Rules and refusals, no formulas; what follows a landscape is in tests/theory/test_flow.py.
NO_FORMULA = {
    "require", "check_grid", "too_little", "too_much", "finite", "flow", "directions",
    "ratio_by_direction",
}  # fmt: skip
MODULES = [
    batches, equivalences, finder, linear, pac_bayes, regularisation, valley,
    clocks, flows, ratios, regularisers,
]  # fmt: skip
FORMULAS = [
    (module, name)
    for module in MODULES
    for name, found in inspect.getmembers(module, inspect.isfunction)
    if found.__module__ == module.__name__ and not name.startswith("_") and name not in NO_FORMULA
]


@pytest.mark.parametrize("name", DERIVATIONS)
def test_a_derivation_comes_through(name):
    assert failure(DERIVATIONS[name]) == ""


def test_every_module_of_the_theory_is_derived():
    rooms = {found.name for found in pkgutil.iter_modules(antipgd.theory.__path__)}
    assert rooms <= {name.split("/")[1].split(".")[0] for name in DERIVATIONS}


def test_the_runner_counts_and_says_what_failed(monkeypatch, capsys):
    assert main(["linear", "ema_noise"]) == 0
    assert "1 proved, 0 failed" in capsys.readouterr().out
    monkeypatch.setattr(linear, "ema_noise", lambda sigma, decay: sigma)
    assert main(["linear", "ema_noise"]) == 1
    said = capsys.readouterr().out
    assert "proofs/linear.py::ema_noise" in said
    assert "FAILED NotProved: the code has 0.5" in said
    assert "0 proved, 1 failed" in said
    assert main(["no such derivation"]) == 1


def test_what_is_compared():
    import sympy as sp

    x = sp.Symbol("x")
    same((x + 1) ** 2, x**2 + 2 * x + 1)
    agrees(x**2, lambda x: x * x, {"x": 0.5})
    assert value(x, x=0.1) == sp.N(sp.Rational(0.1), 40)
    for refused in (
        lambda: same(x, 2 * x),
        lambda: agrees(x**2, lambda x: x * x * (1 + 1e-11), {"x": 0.5}),
        lambda: close(float("nan"), sp.Integer(1)),
        lambda: close(1e-9, sp.Integer(0)),
        lambda: holds(False, "this"),
    ):
        with pytest.raises(NotProved):
            refused()


def scaled(result):
    """The result with every number in it half as large again."""
    if isinstance(result, list):
        return [scaled(one) for one in result]
    if hasattr(result, "_replace"):
        return result._replace(**{name: scaled(one) for name, one in result._asdict().items()})
    if dataclasses.is_dataclass(result):
        fields = {name: scaled(one) for name, one in vars(result).items()}
        return dataclasses.replace(
            result, **{k: v for k, v in fields.items() if isinstance(v, float)}
        )
    return result if isinstance(result, str | tuple | type(None)) else result * (np.float64(3) / 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name"), FORMULAS, ids=lambda one: getattr(one, "__name__", one)
)
def test_a_wrong_factor_in_the_code_fails_a_derivation(module, name, monkeypatch):
    right = getattr(module, name)

    def wrong(*arguments, **named):
        return scaled(right(*arguments, **named))

    users = [module, regularisers, clocks, ratios, antipgd.theory.finite_rate]
    rooms = {inspect.getmodule(function) for function in DERIVATIONS.values()}
    for user in [*users, *rooms]:
        if getattr(user, name, None) is right:
            monkeypatch.setattr(user, name, wrong)
    own = sorted(DERIVATIONS.values(), key=lambda function: (
        name not in inspect.getsource(function),
        name[:8] not in inspect.getsource(inspect.getmodule(function)),
    ))  # fmt: skip
    assert any(failure(function) for function in own)
