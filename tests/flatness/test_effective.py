"""Effective sharpness against Σ s(h) over all eigenvalues of whole Hessians, in float64."""

import dataclasses
import math
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from antipgd.estimate import Estimate
from antipgd.flatness import (
    EffectiveSharpness,
    StabilityWarning,
    ToleranceWarning,
    at,
    difference,
    effective_sharpness,
)
from antipgd.flatness.effective import measured_effective_sharpness
from antipgd.flatness.excess import Excess
from antipgd.flatness.krylov import Krylov, Quadratures
from antipgd.flatness.objective import Objective
from antipgd.theory.finite_rate import mean_ratio, regulariser, stability_limit

I = np.arange(1, 301.0)  # noqa: E741
SPECTRA = {
    "one large": np.where(I == 1, 300.0, 1.0),
    "power law": 10 / I,
    "tenfold": np.repeat(10 / np.arange(1, 31.0), 10),
    "identity": np.full(300, 3.0),
    "some negative": np.linspace(-1, 10, 300),
}


def turned(eigenvalues):
    """A matrix with these eigenvalues in random directions."""
    rng = np.random.default_rng(0)
    q, _ = np.linalg.qr(rng.standard_normal((len(eigenvalues),) * 2))
    return (q * eigenvalues) @ q.T


def quadratic(matrix):
    """A place of which the Hessian is this matrix."""
    H, w = torch.as_tensor(matrix), torch.zeros(len(matrix), dtype=torch.float64)
    return at(lambda: w @ H @ w / 2, [w])


def diagonal(values):
    return quadratic(np.diag(np.asarray(values, float)))


def summed(eigenvalues, lr, momentum=0.0, nesterov=False, **noise):
    """The slow version: Σ s(h), one by one."""
    h = np.asarray(eigenvalues, float)
    return float(np.sum(regulariser(h, lr, math.sqrt(2), momentum, nesterov, **noise)))


def within(found, exact):
    """In the 99.9 % interval, which 2/3 and 3/2 of it are not."""
    low, high = found.interval(0.999)
    assert low <= exact <= high
    assert not low <= exact * 2 / 3 <= high
    assert not low <= exact * 3 / 2 <= high


# Values


def test_closed_forms_of_few_eigenvalues():
    h, lr = np.array([-2.0, 0.5, 3.0, 15.0]), 0.1
    found = diagonal(h).effective_sharpness(lr)
    exact = -2.0 - 2 / lr * np.log(1 - lr * h[1:] / 2).sum()
    assert found.mean == pytest.approx(exact, rel=1e-12)
    assert found.negative == pytest.approx(-2.0)
    assert found.trace.mean == pytest.approx(16.5)
    assert found.ratio.mean == pytest.approx(exact / 16.5)
    assert found.largest == pytest.approx(1.5)
    assert found.products == 4


def test_momentum_by_its_closed_form():
    h, lr, b = np.array([1.0, 20.0]), 0.1, 0.9
    x = lr * h
    exact = 2 / lr * (-b * x / (1 - b) - (1 + b) ** 2 / (1 - b) * np.log(1 - x / (2 + 2 * b)))
    found = diagonal(h).effective_sharpness(lr, b)
    assert found.mean == pytest.approx(exact.sum(), rel=1e-9)
    assert found.limit == pytest.approx(3.8)


@pytest.mark.parametrize("noise", [{"hold": 2}, {"antithetic": True}, {"draws": 3}])
def test_other_noises(noise):
    h = [1.0, 5.0, 12.0]
    found = diagonal(h).effective_sharpness(0.1, 0.5, **noise)
    assert found.mean == pytest.approx(summed(h, 0.1, 0.5, **noise), rel=1e-12)
    assert found.mean != pytest.approx(summed(h, 0.1, 0.5), rel=1e-3)


def test_holding_a_draw_for_two_steps_gives_the_trace():
    found = diagonal([1.0, 5.0, 12.0]).effective_sharpness(0.1, hold=2)
    assert found.mean == pytest.approx(18.0)


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_known_spectra(name, momentum, nesterov):
    h = SPECTRA[name]
    lr = 0.75 * stability_limit(momentum, nesterov) / h.max()
    found = quadratic(turned(h)).effective_sharpness(lr, momentum, nesterov, seed=1)
    within(found, summed(h, lr, momentum, nesterov))
    low, high = found.trace.interval(0.999)
    assert low <= h.sum() <= high
    assert found.converged
    assert found.largest == pytest.approx(lr * h.max(), rel=1e-3)
    assert found.products <= 300


def test_networks(case):
    """Every kind of model, with its own Hessian."""
    h = np.linalg.eigvalsh(case.hessian())
    lr = 1.5 / h.max()
    found = effective_sharpness(*case.arguments, lr, **case.options, seed=2)
    exact = summed(h, lr)
    low, high = found.interval(0.9999)
    assert low <= exact <= high
    assert abs(found.mean - exact) <= 0.12 * abs(exact)
    assert found.batch_norm == effective_sharpness(*case.arguments, lr, **case.options).batch_norm


def test_a_small_rate_gives_the_trace():
    h = SPECTRA["power law"]
    found = quadratic(turned(h)).effective_sharpness(1e-6)
    assert found.mean == pytest.approx(found.trace.mean, rel=1e-4)
    assert found.ratio.mean == pytest.approx(1, abs=1e-4)
    within(found, h.sum())


def test_what_is_not_convex_counts_as_it_is():
    h = -SPECTRA["power law"]
    found = quadratic(turned(h)).effective_sharpness(0.1)
    within(found, h.sum())
    assert found.negative == pytest.approx(h[h < -0.1].sum(), rel=0.15)
    assert found.mean == pytest.approx(found.trace.mean)


def test_what_is_near_zero_is_no_negative_mass():
    """A node a little below it has the weight of all that is there."""
    h = np.concatenate([np.linspace(1, 100, 30), np.full(970, -1e-3)])
    assert quadratic(np.diag(h)).effective_sharpness(1e-3).negative == 0


def test_negative_mass():
    h = SPECTRA["some negative"]
    found = quadratic(turned(h)).effective_sharpness(0.1)
    assert 1 / 3 <= found.negative / h[h < -0.1].sum() <= 3  # few nodes for 300 eigenvalues


def test_the_largest_are_exact_however_many_are_equal():
    h = SPECTRA["tenfold"]
    found = quadratic(turned(h)).effective_sharpness(0.15)
    np.testing.assert_allclose(found.eigenvalues, 10.0, rtol=1e-3)
    assert len(found.eigenvalues) == 10
    assert (found.residuals <= 0.1 * found.eigenvalues).all()


def test_float32_with_rounding_in_its_error_bar():
    h = torch.as_tensor(SPECTRA["power law"], dtype=torch.float32)
    w = torch.zeros(300)
    found = effective_sharpness(lambda: (h * w**2).sum() / 2, [w], None, 0.15)
    within(found, summed(SPECTRA["power law"], 0.15))


def test_tolerance_and_what_it_costs():
    here = quadratic(turned(SPECTRA["power law"]))
    rough, fine = (here.effective_sharpness(0.15, tolerance=t) for t in (0.05, 0.01))
    assert rough.products < fine.products
    low, high = fine.interval()
    assert (high - low) / 2 <= 0.01 * fine.mean


def test_whole_hessian_where_that_is_cheaper():
    h = 1 + 0.5 * np.sin(I[:100])
    found = quadratic(turned(h)).effective_sharpness(0.5, tolerance=1e-4)
    assert found.mean == pytest.approx(summed(h, 0.5), rel=1e-10)
    assert found.n == 1


def test_seeds():
    here = quadratic(turned(SPECTRA["power law"]))
    one, again, other = (here.effective_sharpness(0.15, seed=s) for s in (0, 0, 1))
    assert (one.mean, one.sem, one.products) == (again.mean, again.sem, again.products)
    assert one.mean != other.mean


# The edge of stability


def test_an_eigenvalue_at_the_limit():
    h = np.where(I <= 3, 21.0, 5 / I)
    with pytest.warns(StabilityWarning, match="3 eigenvalues reach the limit of stability"):
        found = quadratic(turned(h)).effective_sharpness(0.1)
    assert found.mean == math.inf
    assert found.at_limit == 3
    exact = summed(h[3:], 0.1)
    low, high = found.rest.interval(0.999)
    assert low <= exact <= high
    assert found.rest.mean == pytest.approx(exact, rel=0.1)
    assert found.ratio.mean == math.inf
    assert "inf, the rest" in repr(found)


def test_all_of_them_at_the_limit():
    with pytest.warns(StabilityWarning, match="reach the limit"):
        found = diagonal(np.full(200, 2.5)).effective_sharpness(1.0)
    assert found.mean == math.inf
    assert found.at_limit == pytest.approx(200, rel=0.1)
    assert abs(found.rest.mean) < 0.1 * 500


def test_an_interval_that_reaches_the_limit():
    """Of an eigenvalue below it: what rounding leaves uncertain decides."""
    values = torch.tensor([2 - 1e-8, 1.0])
    w = torch.zeros(2)
    with pytest.warns(StabilityWarning, match="1 eigenvalues reach"):
        found = effective_sharpness(lambda: (values * w**2).sum() / 2, [w], None, 1.0)
    assert found.rest.mean == pytest.approx(summed([1.0], 1.0), rel=1e-5)


@pytest.mark.parametrize(("share", "told"), [(0.89, False), (0.91, True), (0.999, True)])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_warning_near_the_limit(share, told, momentum):
    limit = stability_limit(momentum)
    here = diagonal([1.0, 10.0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = here.effective_sharpness(share * limit / 10, momentum)
    assert [w.category for w in caught] == [StabilityWarning] * told
    assert math.isfinite(found.mean)
    if told:
        assert f"{share:.0%} of the limit" in str(caught[0].message)
        assert caught[0].filename == __file__


# What is refused, and what is told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0}, "lr must be"),
        ({"lr": -0.1}, "lr must be"),
        ({"lr": math.inf}, "lr must be"),
        ({"lr": 0.1, "momentum": 1}, "momentum must be"),
        ({"lr": 0.1, "nesterov": 1}, "nesterov must be True or False"),
        ({"lr": 0.1, "hold": 0}, "hold must be"),
        ({"lr": 0.1, "draws": 1.5}, "draws must be"),
        ({"lr": 0.1, "tolerance": 0}, "tolerance must be"),
        ({"lr": 0.1, "max_products": 47}, "max_products must be a whole number >= 48"),
    ],
)
def test_refused(options, message):
    with pytest.raises(ValueError, match=message):
        diagonal([1.0]).effective_sharpness(**options)


def test_memory_is_a_bound():
    w = torch.zeros(1000, dtype=torch.float64)
    place = at(lambda: (w**2).sum(), [w], memory=20 * 8 * 1000)
    with pytest.raises(
        ValueError, match=r"at least 12 vectors and 12 beside them; memory is 0\.15"
    ):
        place.effective_sharpness(0.1)
    enough = at(lambda: (w**2).sum(), [w], memory=30 * 8 * 1000)
    within(enough.effective_sharpness(0.1), summed(np.full(1000, 2.0), 0.1))


def test_a_tolerance_that_is_not_met():
    here = quadratic(turned(SPECTRA["some negative"]))
    with pytest.warns(ToleranceWarning, match="not met after 60 products"):
        found = here.effective_sharpness(0.15, tolerance=0.01, max_products=60)
    assert found.converged is False
    assert found.products == 60
    low, high = found.interval(0.999)
    assert low <= summed(SPECTRA["some negative"], 0.15) <= high
    assert "tolerance not met" in repr(found)


def test_in_a_few_lines_and_as_a_dictionary():
    found = diagonal([-1.0, 5.0]).effective_sharpness(0.1, 0.9, True)
    assert len(repr(found).splitlines()) == 3
    assert "lr 0.1, momentum 0.9, nesterov" in repr(found)
    metrics = found.metrics()
    assert metrics["effective_sharpness"] == found.mean
    assert metrics["ratio"] == found.mean / found.trace.mean
    assert metrics["largest"] == pytest.approx(0.5)
    assert metrics["negative"] == pytest.approx(-1.0)
    assert metrics["at_limit"] == 0
    assert all(type(value) is float for value in metrics.values())


def test_the_ratio_of_the_clock_is_that_of_the_law():
    """φ at the eigenvalues, not its mean below them; h ≤ 0 counts as h."""
    h, lr = np.array([-2.0, 0.5, 3.0, 15.0]), 0.1
    found = diagonal(h).effective_sharpness(lr)
    assert found.clock_ratio == pytest.approx(mean_ratio(h, lr), rel=1e-12)
    assert found.clock_ratio > 1.2 * found.ratio.mean
    moving = diagonal(h[1:3]).effective_sharpness(lr, momentum=0.5, nesterov=True, hold=3)
    exact = mean_ratio(h[1:3], lr, momentum=0.5, nesterov=True, hold=3)
    assert moving.clock_ratio == pytest.approx(exact, rel=1e-12)
    with pytest.warns(StabilityWarning, match="reach"):
        assert diagonal([1.0, 30.0]).effective_sharpness(lr).clock_ratio == math.inf


def test_the_ratio_has_an_error_bar():
    made = dataclasses.replace(
        diagonal([1.0]).effective_sharpness(0.1), trace=Estimate(10.0, 1.0, 5),
        excess=Estimate(5.0, 0.0, 5),
    )  # fmt: skip
    assert isinstance(made, EffectiveSharpness)
    assert (made.ratio.mean, made.ratio.sem) == pytest.approx((1.5, 0.05))


# Parts


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_krylov_knows_its_images():
    H = torch.as_tensor(turned(SPECTRA["some negative"]))
    space = Krylov(lambda v: v @ H, lambda first, count: normal(count, 300, seed=first), 40)
    for _ in range(10):
        space.grow()
    Q = space.basis
    assert len(Q) == len(space) == 20
    torch.testing.assert_close(Q @ Q.T, torch.eye(20, dtype=Q.dtype), rtol=0, atol=1e-12)
    values, residuals = space.ritz()
    exact, vectors = torch.linalg.eigh(Q @ H @ Q.T)
    np.testing.assert_allclose(values, exact.flip(0).numpy(), atol=1e-10)
    u = vectors.T.flip(0) @ Q
    np.testing.assert_allclose(
        residuals, (u @ H - exact.flip(0)[:, None] * u).norm(dim=1).numpy(), atol=1e-9
    )


def test_krylov_widens_where_eigenvalues_are_equal():
    H = torch.as_tensor(turned(SPECTRA["identity"]))
    space = Krylov(lambda v: v @ H, lambda first, count: normal(count, 300, seed=first), 60)
    widths = []
    while not space.full:
        widths.append(space.next_width)
        space.grow()
    assert widths[:4] == [2, 4, 8, 16]
    np.testing.assert_allclose(space.ritz()[0], 3.0)


def test_krylov_of_all_there_is():
    H = torch.as_tensor(turned(np.arange(1.0, 10.0)))
    space = Krylov(lambda v: v @ H, lambda first, count: normal(count, 9, seed=first), 9)
    while not space.full:
        space.grow()
    np.testing.assert_allclose(space.ritz()[0], np.arange(9.0, 0.0, -1), rtol=1e-9)
    np.testing.assert_allclose(space.ritz()[1], 0, atol=1e-9)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_quadratures_are_exact_for_polynomials(steps):
    H, v = torch.as_tensor(turned(np.linspace(-1, 2, 50))), normal(3, 50)
    spaces = Quadratures(lambda rows: rows @ H, v)
    first = spaces.step()
    torch.testing.assert_close(first * spaces.lengths[:, None], v @ H)
    for _ in range(steps - 1):
        spaces.step()
    nodes, weights = spaces.nodes()
    for degree in range(2 * steps + 1):
        found = (weights * nodes**degree).sum(axis=1)
        exact = (v * (v @ torch.linalg.matrix_power(H, degree))).sum(1).numpy()
        assert np.allclose(found, exact) == (degree < 2 * steps)
    images = spaces.images(lambda h: h ** (steps - 1))
    torch.testing.assert_close(images, v @ torch.linalg.matrix_power(H, steps - 1))


def test_quadratures_of_an_exhausted_space():
    spaces = Quadratures(lambda rows: 3 * rows, normal(2, 50))
    for _ in range(3):
        spaces.step()
    nodes, weights = spaces.nodes()
    squares = normal(2, 50).square().sum(1).numpy()
    np.testing.assert_allclose((weights * np.exp(nodes)).sum(axis=1), squares * math.exp(3))


def test_excess_and_its_slope():
    excess, h = Excess(0.1, 0.5), np.array([-1.0, 0.0, 1.0, 10.0, 29.0, 31.0])
    np.testing.assert_allclose(excess(h[:2]), 0)
    np.testing.assert_allclose(
        excess(h[2:5]), [summed([one], 0.1, 0.5) - one for one in h[2:5]], rtol=1e-12
    )
    assert excess(h)[-1] == -31.0  # beyond the limit, and so out of the sum
    step = 1e-6
    slopes = (excess(h[2:5] + step) - excess(h[2:5] - step)) / (2 * step)
    np.testing.assert_allclose(excess.slope(h[2:5]), slopes, rtol=1e-6)
    np.testing.assert_allclose(excess.slope(h[[0, 1, 5]]), 0)


# Coverage


def trained(kind, squared, steps=300):
    """A small network near a minimum, as a Hessian by autodiff."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(40, 1, 6, 6, generator=g, dtype=torch.float64)
    layers = {
        "mlp": [nn.Flatten(), nn.Linear(36, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(),
                nn.Linear(6, 3)],
        "cnn": [nn.Conv2d(1, 10, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(40, 3)],
    }[kind]  # fmt: skip
    model = nn.Sequential(*layers).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.4 * torch.randn(p.shape, generator=g, dtype=torch.float64))
    y = torch.randint(3, (40,), generator=g)
    target = torch.eye(3, dtype=torch.float64)[y] if squared else y
    criterion = mse_loss if squared else cross_entropy
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        criterion(model(x), target).backward()
        optimizer.step()
    return model, lambda: criterion(model(x), target)


def hessian(model, loss):
    params = list(model.parameters())
    gradient = torch.cat([g.reshape(-1) for g in
                          torch.autograd.grad(loss(), params, create_graph=True)])  # fmt: skip
    rows = [torch.cat([g.reshape(-1) for g in torch.autograd.grad(one, params, retain_graph=True)])
            for one in gradient]  # fmt: skip
    found = torch.stack(rows).numpy()
    return (found + found.T) / 2


class Matrix(Objective):
    """Of which the Hessian is this matrix, without autodiff."""

    def __init__(self, matrix):
        self.matrix, w = torch.as_tensor(matrix), torch.zeros(len(matrix), dtype=torch.float64)
        super().__init__(lambda: w @ self.matrix @ w / 2, {"0": w}, None)

    def _own_products(self, vectors):
        return vectors @ self.matrix


def hits(matrix, share, momentum, seeds, first=0):
    """For each seed whether the interval holds the sum; runs that turned exact are left out."""
    h = np.linalg.eigvalsh(matrix)
    lr = share * stability_limit(momentum) / h.max()
    exact, inside, products = summed(h, lr, momentum), [], []
    for seed in range(first, first + seeds):
        found = measured_effective_sharpness(Matrix(matrix), lr, momentum, seed=seed)
        low, high = found.interval()
        inside += [low <= exact <= high] * (found.n > 1)
        products.append(found.products)
    return inside, float(np.mean(products))


def test_a_network_and_its_matrix_give_the_same():
    """So that coverage may be tested with matrices."""
    model, loss = trained("cnn", squared=False)
    here = at(loss, list(model.parameters()))
    matrix = hessian(model, loss)
    lr = 1.0 / np.linalg.eigvalsh(matrix).max()
    parts = [torch.zeros_like(p).detach() for p in model.parameters()]
    H = torch.as_tensor(matrix)

    def form():
        w = torch.cat([part.reshape(-1) for part in parts])
        return w @ H @ w / 2

    one, other = here.effective_sharpness(lr), at(form, parts).effective_sharpness(lr)
    assert one.mean == pytest.approx(other.mean, rel=1e-8)
    assert one.sem == pytest.approx(other.sem, rel=1e-6)
    assert one.products == other.products
    same = quadratic(matrix).effective_sharpness(lr)
    without_autodiff = measured_effective_sharpness(Matrix(matrix), lr)
    assert same.mean == pytest.approx(without_autodiff.mean, rel=1e-8)


def test_intervals_cover_most_of_the_time():
    matrix = hessian(*trained("mlp", squared=True))
    inside, _ = hits(matrix, 0.75, 0.0, 60)
    assert len(inside) == 60
    assert np.mean(inside) >= 0.86  # 95 % ± 2.8: three of those below


CELLS = [  # network, squared loss, share of the limit, momentum
    ("mlp", True, 0.75, 0.0),
    ("mlp", False, 0.75, 0.0),
    ("cnn", True, 0.75, 0.0),
    ("cnn", False, 0.75, 0.0),
    ("mlp", True, 0.75, 0.9),
    ("cnn", False, 0.01, 0.0),
]


@pytest.mark.slow
def test_intervals_cover(capsys):
    """1,000 seeds of each network and rate: 93 to 97 % each, and pooled."""
    cells = []
    for number, (kind, squared, share, momentum) in enumerate(CELLS):
        matrix = hessian(*trained(kind, squared))
        inside, products = hits(matrix, share, momentum, 1000, 1000 * number)  # seeds of its own
        cells.append(inside)
        line = (f"{kind}, {'squared' if squared else 'entropy'}, {len(matrix)} parameters, "
                f"{share:g} of the limit, momentum {momentum:g}: {np.mean(inside):.1%} of "
                f"{len(inside)}, {products:.0f} products")  # fmt: skip
        with capsys.disabled():
            print(f"\n{line}", end="", file=sys.stderr)
    pooled = np.mean(np.concatenate(cells))
    with capsys.disabled():
        print(f"\npooled {pooled:.2%}", file=sys.stderr)
    assert 0.94 <= pooled <= 0.96
    for inside in cells:
        assert len(inside) >= 990
        assert 0.93 <= np.mean(inside) <= 0.97


def test_differences_are_of_the_same_rate_and_noise():
    w, h = torch.zeros(3, dtype=torch.float64), torch.tensor([1.0, 2.0, 4.0]).double()

    def measured(lr=0.1, momentum=0.0, **options):
        return effective_sharpness(lambda: (h * w**2).sum() / 2, [w], None, lr, momentum, **options)

    assert difference(measured(), measured()).mean == 0
    for other, message in (
        (measured(0.2), "differ in lr, 0.1 and 0.2: measure both alike"),
        (measured(momentum=0.9), "differ in momentum, 0.0 and 0.9"),
        (measured(hold=3), "differ in hold, 1 and 3"),
        (measured(antithetic=True, draws=2), "differ in antithetic, False and True"),
    ):
        with pytest.raises(ValueError, match=message):
            difference(measured(), other)
