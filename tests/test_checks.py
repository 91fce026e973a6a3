"""Refusals: what is accepted comes back as a plain number, what is not is named."""

import math

import numpy as np
import pytest

from antipgd import checks


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_whole_numbers_come_back_plain(value):
    assert type(checks.whole("n", value, 3)) is int
    assert checks.whole("n", value, 3, 3) == 3


@pytest.mark.parametrize("value", [2, 5, 3.0, True, "3", None, math.nan, np.float64(3)])
def test_what_is_no_whole_number_in_range_is_refused(value):
    with pytest.raises(ValueError, match=r"^n must be a whole number >= 3 and <= 4; got "):
        checks.whole("n", value, 3, 4)


@pytest.mark.parametrize("value", [0, 1, 0.5, np.float32(0.5), np.int64(1)])
def test_numbers_come_back_plain(value):
    assert type(checks.number("x", value, 0, 1, closed=True)) is float
    assert checks.number("x", value, 0, 1, closed=True) == value


@pytest.mark.parametrize(
    ("limits", "value", "message"),
    [
        ({}, math.inf, "x must be a finite number; got inf"),
        ({}, 10**400, f"x must be a finite number; got {10**400}"),
        ({}, "1", "x must be a finite number; got '1'"),
        ({}, True, "x must be a finite number; got True"),
        ({"low": 0}, -0.1, "x must be a finite number >= 0; got -0.1"),
        ({"low": 0, "above": True}, 0, "x must be a finite number > 0; got 0"),
        ({"high": 1}, 1, "x must be a finite number < 1; got 1"),
        ({"low": 0, "high": 1}, 1, "x must be a finite number >= 0 and < 1; got 1"),
        ({"high": 1, "closed": True}, 1.5, "x must be a finite number <= 1; got 1.5"),
        ({"low": 0}, math.nan, "x must be a finite number >= 0; got nan"),
    ],
)
def test_numbers_that_are_refused(limits, value, message):
    with pytest.raises(ValueError) as error:
        checks.number("x", value, **limits)
    assert str(error.value) == message


def test_words():
    assert checks.one_of("law", "uniform", ["gaussian", "uniform"]) == "uniform"
    with pytest.raises(ValueError, match=r"unknown law 'gaus'; did you mean 'gaussian'\? accepted"):
        checks.one_of("law", "gaus", ["gaussian", "uniform"])
    with pytest.raises(ValueError, match="unknown law 3; accepted: gaussian, uniform"):
        checks.one_of("law", 3, ["gaussian", "uniform"])


def test_intervals():
    assert checks.interval("leave", ("-1", math.inf)) == (-1.0, math.inf)
    for value in ((1, 1), (2, 1), (1,), (1, math.nan), "ab", None):
        with pytest.raises(ValueError, match=r"^leave must be an interval low < high; got "):
            checks.interval("leave", value)
