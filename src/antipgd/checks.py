"""What is accepted, said once: every refusal names the argument, the value given and the way out.

Knows nothing of what the values mean. A bool is no number, text is no number, NumPy's are.
"""

import difflib
import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a message about a word that is not known.

    >>> nearest("gauss", ["gaussian", "uniform"])
    "did you mean 'gaussian'? accepted: gaussian, uniform"
    """
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    meant = f"did you mean {close[0]!r}? " if close else ""
    return f"{meant}accepted: {', '.join(known)}"


def one_of(name: str, value: object, known: Iterable[str]) -> str:
    """A word out of several."""
    known = list(known)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"unknown {name} {value!r}; {nearest(str(value), known)}")
    return value


def whole(name: str, value: object, least: int, most: int | None = None) -> int:
    """A whole number, at least `least` and at most `most`."""
    there = isinstance(value, Integral) and not isinstance(value, bool)
    if not there or value < least or (most is not None and value > most):  # type: ignore[operator]
        upper = "" if most is None else f" and <= {most}"
        raise ValueError(f"{name} must be a whole number >= {least}{upper}; got {value!r}")
    return int(value)  # type: ignore[call-overload]


def _float(value: object) -> float:
    """As a float; not a number where it is none, or a whole number beyond all floats."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def number(
    name: str,
    value: object,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    above: bool = False,
    closed: bool = False,
) -> float:
    """A finite number ≥ `low`, or > `low` if it must lie `above`; < `high`, or ≤ if `closed`."""
    given = _float(value)
    below = given <= high if closed else given < high
    if not (math.isfinite(given) and low <= given and below and (given > low or not above)):
        wanted = "a finite number"
        if low > -math.inf:
            wanted += f" {'>' if above else '>='} {low:g}"
        if high < math.inf:
            wanted += f"{' and' if low > -math.inf else ''} {'<=' if closed else '<'} {high:g}"
        raise ValueError(f"{name} must be {wanted}; got {value!r}")
    return given


def interval(name: str, value: Sequence[float]) -> tuple[float, float]:
    """Two numbers low < high, infinite ones included."""
    try:
        low, high = map(float, value)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not low < high:
        raise ValueError(f"{name} must be an interval low < high; got {value!r}")
    return low, high
