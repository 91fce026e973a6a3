"""Every member walks the trajectory of the reference: see `conformance`."""

import numpy as np
import pytest

from conformance import ANTI, KNOWN, LOOKS, MEMBERS, OPTIONS, STEPS, Case, cases
from stream_backends import LAWS


def allowed(member, case, path):
    """How far apart weights may be: nothing; or, step by step, draws that are off by so many ulp
    and two roundings in another order. The base step makes no distance larger."""
    if member.draws_ulp == 0:
        return 0.0
    drawn = max(np.abs(case.sigma(k) * case.draw(k)).max() for k in range(1, STEPS + 1))
    injected = member.draws_ulp * np.finfo(np.float32).eps * drawn * sum(map(abs, case.taps))
    rounded = 2 * np.finfo(case.dtype).eps * max(np.abs(w).max() for w in path.values())
    return STEPS * (injected + rounded)


def distance(member, case):
    """The largest distance of weights over all looks, and what is allowed."""
    expected, found = case.expected(member.gradient, member.start), member.walk(case)
    for n in LOOKS:
        assert found[n].dtype == expected[n].dtype
    apart = max(np.abs(found[n] - expected[n]).max() for n in LOOKS)
    return apart, allowed(member, case, expected)


INTERPRETED = "torch on a GPU"  # through Triton's interpreter, so slow
QUICK = ("gaussian", "rademacher")  # both ways to draw: from words, and from single bits


def members_and_laws():
    """All pairs; the interpreter with most laws takes its time."""
    for name in MEMBERS:
        for law in LAWS:
            late = name == INTERPRETED and law not in QUICK
            yield pytest.param(name, law, marks=pytest.mark.slow if late else ())


@pytest.mark.parametrize(("name", "law"), [*members_and_laws()])
def test_trajectories_are_those_of_the_reference(name, law):
    member = MEMBERS[name]
    for case in cases(law, member.dtypes, member.taps):
        apart, most = distance(member, case)
        assert apart <= most, case


@pytest.mark.filterwarnings("ignore:hold=:UserWarning")
@pytest.mark.parametrize(("name", "option"), KNOWN)
def test_held_and_antithetic_draws_and_momentum_are_those_of_the_reference(name, option):
    member = MEMBERS[name]
    for dtype, schedule in ((dtype, s) for dtype in member.dtypes for s in ("constant", "window")):
        case = Case("gaussian", ANTI, schedule, dtype, **OPTIONS[option])
        apart, most = distance(member, case)
        assert apart <= most, case
        plain = Case("gaussian", ANTI, schedule, dtype).expected(member.gradient, member.start)
        assert max(np.abs(member.walk(case)[n] - plain[n]).max() for n in LOOKS) > 10 * most + 1e-3


@pytest.mark.parametrize("name", MEMBERS)
def test_another_noise_is_told_apart(name):
    """A colour, schedule or law that a member would not hear shows up far above what is allowed."""
    member = MEMBERS[name]
    case = Case("gaussian", (1.0, -1.0), "window", "float64")
    others = (
        Case("gaussian", (1.0, -0.999), "window", "float64"),
        Case("gaussian", (1.0, -1.0), "constant", "float64"),
        Case("student-t:100", (1.0, -1.0), "window", "float64"),
    )
    found = member.walk(case)
    for other in others:
        expected = other.expected(member.gradient, member.start)
        apart = max(np.abs(found[n] - expected[n]).max() for n in LOOKS)
        assert apart > 10 * allowed(member, other, expected), other
