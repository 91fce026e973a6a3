"""The walk of the clean weights by rounding: its law, and the words about it."""

import math
import warnings

import pytest
import torch

from antipgd.torch import attach
from antipgd.torch.rounding import drift
from training import SEED

PERTURB = r"antipgd\.torch\.perturb\(model, optimizer, sigma=…\)"


def begin(size, sigma, dtype=torch.float32, count=5000):
    generator = torch.Generator().manual_seed(0)
    w = torch.nn.Parameter(size * torch.randn(count, generator=generator).to(dtype))
    small = torch.nn.Parameter(torch.full((5,), 20 * sigma, dtype=dtype))
    optimizer = torch.optim.SGD([("big", w), ("small", small)], lr=0.1)
    w.grad = torch.zeros_like(w)
    return w, optimizer, attach(optimizer, sigma=sigma, seed=SEED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("size", "sigma"), [(1.0, 0.01), (1e4, 1.0)])
def test_the_law(size, sigma, dtype):
    """rms of z − start after n steps; two thirds and three halves of the law are refused."""
    w, optimizer, noise = begin(size, sigma, dtype)
    start = w.detach().clone()
    for _ in range(400):
        optimizer.step()
    walked = (w.detach() - start) - noise.injected(w)
    if dtype == torch.float32:
        walked = (w.detach().double() - start.double()) - noise.injected(w).double()
        found = float(walked.square().mean().sqrt())
        assert found == pytest.approx(drift(size, dtype, 400), rel=0.1)
    else:
        assert float(walked.abs().max()) < 20 * drift(size, dtype, 400)


def test_noise_that_is_about_to_be_walked_over_is_said_at_once():
    expected = (0.1 * 1e-3 / drift(100, torch.float32, 1)) ** 2
    assert 1000 < expected < 2000
    message = rf"by a tenth of sigma within 1\.\de\+03 steps in big; .*{PERTURB}"
    with pytest.warns(UserWarning, match=message):
        begin(100, 1e-3)


def test_noise_below_the_rounding_is_said():
    with pytest.warns(UserWarning, match=rf"below the rounding of the weights.*: big; .*{PERTURB}"):
        begin(1e8, 0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        begin(1e8, 0.9, torch.float64)


def test_said_once_when_it_has_come_so_far():
    w, optimizer, noise = begin(1.0, 1e-4)
    assert 1e5 < noise._rounding.next < 3e5
    optimizer.step()
    noise.step_count = math.floor(noise._rounding.next)  # as a resume may set it
    noise.reset()
    with pytest.warns(UserWarning, match=r"by a tenth of sigma within 1\.\de\+05 steps in big;"):
        optimizer.step()
    optimizer.step()  # and no more
    assert w.grad is not None
