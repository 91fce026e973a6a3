"""`make clocks`: what it steps with is what torch steps with, and its rule can say no."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import clocks
from antipgd.torch.kinds import kind_of, why_unknown


@pytest.mark.parametrize("problem", [clocks.Regression, clocks.Sensing, clocks.SmallSensing])
def test_all_seeds_at_once_are_each_by_itself(problem):
    stacked = problem(range(3))
    draws = torch.Generator().manual_seed(1)
    w = stacked.start + 0.1 * torch.randn(stacked.start.shape, generator=draws)
    close = (
        {"rtol": 1e-10, "atol": 1e-12} if w.dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-4}
    )
    for i, data in enumerate(stacked.each):
        alone = w[i].double().numpy().reshape(1, -1)
        gradient = stacked.single.gradient(alone, data)[0]
        np.testing.assert_allclose(stacked.gradient(w)[i].flatten(), gradient, **close)
        trace = stacked.single.trace(alone, data)
        np.testing.assert_allclose(stacked.trace(w)[i], trace[0], rtol=close["rtol"])


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon from 2.9 on")
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.0}])
def test_muon_of_a_stack_is_torchs_on_each_matrix(options):
    draws = torch.Generator().manual_seed(2)
    w = torch.randn((3, 20, 20), generator=draws, dtype=torch.float64)
    ours = w.clone()
    each = [torch.nn.Parameter(matrix.clone()) for matrix in w]
    stacked, torchs = (
        clocks.StackedMuon(ours, 0.01, **options),
        torch.optim.Muon(each, 0.01, **options),
    )
    for _ in range(20):
        gradient = torch.randn(w.shape, generator=draws, dtype=torch.float64)
        stacked.step(gradient)
        for parameter, own in zip(each, gradient, strict=True):
            parameter.grad = own.clone()
        torchs.step()
    moved = float((ours - w).abs().max())
    assert moved > 0.03
    for ours_of, theirs in zip(ours, each, strict=True):
        assert float((ours_of - theirs.detach()).abs().max()) < 0.02 * moved  # rounding to 8 bits


def test_all_seeds_in_one_tensor_step_as_each_would():
    row = clocks.ROWS["Adam, regression"]
    both, alone = clocks.Regression([0, 1]), clocks.Regression([1])
    paths = []
    for problem in (both, alone):
        w = problem.start.clone()
        stepping = row.make(w, 0.01)
        for _ in range(20):
            stepping.step(problem.gradient(w))
        paths.append(w[-1])
    np.testing.assert_allclose(*paths, rtol=1e-9)


class Slope:
    """A trace that falls by lr a step, from 1, for all seeds but number 1."""

    def __init__(self, seeds):
        self.falls = torch.tensor([[float(seed != 1)] for seed in seeds], dtype=torch.float64)
        self.start = torch.ones(len(seeds), 1, dtype=torch.float64)

    def gradient(self, w):
        return self.falls

    def trace(self, w):
        return w[:, 0]


def test_steps_are_counted_to_both_levels():
    row = clocks.Row("sgd", Slope, clocks.SGD, (0.004, 0.008), (0.1, 0.2), 0.0, steps=0)
    problem = Slope([0, 1])
    found = clocks.steps_to(row, problem, problem.start, 0.004, 0.1, 100)
    np.testing.assert_equal(found, [[25, np.nan], [75, np.nan]])
    assert clocks.able(row, [0, 1, 2]) == [0, 2]
    assert clocks.without_noise(row, problem, problem.start, 50) == pytest.approx(0.8)


def test_exponents_are_found():
    lrs, sigmas = (0.1, 0.2, 0.4), (0.01, 0.02, 0.04)
    rng = np.random.default_rng(3)
    steps = np.array([[lr**-1 * s**-1.5 * np.exp(0.01 * rng.normal(size=12)) for s in sigmas]
                      for lr in lrs])  # fmt: skip
    found = clocks.exponents(lrs, sigmas, steps)
    assert found["a"][0] == pytest.approx(1, abs=0.02)
    assert found["b"][0] == pytest.approx(1.5, abs=0.02)
    assert [mean for mean, _ in found["b by neighbours"]] == pytest.approx([1.5, 1.5], abs=0.02)
    assert not clocks.fits(found, 1)
    assert not clocks.fits(found, 2)


def test_the_rule():
    found = {"a": (1.1, 0.04), "b": (0.9, 0.04), "b by neighbours": [(1.2, 1.0), (0.8, 1.0)]}
    assert clocks.fits(found, 1)
    assert not clocks.fits(found, 2)
    assert not clocks.fits(found | {"a": (1.1, 0.06)}, 1)
    assert not clocks.fits(found | {"b": (0.9, 0.06)}, 1)
    assert not clocks.fits(found | {"b by neighbours": [(1.0, 0.0), (1.3, 0.0)]}, 1)


def test_intervals():
    mean, half = clocks.interval([1.0, 2.0, 3.0])
    assert mean == 2
    assert half == pytest.approx(4.302653 / math.sqrt(3))  # t of 2 degrees, s = 1


FOUND = json.loads(Path(clocks.__file__).with_name("clocks.json").read_text())["rows"]
JUDGED = [name for name, found in FOUND.items() if found["fits"] is not None]
TORCHS = [name for name in JUDGED if not name.startswith("signs")]  # which torch lacks


def test_the_page_has_what_was_measured():
    page = (Path(__file__).parents[1] / "docs/forms.md").read_text()
    assert set(FOUND) == set(clocks.ROWS)
    for name, found in FOUND.items():
        assert clocks.line(name, clocks.ROWS[name], found) in page


@pytest.mark.parametrize("name", TORCHS)
def test_a_clock_is_known_where_the_rule_says_so(name):
    row = clocks.ROWS[name]
    kind = getattr(torch.optim, re.match(r"\w+", name)[0])
    optimizer = kind([torch.nn.Parameter(torch.ones(2, 2))], lr=0.1, **row.options)
    why = why_unknown(0, optimizer, optimizer.param_groups[0])
    assert FOUND[name]["fits"] == (why == "")
    if not why:
        assert kind_of(optimizer).power == clocks.B_OF[row.clock]
