"""Eigenvalues and densities against the whole Hessian of small models, in float64."""

import dataclasses
import math
import sys
import warnings

import numpy as np
import pytest
import torch
from scipy.special import ndtr, stdtrit
from torch import nn

from antipgd.flatness import ToleranceWarning, at, spectrum, top_eigenvalues


def network(dtype=torch.float64, seed=0):
    """A small regression that has not converged: 109 parameters, eigenvalues of both signs."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 4), nn.Tanh(), nn.Linear(4, 1))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.6)
    x = torch.randn(30, 5, generator=generator).to(dtype)
    y = torch.randn(30, 1, generator=generator).to(dtype)
    model = model.to(dtype)
    batches = [(x[:10], y[:10]), (x[10:], y[10:])]

    def loss(batch):
        return ((model(batch[0]) - batch[1]) ** 2).mean()

    return loss, model, batches


def exact_hessian(model, batches):
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    names, shapes = zip(*[(k, p.shape) for k, p in model.named_parameters()], strict=True)
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    def value(w):
        parts = w.split([math.prod(shape) for shape in shapes])
        named = {k: p.reshape(s) for k, p, s in zip(names, parts, shapes, strict=True)}
        return ((torch.func.functional_call(model, named, (x,)) - y) ** 2).mean()

    return torch.func.hessian(value)(flat).numpy()


LOSS, MODEL, BATCHES = network()
HESSIAN = exact_hessian(MODEL, BATCHES)
EXACT = np.linalg.eigvalsh(HESSIAN)
SIZE = len(EXACT)


def diagonal(values):
    """Parameters whose Hessian is diag(values)."""
    h = torch.as_tensor(values, dtype=torch.float64)
    w = torch.zeros(len(h), dtype=torch.float64)
    return (lambda: (h * w**2).sum() / 2), [w]


def state_of(model):
    return [t.clone() for t in [*model.parameters(), *model.buffers()]], torch.get_rng_state()


def same_state(one, other):
    return all(map(torch.equal, one[0], other[0])) and torch.equal(one[1], other[1])


# Single eigenvalues


def expected(k, which):
    key = {"LM": -np.abs(EXACT), "LA": -EXACT, "SA": EXACT}[which]
    return np.sort(EXACT[np.argsort(key)[:k]])[::-1]


@pytest.mark.parametrize("which", ["LM", "LA", "SA"])
@pytest.mark.parametrize("k", [1, 4, 30, SIZE - 1, SIZE])
def test_the_eigenvalues_are_those_of_the_hessian(which, k):
    found = top_eigenvalues(LOSS, MODEL, BATCHES, k=k, which=which)
    assert found.converged
    assert len(found.values) == k
    assert (np.diff(found.values) <= 0).all()
    np.testing.assert_allclose(found.values, expected(k, which), atol=1e-6 * np.abs(EXACT).max())


@pytest.mark.parametrize("tolerance", [0.3, 1e-2, 1e-6])
def test_an_eigenvalue_lies_within_the_residual(tolerance):
    found = top_eigenvalues(LOSS, MODEL, BATCHES, k=5, tolerance=tolerance)
    distance = np.abs(EXACT[:, None] - found.values).min(axis=0)
    assert (distance <= found.residuals + 1e-12).all()
    assert (found.residuals <= 1.01 * tolerance * np.abs(found.values) + 1e-12).all()
    if tolerance == 0.3:
        assert found.residuals.max() > 1e-8  # it is an error bar, not zero


@pytest.mark.parametrize("k", [2, SIZE])
def test_vectors_are_unit_eigenvectors_by_parameter(k):
    found = top_eigenvalues(LOSS, MODEL, BATCHES, k=k, vectors=True, tolerance=1e-9)
    shapes = {name: (k, *p.shape) for name, p in MODEL.named_parameters()}
    assert {name: tuple(v.shape) for name, v in found.vectors.items()} == shapes
    rows = torch.cat([v.reshape(k, -1) for v in found.vectors.values()], dim=1).numpy()
    np.testing.assert_allclose(rows @ rows.T, np.eye(k), atol=1e-8)
    np.testing.assert_allclose(rows @ HESSIAN, found.values[:, None] * rows, atol=1e-7)
    assert top_eigenvalues(LOSS, MODEL, BATCHES).vectors is None


def test_the_same_again_and_in_single_precision():
    one, other = (top_eigenvalues(LOSS, MODEL, BATCHES, k=3) for _ in range(2))
    np.testing.assert_array_equal(one.values, other.values)
    np.testing.assert_array_equal(one.residuals, other.residuals)
    assert one.products == other.products > 3
    single = top_eigenvalues(*network(torch.float32), k=3)
    np.testing.assert_allclose(single.values, one.values, rtol=1e-5)
    double = top_eigenvalues(*network(torch.float32), k=3, float64=True)
    np.testing.assert_allclose(double.values, one.values, rtol=1e-6)


@pytest.mark.parametrize("values", [[2.0], [1.0, -3.0], np.zeros(200), np.full(200, 5.0)])
def test_small_and_degenerate_hessians(values):
    k = min(3, len(values))
    found = top_eigenvalues(*diagonal(values), k=k)
    largest = sorted(sorted(values, key=abs)[-k:], reverse=True)
    np.testing.assert_allclose(found.values, largest, atol=1e-9)
    np.testing.assert_allclose(found.residuals, 0, atol=1e-9)


def test_what_did_not_converge_is_told_and_kept():
    clustered = diagonal(np.append(1 + 1e-4 * np.arange(400), [50.0, -60.0]))
    with pytest.warns(ToleranceWarning, match=r"2 of 4 eigenvalues met the tolerance 1e-06 after"):
        found = top_eigenvalues(*clustered, k=4, tolerance=1e-6, max_products=40)
    assert not found.converged
    np.testing.assert_allclose(found.values, [50, -60])
    crowded = diagonal(1 + 1e-4 * np.arange(400))
    with pytest.warns(ToleranceWarning, match=r"no eigenvalue met the tolerance 1e-08 after"):
        found = top_eigenvalues(*crowded, k=2, tolerance=1e-8, max_products=20)
    assert len(found.values) == 2
    assert not found.converged
    assert (found.residuals > 1e-8).all()
    distance = np.abs(1 + 1e-4 * np.arange(400)[:, None] - found.values).min(axis=0)
    assert (distance <= found.residuals).all()


def test_rounding_that_forbids_the_tolerance_is_told():
    with pytest.warns(ToleranceWarning, match=r"rounding in torch.float32 leaves .* float64=True"):
        found = top_eigenvalues(*network(torch.float32), tolerance=1e-12)
    assert not found.converged
    assert found.values[0] == pytest.approx(EXACT.max(), rel=1e-5)


def repeated(values, copies, size=100):
    """A rotated Hessian that has each of these eigenvalues so often, and smaller ones."""
    every = torch.linspace(0.01, 1, size, dtype=torch.float64) * np.sign(values[0])
    every[: copies * len(values)] = torch.tensor(values).double().repeat_interleave(copies)
    generator = torch.Generator().manual_seed(0)
    rotation = torch.linalg.qr(torch.randn(size, size, generator=generator).double())[0]
    h, w = rotation @ torch.diag(every) @ rotation.T, torch.zeros(size).double()
    return (lambda: w @ h @ w / 2), [w]


@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("which", ["LM", "LA", "SA"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_equal_eigenvalues_are_found_as_often_as_they_are_there(k, which, sign):
    values = sign * np.array([5.0, 4.5, 4.0, 3.0, 2.5])
    found = top_eigenvalues(*repeated(values, 4), k=k, which=which)
    every = np.append(np.repeat(values, 4), sign * np.linspace(0.01, 1, 100)[20:])
    key = {"LM": -np.abs(every), "LA": -every, "SA": every}[which]
    np.testing.assert_allclose(found.values, np.sort(every[np.argsort(key)[:k]])[::-1], atol=1e-6)
    assert found.converged
    again = top_eigenvalues(*repeated(values, 4), k=k, which=which)
    np.testing.assert_array_equal(found.values, again.values)
    assert found.products == again.products


def test_of_a_linear_layer_every_eigenvalue_is_there_once_for_each_output():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 30, generator=generator) * torch.linspace(3, 0.3, 30)
    y, model = torch.randn(500, 4, generator=generator), nn.Linear(30, 4, bias=False)
    calls = 0

    def loss(batch):
        nonlocal calls
        calls += 1
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    here = at(loss, model, [(x, y)])
    here.top_eigenvalues()
    calls = 0
    found = here.top_eigenvalues(3, vectors=True)
    exact = float(torch.linalg.eigvalsh(2 * x.T @ x / 500 / 4)[-1])
    np.testing.assert_allclose(found.values, exact, rtol=1e-5)
    rows = found.vectors["weight"].reshape(3, -1)
    np.testing.assert_allclose(rows @ rows.T, np.eye(3), atol=1e-5)
    assert found.products == calls + 2  # the three for the residuals are taken at once


def test_where_products_do_not_tell_of_copies_that_is_told():
    crowded = diagonal(np.append(np.linspace(0, 49.7, 1500), [50.0, -60.0]))
    with pytest.warns(ToleranceWarning, match=r"did not tell whether eigenvalues .* max_products"):
        found = top_eigenvalues(*crowded, k=2, max_products=100)
    assert not found.converged
    np.testing.assert_allclose(found.values, [50, -60], rtol=1e-5)


def test_directions_that_signs_cannot_see():
    w = torch.zeros(300, dtype=torch.float64)
    found = top_eigenvalues(lambda: (w[0] - w[1]) ** 2 + 0.01 * (w**2).sum(), [w])
    assert found.values[0] == pytest.approx(4.02)


# The density


def true_density(found):
    edges = np.linspace(found.grid[0], found.grid[-1], len(found.grid))
    half = (edges[1] - edges[0]) / 2
    upper, lower = (ndtr((found.grid[:, None] + d - EXACT) / found.width) for d in (half, -half))
    return (upper - lower).mean(axis=1) / (2 * half)


def test_moments_are_those_of_the_hessian():
    found = spectrum(LOSS, MODEL, BATCHES, lanczos_steps=8, max_probes=40)
    for k in (1, 2, 3, 4):
        exact, estimate = (EXACT**k).mean(), found.moment(k)
        assert abs(estimate.mean - exact) < 4 * estimate.sem, k
        assert abs(1.5 * estimate.mean - exact) > 4 * estimate.sem or k > 2
    assert found.trace.mean == pytest.approx(SIZE * found.moment(1).mean)
    assert found.trace.sem == pytest.approx(SIZE * found.moment(1).sem)
    assert found.trace.n == 40
    assert found.products == 320


def test_a_probe_gives_the_quadratic_forms_of_its_start():
    found = spectrum(LOSS, MODEL, BATCHES, lanczos_steps=6, max_probes=3, seed=7)
    from antipgd.flatness.probes import LANCZOS, Probes

    named = dict(MODEL.named_parameters())
    sizes = [p.numel() for p in named.values()]
    probes = Probes(7, list(named), sizes, torch.float64, torch.device("cpu"))
    for v, nodes, weights in zip(
        probes.rows(LANCZOS, 0, 3).numpy(), found.nodes, found.weights, strict=True
    ):
        power = v
        for k in range(12):  # exact to degree 2·6 − 1
            assert weights @ nodes**k == pytest.approx(v @ power / SIZE, rel=1e-9)
            power = HESSIAN @ power
        assert weights @ nodes**12 != pytest.approx(v @ power / SIZE, rel=1e-9)


def test_the_density_integrates_to_one_and_its_band_covers():
    covered, rejected = [], []
    for seed in range(12):
        found = spectrum(LOSS, MODEL, BATCHES, lanczos_steps=40, max_probes=6, seed=seed)
        cell = found.grid[1] - found.grid[0]
        assert found.density.sum() * cell == pytest.approx(1, abs=1e-8)
        low, high = found.band()
        truth = true_density(found)
        seen = truth > 0.01 * truth.max()
        covered.append(((low <= truth) & (truth <= high))[seen].mean())
        large = truth > 0.3 * truth.max()
        rejected.append(((1.5 * truth > high) | (1.5 * truth < low))[large].mean())
    assert 0.85 < np.mean(covered) <= 1
    assert np.mean(rejected) > 0.9


def test_narrow_peaks_are_not_lost_between_points():
    found = spectrum(*diagonal([1.0, 2.0, 7.0]), width=1e-9, points=10)
    assert found.density.sum() * (found.grid[1] - found.grid[0]) == pytest.approx(1)
    smooth = dataclasses.replace(found, width=0.5, points=500)
    assert len(smooth.grid) == 500
    assert smooth.density.max() < 1


def test_fractions_and_counts_in_a_gap():
    values = np.concatenate([np.linspace(-1, 1, 95), [10, 11, 12, 20, 30]])
    rotation = torch.linalg.qr(torch.randn(100, 100, dtype=torch.float64,
                               generator=torch.Generator().manual_seed(0)))[0]  # fmt: skip
    h, w = rotation @ torch.diag(torch.tensor(values)) @ rotation.T, torch.zeros(100).double()
    found = spectrum(lambda: w @ h @ w / 2, [w], lanczos_steps=40, max_probes=30)
    above = found.count_above(5.0)
    assert abs(above.mean - 5) < 3 * above.sem
    assert 0 < above.sem < 1.5
    below = found.fraction_below(5.0)
    assert below.mean == pytest.approx(1 - above.mean / 100)
    assert found.fraction_below(100.0).mean == pytest.approx(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_share_is_negative_of_a_hessian_without_negative_eigenvalues(dtype):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(30, n, generator=generator).to(dtype) for n in (100, 1))
    w = torch.zeros(100, 1, dtype=dtype)  # of 70 directions without any curvature
    found = spectrum(lambda b: ((b[0] @ w - b[1]) ** 2).mean(), [w], [(x, y)])
    assert found.fraction_below(0.0).mean > 0.3  # as it is drawn: smoothed
    assert found.negative_share.mean == found.metrics()["negative_share"] == 0
    below = spectrum(lambda b: -((b[0] @ w - b[1]) ** 2).mean(), [w], [(x, y)], max_probes=30)
    assert abs(below.negative_share.mean - 0.3) < 4 * below.negative_share.sem < 0.2


@pytest.mark.parametrize("values", [np.zeros(50), np.full(50, 5.0), [3.0], [1.0, 2.0]])
def test_exhausted_spaces_are_exact(values):
    found = spectrum(*diagonal(values))
    for k in (1, 2):
        assert found.moment(k).mean == pytest.approx((np.array(values) ** k).mean(), abs=1e-12)
    assert found.weights.sum(axis=1) == pytest.approx(1)
    assert found.density.sum() * (found.grid[1] - found.grid[0]) == pytest.approx(1, abs=1e-8)


def test_memory_bounds_the_vectors_and_changes_nothing_else():
    whole = spectrum(LOSS, MODEL, BATCHES, lanczos_steps=20, max_probes=4)
    parts = spectrum(LOSS, MODEL, BATCHES, lanczos_steps=20, max_probes=4, memory=8 * SIZE * 30)
    np.testing.assert_allclose(parts.nodes, whole.nodes, atol=1e-9)
    with pytest.raises(ValueError, match=r"24 vectors of 109 float64 .* use lanczos_steps=6"):
        spectrum(LOSS, MODEL, BATCHES, lanczos_steps=20, memory=8 * SIZE * 10)
    with pytest.raises(ValueError, match=r"24 vectors of 109 float64 .* fewer eigenvalues"):
        top_eigenvalues(LOSS, MODEL, BATCHES, memory=8 * SIZE * 10)


def test_the_picture_needs_only_axes(monkeypatch):
    figure = pytest.importorskip("matplotlib.figure")
    found = spectrum(LOSS, MODEL, BATCHES, lanczos_steps=10)
    axes = figure.Figure().add_subplot()
    assert found.plot(axes) is axes
    assert axes.get_yscale() == "log"
    assert len(axes.lines) == len(axes.collections) == 1
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"without axes needs .* pip install matplotlib$"):
        found.plot()


# Both


@pytest.mark.parametrize("measure", [top_eigenvalues, spectrum])
def test_the_model_is_left_as_it_was(measure):
    loss, model, batches = network()
    model.append(nn.BatchNorm1d(1).double())
    loss(batches[0]).backward()
    before, grads = state_of(model), [p.grad.clone() for p in model.parameters()]
    assert measure(loss, model, batches, batch_norm="train").batch_norm == "train"
    assert same_state(before, state_of(model))
    calls = 0

    def failing(batch):
        nonlocal calls
        calls += 1
        torch.rand(1)
        if calls > 20:
            raise RuntimeError("in the loss")
        return loss(batch)

    with pytest.raises(RuntimeError, match="in the loss"):
        measure(failing, model, batches, batch_norm="eval")
    assert same_state(before, state_of(model))
    assert all(map(torch.equal, grads, [p.grad for p in model.parameters()]))
    assert model.training


def test_a_hessian_that_is_not_finite():
    w = torch.zeros(100, dtype=torch.float64)
    for measure in (top_eigenvalues, spectrum):
        with pytest.raises(ValueError, match="product with the Hessian is not finite"):
            measure(lambda: (w.abs() ** 1.5).sum(), [w])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k must be a whole number >= 1 and <= 109; got 0"),
        ({"k": SIZE + 1}, f"k must be a whole number >= 1 and <= {SIZE}; got {SIZE + 1}"),
        ({"k": 1.5}, "k must be a whole number .*; got 1.5"),
        ({"which": "BE"}, "unknown which 'BE'; accepted: LM, LA, SA"),
        ({"tolerance": 0}, "tolerance must be a finite number > 0 and < 1; got 0"),
        ({"max_products": 5}, "max_products must be a whole number >= 20; got 5"),
        ({"seed": -1}, "seed must be an integer"),
    ],
)
def test_messages_of_eigenvalues(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        top_eigenvalues(LOSS, MODEL, BATCHES, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lanczos_steps": 1}, "lanczos_steps must be a whole number >= 2; got 1"),
        ({"max_probes": 1}, "max_probes must be a whole number >= 2; got 1"),
        ({"max_probes": True}, "max_probes must be a whole number >= 2; got True"),
        ({"points": 0}, "points must be a whole number >= 2; got 0"),
        ({"width": -1.0}, r"width must be a finite number > 0; got -1.0"),
    ],
)
def test_messages_of_the_spectrum(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        spectrum(LOSS, MODEL, BATCHES, **options)


def test_messages_of_its_moments_and_band():
    found = spectrum(LOSS, MODEL, BATCHES, lanczos_steps=3)
    with pytest.raises(ValueError, match="3 Lanczos steps give moments up to 5; got k=6"):
        found.moment(6)
    with pytest.raises(ValueError, match="k must be a whole number >= 1; got 0"):
        found.moment(0)
    with pytest.raises(ValueError, match="level must lie between 0 and 1; got 2"):
        found.band(2)
    low, high = found.band(0.5)
    np.testing.assert_allclose(high - found.density, stdtrit(7, 0.75) * found.sem)
    assert (low >= 0).all()


def test_nothing_is_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        top_eigenvalues(LOSS, MODEL, BATCHES)
