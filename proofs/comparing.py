"""How a derivation ends: with equal expressions, or with what the code returns at exact points."""

import math
from collections.abc import Callable
from typing import Any

import sympy as sp

DIGITS = 40


class NotProved(Exception):  # noqa: N818  a verdict, not an error of the program
    """Two sides that are not equal."""


def same(left: Any, right: Any) -> None:
    """Refuses expressions that differ."""
    difference = sp.sympify(left) - sp.sympify(right)
    rest = sp.simplify(sp.together(sp.expand(difference)))
    if rest != 0:
        raise NotProved(f"{left} and {right} differ by {rest}")


def holds(statement: Any, about: str) -> None:
    """Refuses what is not true."""
    if not bool(statement):
        raise NotProved(f"not so: {about} ({statement})")


def value(formula: Any, **point: Any) -> sp.Expr:
    """The formula at a point, to 40 digits; a float counts as the rational number that it is."""
    at = {s: _exact(point[s.name]) for s in sp.sympify(formula).free_symbols}
    return sp.N(sp.sympify(formula).subs(at), DIGITS)


def _exact(number: Any) -> sp.Expr:
    return sp.Rational(number) if isinstance(number, float) else sp.sympify(number)


def agrees(formula: Any, code: Callable[..., Any], *points: dict[str, Any]) -> None:
    """Refuses code that returns something else than the formula, whose symbols are its arguments.

    Closer than 2⁻⁴⁰ of the value: a wrong factor, sign or exponent is far outside at any point.
    """
    for point in points:
        close(code(**point), value(formula, **point), point)


def close(found: Any, wanted: Any, where: Any = "") -> None:
    """Refuses a float that is not the number derived."""
    room = 2.0**-40 * max(abs(wanted), 2.0**-40)
    if not (math.isfinite(found) and abs(sp.Float(float(found), DIGITS) - wanted) <= room):
        raise NotProved(f"the code has {found}, derived is {wanted}, at {where}")


def stationary_covariance(A: sp.Matrix, noise: sp.Matrix) -> sp.Matrix:
    """S with S = A S Aᵀ + noise noiseᵀ, Lyapunov's equation for s ← A s + noise·ξ."""
    n = A.rows
    names = {(i, j): sp.Symbol(f"s_{i}{j}") for i in range(n) for j in range(i, n)}
    S = sp.Matrix(n, n, lambda i, j: names[min(i, j), max(i, j)])
    rest = S - A * S * A.T - noise * noise.T
    (found,) = sp.linsolve([rest[i, j] for i, j in names], *names.values())
    return S.subs(dict(zip(names.values(), found, strict=True))).applyfunc(sp.factor)
