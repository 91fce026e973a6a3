import pytest

from antipgd.noise import ANTI, WHITE, as_taps
from antipgd.noise.taps import carried, telescopes


def test_named_colours():
    assert ANTI == (1, -1)
    assert WHITE == (1,)


def test_any_iterable_of_numbers_is_taken():
    assert as_taps([1, -0.5]) == (1.0, -0.5)
    assert as_taps(iter((2,))) == (2.0,)


@pytest.mark.parametrize(
    "bad",
    [(), (1, float("nan")), (float("inf"),), (0, 0), "anti", "12", None, 3, (10**400,), ("1", "x")],
)
def test_bad_taps_are_named_in_the_message(bad):
    with pytest.raises(ValueError, match=r"taps must be one or more finite numbers.*got"):
        as_taps(bad)


def test_carried_draws_are_partial_sums():
    assert carried(ANTI) == (1, 0)
    assert carried((1.0, -0.5, -0.5)) == (1, 0.5, 0)
    assert carried(WHITE) == (1,)


def test_only_taps_that_sum_to_zero_telescope():
    assert telescopes(ANTI)
    assert telescopes((1.0, -0.9, -0.1))  # not zero in floating point
    assert not telescopes(WHITE)
    assert not telescopes((1.0, -0.999999))
