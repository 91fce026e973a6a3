"""Every result prints in a few lines and is a flat dictionary of numbers for a log."""

import pytest
import torch

from antipgd.flatness import at

H = torch.arange(1.0, 101.0, dtype=torch.float64)


@pytest.fixture(scope="module")
def results():
    w = torch.full((100,), 0.1, dtype=torch.float64)
    here = at(lambda: (H * w**2).sum() / 2, [w])
    return {
        "trace": here.trace(),
        "exact": here.trace(method="exact"),
        "sharpness": here.sharpness(0.1, trace=True, law="rademacher"),
        "plain sharpness": here.sharpness(0.1, tolerance=0.5),
        "eigenvalues": here.top_eigenvalues(12),
        "spectrum": here.spectrum(lanczos_steps=16),
        "effective": here.effective_sharpness(0.01),
    }


NAMES = ["trace", "exact", "sharpness", "plain sharpness", "eigenvalues", "spectrum", "effective"]


@pytest.mark.parametrize("name", NAMES)
def test_few_lines(results, name):
    lines = repr(results[name]).splitlines()
    assert len(lines) <= 3
    assert sum(map(len, lines)) <= 260
    assert lines[0].startswith(f"{type(results[name]).__name__}(")


@pytest.mark.parametrize("name", NAMES)
def test_flat_numbers(results, name):
    metrics = results[name].metrics()
    assert metrics
    assert all(type(key) is str and type(value) is float for key, value in metrics.items())


def test_the_numbers_are_those_of_the_results(results):
    trace, exact = results["trace"].metrics(), results["exact"].metrics()
    assert exact["trace"] == pytest.approx(5050)
    assert exact["scaled_trace"] == pytest.approx(0.01 * 5050)  # ‖w‖²/n times the trace
    assert exact["adaptive_trace"] == pytest.approx(0.01 * 5050)
    assert exact["products"] == 100
    assert "converged" not in exact
    assert trace["scaled_trace_sem"] == results["trace"].scaled.sem
    assert trace["trace_sem"] == results["trace"].sem
    sharpness = results["sharpness"].metrics()
    assert sharpness["sharpness"] == pytest.approx(0.1**2 / 2 * 5050)
    assert sharpness["second_order"] == pytest.approx(0.1**2 / 2 * 5050)
    assert (sharpness["sigma"], sharpness["loss"]) == pytest.approx((0.1, 0.01 * 5050 / 2))
    plain = results["plain sharpness"].metrics()
    assert plain["converged"] == 1.0
    assert "second_order" not in plain


def test_the_numbers_of_spectra(results):
    eigenvalues = results["eigenvalues"].metrics()
    assert eigenvalues["eigenvalue_0"] == pytest.approx(100)
    assert eigenvalues["eigenvalue_11"] == pytest.approx(89)
    assert eigenvalues["eigenvalue_3_residual"] == results["eigenvalues"].residuals[3]
    assert "… 12 in all" in repr(results["eigenvalues"])
    spectrum, found = results["spectrum"], results["spectrum"].metrics()
    assert found["trace"] == pytest.approx(5050)  # signs are exact for a diagonal matrix
    assert found["second_moment"] == pytest.approx(3383.5)
    assert found["negative_share"] == spectrum.negative_share.mean
    assert found["largest"] == pytest.approx(100, rel=0.02)
    assert 0 < found["smallest"] < 5
