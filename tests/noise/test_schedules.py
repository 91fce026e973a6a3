import pickle
import warnings

import pytest

from antipgd.noise import Constant, Cosine, Linear, Plateau, Steps, Window
from antipgd.noise.schedules import advise_on_hold, as_schedule, factor


def test_constant():
    assert [Constant(0.5)(n) for n in (1, 10, 10**9)] == [0.5] * 3
    assert factor(None, 7) == 1


def test_linear_reaches_both_ends_exactly():
    ramp = Linear(10, 20, initial=2.0, final=1.0)
    assert [ramp(n) for n in (1, 10, 15, 20, 100)] == [2, 2, 1.5, 1, 1]


def test_cosine_is_half_way_in_the_middle_and_slow_at_the_ends():
    ramp = Cosine(0, 100)
    assert ramp(0) == 1
    assert ramp(50) == pytest.approx(0.5)
    assert ramp(100) == 0
    assert 1 - ramp(1) < 0.001


def test_steps_change_after_the_milestone():
    assert [Steps((3, 5), 0.1)(n) for n in (3, 4, 5, 6)] == pytest.approx([1, 0.1, 0.1, 0.01])


def test_window_is_closed_at_its_end():
    window = Window(2, 4)
    assert [window(n) for n in range(1, 7)] == [0, 0, 1, 1, 0, 0]
    assert Window(3)(10**12) == 1
    assert Window(3)(3) == 0


def test_schedules_are_values():
    for schedule in (Constant(2), Linear(1, 2), Cosine(1, 2), Steps((1,)), Window(1, 2)):
        assert pickle.loads(pickle.dumps(schedule)) == schedule


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -0.1, "1/2", None])
def test_a_bad_factor_is_refused_with_its_step(bad):
    with pytest.raises(ValueError, match=r"the schedule returned .* at step 7"):
        factor(lambda step: bad, 7)


def test_any_callable_is_a_schedule():
    assert factor(lambda step: 1 / step, 4) == 0.25


def test_bad_spans():
    for kind in (Linear, Cosine):
        with pytest.raises(ValueError, match="got begin=5, end=5"):
            kind(5, 5)
    with pytest.raises(ValueError, match="got start=4, stop=4"):
        Window(4, 4)
    with pytest.raises(ValueError, match="got start=-1"):
        Window(-1)


def test_schedules_from_their_written_form():
    assert as_schedule("linear:2:10") == Linear(2, 10)
    assert as_schedule("cosine:2:10:0.5:0.1") == Cosine(2, 10, 0.5, 0.1)
    assert as_schedule("steps:3:9") == Steps((3, 9))
    assert as_schedule("steps:3:9:gamma=0.5") == Steps((3, 9), 0.5)
    for bad in ("linear", "linear:1", "sine:1:2", "steps", ""):
        with pytest.raises(ValueError, match=r"unknown schedule .*accepted: linear:BEGIN:END"):
            as_schedule(bad)
    with pytest.raises(ValueError, match="schedule 'linear:a:2': invalid literal"):
        as_schedule("linear:a:2")
    with pytest.raises(ValueError, match="got begin=5, end=5"):
        as_schedule("cosine:5:5")


def test_a_plateau_begins_after_patience_reports_without_progress():
    schedule = Plateau(patience=3, threshold=0.1)
    losses = [1.0, 0.95, 0.8, 0.79, 0.75, 0.73, 0.1, 0.1]  # 0.95 counts, 0.8 is a tenth better
    assert [schedule.report(loss, 10 * i) for i, loss in enumerate(losses)] == 5 * [False] + 3 * [
        True
    ]
    assert schedule.begun == 50  # and it does not begin twice
    assert [schedule(step) for step in (0, 50, 51, 500)] == [0, 0, 1, 1]


def test_slow_progress_is_a_plateau_by_the_best_loss_not_the_last():
    """Each report is a little better than the one before, none by a tenth of the best."""
    schedule = Plateau(patience=2, threshold=0.1)
    assert [schedule.report(loss, 0) for loss in (1.0, 0.95, 0.92)] == [False, False, True]
    falling = Plateau(patience=2, threshold=0.1)
    assert not any(falling.report(0.8**k, 0) for k in range(20))
    negative = Plateau(patience=1, threshold=0.1)  # a loss may be below zero
    assert [negative.report(loss, 0) for loss in (-1.0, -1.2, -1.25)] == [False, False, True]


def test_a_plateau_may_ramp_up():
    schedule = Plateau(patience=1, ramp=3, state=(1.0, 1, 8))
    assert [schedule(step) for step in (8, 9, 10, 11, 12, 13)] == [0, 0.25, 0.5, 0.75, 1, 1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patience": 0}, "patience must be a whole number >= 1; got 0"),
        ({"threshold": -0.1}, "threshold must be .*; got -0.1"),
        ({"ramp": 1.5}, "ramp must be a whole number >= 0; got 1.5"),
    ],
)
def test_bad_plateaus_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Plateau(**settings)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_refused_and_forgotten(loss):
    schedule = Plateau()
    schedule.report(2.0, 1)
    with pytest.raises(ValueError, match="a reported loss must be a finite number; got"):
        schedule.report(loss, 2)
    assert schedule.state == (2.0, 0, None)


@pytest.mark.parametrize("hold", [1, 2, 3, 5])
def test_what_is_said_of_a_window_under_held_draws_is_where_they_act(hold):
    """A draw comes with every `hold`-th step and keeps the factor that it finds there."""
    for start in range(7):
        for stop in range(start + 1, 14):
            window = Window(start, stop)
            acts = [n for n in range(1, 40) if window((n - 1) // hold * hold + 1)]
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                advise_on_hold(window, hold, 1)
            words = "".join(str(warning.message) for warning in said)
            if acts == list(range(start + 1, stop + 1)):
                assert words == ""
            elif acts:
                assert f"the noise acts at steps {acts[0] - 1} < n <= {acts[-1]}; " in words
            else:
                assert "the noise never acts; " in words
    advise_on_hold(None, hold, 1)
    advise_on_hold(Linear(1, 2), hold, 1)
