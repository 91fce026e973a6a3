"""`hessian_trace` against autodiff and closed forms; stopping, differences, scales, bad input."""

import math
import re
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from antipgd.flatness import ToleranceWarning, difference, hessian_trace

METHODS = ["hutchinson", "hutch++"]


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def split(values, case):
    return dict(zip(case.names, np.split(values, np.cumsum(case.sizes)[:-1]), strict=True))


def quadratic(H):
    """L = ½wᵀHw."""
    matrix, w = torch.as_tensor(H), normal(len(H), dtype=torch.as_tensor(H).dtype)
    return (lambda: w @ matrix @ w / 2), [w]


def symmetric(size, seed=0, shift=0.0):
    root = np.random.default_rng(seed).standard_normal((size, size))
    return (root + root.T) / 2 + shift * np.eye(size)


def positive(size=80, seed=0):
    root = np.random.default_rng(seed).standard_normal((size, size))
    return root @ root.T / size


def falling(size=200, factor=0.9, seed=0):
    q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))
    return (q * factor ** np.arange(size)) @ q.T


# Exact


def test_exact_is_exact(case):
    H, w = case.hessian(), case.flat
    trace = hessian_trace(*case.arguments, method="exact", **case.options)
    assert (trace.method, trace.n, trace.products) == ("exact", 1, len(H))
    assert trace.mean == pytest.approx(np.trace(H), rel=1e-8)
    if case.trace is not None:
        assert trace.mean == pytest.approx(case.trace, rel=1e-8)
    diagonal, weights = split(np.diag(H), case), split(w, case)
    for name, part in diagonal.items():
        assert trace.parameters[name].mean == pytest.approx(part.sum(), rel=1e-8, abs=1e-12)
    scaled = sum((weights[name] ** 2).mean() * part.sum() for name, part in diagonal.items())
    assert trace.scaled.mean == pytest.approx(scaled, rel=1e-8)
    assert trace.adaptive.mean == pytest.approx((w**2 * np.diag(H)).sum(), rel=1e-8)
    assert trace.sem <= 1e-12 * np.abs(np.diag(H)).sum()
    low, high = trace.interval()
    assert low <= trace.mean <= high
    expected = {"batch_norm": trace.batch_norm} if case.options else {}
    assert expected == case.options


def test_estimates_of_every_kind_cover(case):
    """Not a test of the level, which is test_coverage's: they are all about the right thing."""
    H, w = case.hessian(), case.flat
    diagonal, weights = split(np.diag(H), case), split(w, case)
    scaled = sum((weights[name] ** 2).mean() * part.sum() for name, part in diagonal.items())
    for method in METHODS:
        trace = hessian_trace(*case.arguments, method=method, max_probes=48, **case.options)
        about = [(trace, np.trace(H)), (trace.scaled, scaled),
                 (trace.adaptive, (w**2 * np.diag(H)).sum())]  # fmt: skip
        about += [(trace.parameters[name], part.sum()) for name, part in diagonal.items()]
        for estimate, exact in about:
            assert abs(estimate.mean - exact) <= 5 * estimate.sem + 1e-12
        total = sum(part.mean for part in trace.parameters.values())
        assert trace.mean == pytest.approx(total, rel=1e-9, abs=1e-12)


def test_auto_is_exact_where_that_costs_no_more():
    for size, method in ((1, "exact"), (96, "exact"), (97, "hutchinson")):
        loss, params = quadratic(np.eye(size) + 0.01)
        assert hessian_trace(loss, params).method == method
        assert hessian_trace(loss, params).products == min(size, 96)
    loss, params = quadratic(np.eye(1000) + 0.001)
    trace = hessian_trace(loss, params, tolerance=0.1)
    assert (trace.method, trace.products) == ("hutchinson", 32)  # not 1000
    loss, params = quadratic(symmetric(300, shift=0.05))
    assert hessian_trace(loss, params, tolerance=0.01).method == "exact"


@pytest.mark.parametrize("size", [1, 2, 15, 31, 32, 33, 47])
@pytest.mark.parametrize("tolerance", [None, 0.1])
def test_tiny_models(size, tolerance):
    H = positive(size)
    loss, params = quadratic(H)
    for method in (*METHODS, "exact", "auto"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ToleranceWarning)
            trace = hessian_trace(loss, params, method=method, tolerance=tolerance)
        assert abs(trace.mean - np.trace(H)) <= 4 * trace.sem + 1e-12
        if size < 32 and method == "hutch++":
            assert trace.method == "exact"


def test_negative_traces():
    H = -positive(200)
    loss, params = quadratic(H)
    for method in (*METHODS, "auto"):
        trace = hessian_trace(loss, params, method=method, tolerance=0.1)
        assert trace.converged
        assert trace.mean < 0
        assert abs(trace.mean - np.trace(H)) <= 4 * trace.sem


@pytest.mark.parametrize("method", ["exact", *METHODS])
def test_float32_says_how_far_it_may_be_off(cases, method):
    for name in ("mlp relu", "attention", "convolution", "batch norm train"):
        case = cases[name]()
        options = {"method": method, "max_probes": len(case.flat) if method == "exact" else 48}
        options |= case.options
        double = hessian_trace(*case.arguments, **options)
        case.module.float()
        case.batches = [(x.float(), y) for x, y in case.batches]
        single = hessian_trace(*case.arguments, **options)
        assert single.mean == pytest.approx(double.mean, rel=1e-4)
        again = hessian_trace(*case.arguments, float64=True, **options)
        assert again.mean == pytest.approx(double.mean, rel=1e-5)
        assert again.sem != single.sem
        if method == "exact":
            assert 0 < abs(single.mean - again.mean) <= 4 * single.sem


# Groups


def test_groups_and_weights():
    module = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    batches = [(normal(9, 5), normal(9, 4, seed=1))]

    def loss(batch):
        return ((module(batch[0]) - batch[1]) ** 2).mean()

    trace = hessian_trace(loss, module, batches, method="hutchinson")
    weights = trace.group(lambda name: name.endswith("weight"))
    listed = trace.group(["0.weight", "2.weight"])
    assert (weights.mean, weights.sem) == (listed.mean, listed.sem)
    biases = trace.group(["0.bias", "2.bias"])
    assert weights.mean + biases.mean == pytest.approx(trace.mean, rel=1e-12)
    twice = trace.weighted({"0.bias": 2.0})
    assert twice.mean == pytest.approx(2 * trace.parameters["0.bias"].mean)
    assert twice.sem == pytest.approx(2 * trace.parameters["0.bias"].sem)
    assert trace.group(iter(trace.names)).mean == pytest.approx(trace.mean)
    with pytest.raises(ValueError, match=re.escape("no parameter '0.weigth'; there are 0.weight,")):
        trace.group(["0.weigth"])
    with pytest.raises(ValueError, match="the group is empty; there are 0"):
        trace.group(lambda name: False)


# Scales


def relu_network(scale):
    """The same function for every scale of the first layer (Dinh et al. 2017)."""
    module = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 2)).double()
    with torch.no_grad():
        for k, p in enumerate(module.parameters()):
            p.copy_(normal(*p.shape, seed=k))
        module[0].weight *= scale
        module[0].bias *= scale
        module[2].weight /= scale
    return module


@pytest.mark.parametrize("method", ["exact", *METHODS])
def test_the_scaled_trace_does_not_see_a_change_of_scale(method):
    batches = [(normal(20, 4, seed=8), normal(20, 2, seed=9))]
    found = []
    for scale in (1.0, 10.0):
        module = relu_network(scale)

        def loss(batch, module=module):
            return ((module(batch[0]) - batch[1]) ** 2).mean()

        assert loss(batches[0]).item() == pytest.approx(
            ((relu_network(1.0)(batches[0][0]) - batches[0][1]) ** 2).mean().item()
        )
        found.append(hessian_trace(loss, module, batches, method=method))
    one, other = found
    assert abs(other.mean / one.mean) > 5
    if method == "exact":  # samples have parts that scale otherwise, of mean zero
        assert other.scaled.mean == pytest.approx(one.scaled.mean, rel=1e-9)
        assert other.adaptive.mean == pytest.approx(one.adaptive.mean, rel=1e-9)
    for a, b in ((one.scaled, other.scaled), (one.adaptive, other.adaptive)):
        assert abs(a.mean - b.mean) <= 4 * math.hypot(a.sem, b.sem) + 1e-9


def test_the_adaptive_trace_does_not_see_the_scale_of_a_unit():
    module, batches = relu_network(1.0), [(normal(20, 4, seed=8), normal(20, 2, seed=9))]

    def loss(batch):
        return ((module(batch[0]) - batch[1]) ** 2).mean()

    one = hessian_trace(loss, module, batches, method="exact")
    with torch.no_grad():
        module[0].weight[3] *= 7
        module[0].bias[3] *= 7
        module[2].weight[:, 3] /= 7
    other = hessian_trace(loss, module, batches, method="exact")
    assert other.adaptive.mean == pytest.approx(one.adaptive.mean, rel=1e-9)
    assert abs(other.scaled.mean / one.scaled.mean - 1) > 0.01


# Stopping


@pytest.mark.parametrize("method", [*METHODS, "auto"])
@pytest.mark.parametrize("tolerance", [0.3, 0.05, 0.01])
def test_a_tolerance_that_is_met(method, tolerance):
    loss, params = quadratic(falling())
    trace = hessian_trace(loss, params, method=method, tolerance=tolerance, max_probes=100_000)
    assert trace.converged is True
    low, high = trace.interval()
    assert (high - low) / 2 <= tolerance * abs(trace.mean)
    assert abs(trace.mean - np.trace(falling())) <= 2 * tolerance * trace.mean


def test_more_precision_costs_more():
    loss, params = quadratic(falling())
    for method in METHODS:
        options = {"method": method, "max_probes": 100_000}
        spent = [hessian_trace(loss, params, tolerance=tolerance, **options).products
                 for tolerance in (0.3, 0.05, 0.01)]  # fmt: skip
        assert spent == sorted(spent)
        assert spent[0] < spent[2]


def test_a_tolerance_that_is_not_met_warns():
    loss, params = quadratic(falling())
    text = r"tolerance 0.0001 not met after 64 products: the trace is .* ± "
    for method in (*METHODS, "auto"):
        with pytest.warns(ToleranceWarning, match=text) as caught:
            trace = hessian_trace(loss, params, method=method, tolerance=1e-4, max_probes=64)
        assert caught[0].filename == __file__
        assert trace.converged is False
        assert trace.products == 64
    assert hessian_trace(loss, params, max_probes=64).converged is None


def test_a_trace_near_zero_never_meets_a_tolerance_unless_exactly():
    H = symmetric(100)
    H -= np.eye(100) * np.trace(H) / 100
    loss, params = quadratic(H)
    with pytest.warns(ToleranceWarning, match="not met after 500 products"):
        hessian_trace(loss, params, method="hutchinson", tolerance=0.1, max_probes=500)
    assert hessian_trace(loss, params, tolerance=0.1).method == "exact"


# Differences


@pytest.mark.parametrize("method", METHODS)
def test_differences_with_common_probes(method):
    H = falling(150)
    other = H + 1e-4 * positive(150, seed=3)
    exact = np.trace(other) - np.trace(H)
    options = {"method": method, "max_probes": 60}
    one, two = (hessian_trace(*quadratic(matrix), **options) for matrix in (other, H))
    found = difference(one, two)
    assert found.sem < 0.05 * math.hypot(one.sem, two.sem)
    assert abs(found.mean - exact) <= 5 * found.sem
    assert found.n == min(one.n, two.n)
    independent = difference(one, hessian_trace(*quadratic(H), seed=1, **options))
    assert independent.sem == pytest.approx(math.hypot(one.sem, two.sem), rel=0.5)


def test_the_difference_of_hutchinsons_is_the_spread_of_differences():
    H, other = falling(150), falling(150, seed=5)
    one, two = (hessian_trace(*quadratic(m), method="hutchinson") for m in (H, other))
    samples = (one.samples.values - two.samples.values)[:, 0]
    found = difference(one, two)
    assert found.mean == pytest.approx(one.mean - two.mean, rel=1e-12)
    assert found.sem == pytest.approx(samples.std(ddof=1) / math.sqrt(96), rel=1e-9)
    assert found.degrees == 95


def test_a_difference_of_equals_is_as_uncertain_as_rounding():
    one = hessian_trace(*quadratic(falling(150)), method="hutchinson")
    found = difference(one, one)
    assert found.mean == 0
    assert 0 < found.sem < 1e-14 * one.mean


def test_differences_with_the_exact_are_as_uncertain_as_the_other():
    H = falling(80)
    exact, other = (hessian_trace(*quadratic(H), method=m) for m in ("exact", "hutchinson"))
    found = difference(exact, other)
    assert found.sem == pytest.approx(other.sem)
    assert found.degrees == other.degrees
    low, high = difference(exact, exact).interval()
    assert high - low < 1e-12


def test_differences_of_traces_made_with_a_tolerance():
    """As README makes them: two moments of a training, each with as many probes as it needs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 3))
    x = torch.randn(256, 20)
    batches = [(x[:128], x[:128, :3].argmax(1)), (x[128:], x[128:, :3].argmax(1))]

    def loss(batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    found, exact = [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(2):
        for step in range(20):
            optimizer.zero_grad()
            loss(batches[step % 2]).backward()
            optimizer.step()
        found.append(hessian_trace(loss, model, batches, tolerance=0.05))
        exact.append(hessian_trace(loss, model, batches, method="exact", max_probes=1000).mean)
    one, other = found
    assert one.converged
    assert one.method == other.method != "exact"
    apart = difference(one, other)
    assert abs(apart.mean - (exact[0] - exact[1])) <= 4 * apart.sem
    assert apart.sem < 0.5 * math.hypot(one.sem, other.sem)


def random_traces(n, spread=0.3, seed=0):
    """Hutchinson's traces of two similar matrices with so many samples each, and the matrices."""
    H = falling(150, factor=0.97)
    other = H + spread * positive(150, seed=seed + 1) / 150
    made = [hessian_trace(*quadratic(matrix), method="hutchinson", max_probes=count)
            for matrix, count in zip((H, other), n, strict=True)]  # fmt: skip
    return made, (H, other)


@pytest.mark.parametrize("n", [(40, 90), (90, 40), (64, 65)])
def test_unequal_numbers_of_common_probes(n):
    """By hand: the γ of least variance, and what it leaves."""
    (one, other), (H, G) = random_traces(n)
    a, b = (trace.samples.values[:, 0] for trace in (one, other))
    few, many = (a, b) if len(a) < len(b) else (b, a)
    m, total = len(few), len(many)
    beta = np.cov(few, many[:m])[0, 1] / many[:m].var(ddof=1)
    regression = few.mean() + beta * (many.mean() - many[:m].mean())
    sign = 1 if len(a) < len(b) else -1
    found = difference(one, other)
    assert found.mean == pytest.approx(sign * (regression - many.mean()), rel=1e-9)
    assert abs(found.mean - (np.trace(H) - np.trace(G))) <= 4 * found.sem
    assert found.sem < 0.3 * math.hypot(one.sem, other.sem)
    assert (found.n, found.degrees) == (m, m - 2)
    gammas = np.linspace(-1, 2, 301)
    rest = many[m:].var(ddof=1) if total - m > 1 else many.var(ddof=1)
    least = min(np.var(few - gamma * many[:m], ddof=1) / m + (1 - gamma) ** 2 * rest / (total - m)
                for gamma in gammas)  # fmt: skip
    assert found.sem == pytest.approx(math.sqrt(least), rel=0.1)
    back = difference(other, one)
    assert (back.mean, back.sem) == (-found.mean, found.sem)


def test_probes_beyond_the_common_ones_count_where_models_have_nothing_in_common():
    """Pairs alone would waste most of the longer trace."""
    H, G = falling(150), 100 * falling(150, seed=5)
    one, other = (hessian_trace(*quadratic(matrix), method="hutchinson", max_probes=count)
                  for matrix, count in ((H, 32), (G, 800)))  # fmt: skip
    found = difference(one, other)
    assert abs(found.mean - (np.trace(H) - np.trace(G))) <= 4 * found.sem
    assert found.sem == pytest.approx(math.hypot(one.sem, other.sem), rel=0.3)


def test_two_estimators_are_subtracted_as_they_are():
    """Hutch++ has its samples from other probes; those of its subspace leave it unbiased."""
    loss, params = quadratic(falling(150))
    one, other = (hessian_trace(loss, params, method=method) for method in METHODS)
    found = difference(one, other)
    assert found.mean == one.mean - other.mean
    assert found.sem == math.hypot(one.sem, other.sem)
    assert found.degrees == min(one.degrees, other.degrees)


def test_hutchs_of_two_ranks_share_their_samples():
    H = falling(150)
    one, other = (hessian_trace(*quadratic(matrix), method="hutch++", max_probes=60)
                  for matrix in (H, 3 * H + np.eye(150)))  # fmt: skip
    assert one.n != other.n or one.products != other.products or one.samples is not other.samples
    found = difference(one, other)
    assert abs(found.mean - (np.trace(H) - 3 * np.trace(H) - 150)) <= 4 * found.sem


def test_traces_of_other_parameters_are_refused():
    full = hessian_trace(*quadratic(falling(150)), method="hutchinson")
    other = normal(150)
    renamed = hessian_trace(lambda: (other**4).sum(), {"other": other}, method="hutchinson")
    text = "'0' has 150 elements in the first and is missing in the second; measure both"
    with pytest.raises(ValueError, match=f"not over the same parameters: {text}"):
        difference(full, renamed)
    shorter = hessian_trace(*quadratic(falling(149)), method="hutchinson")
    with pytest.raises(ValueError, match="'0' has 150 elements in the first and has 149 elements"):
        difference(full, shorter)


# Input


def test_bad_input():
    loss, params = quadratic(falling(150))
    with pytest.raises(
        ValueError,
        match=r"unknown method 'Hutch\+\+'; did you mean 'hutch\+\+'\? accepted: auto, exact",
    ):
        hessian_trace(loss, params, method="Hutch++")
    for tolerance in (0, 1, -0.1, math.nan, "0.1", True):
        with pytest.raises(ValueError, match="tolerance must be a finite number > 0 and < 1; got"):
            hessian_trace(loss, params, tolerance=tolerance)
    for count in (96.0, "96", True):
        with pytest.raises(ValueError, match="max_probes of method 'auto' must be a whole number"):
            hessian_trace(loss, params, max_probes=count)
    for method, least in (("auto", 48), ("hutchinson", 32), ("hutch++", 48)):
        text = f"max_probes of method '{re.escape(method)}' must be a whole number >= {least}"
        for count in (least - 1, 0, -5):
            with pytest.raises(ValueError, match=text):
                hessian_trace(loss, params, method=method, max_probes=count)
        assert hessian_trace(loss, params, method=method, max_probes=np.int64(least)).n >= 16
    with pytest.raises(
        ValueError, match="of method 'exact' must be a whole number >= 150; got 100"
    ):
        hessian_trace(loss, params, method="exact", max_probes=100)
    for seed in (-1, 1.5, None):
        with pytest.raises(ValueError, match="seed must be an integer from 0 to"):
            hessian_trace(loss, params, seed=seed)
    with pytest.raises(ValueError, match=r"MiB for at least 16 probes; memory is 0\.0095"):
        hessian_trace(loss, params, method="hutch++", memory=10_000)
    assert hessian_trace(loss, params, memory=10_000).method == "hutchinson"


def test_seeds():
    loss, params = quadratic(falling(150))
    for method in METHODS:
        found = [hessian_trace(loss, params, method=method, seed=seed) for seed in (3, 3, 4)]
        assert found[0].mean == found[1].mean != found[2].mean
        assert found[0].seed == 3


def test_what_a_trace_shows():
    trace = hessian_trace(*quadratic(falling(150)), method="hutchinson", max_probes=32)
    assert re.fullmatch(
        r"Trace\(\d+\.\d+ \[\d+\.\d+, \d+\.\d+\], n=32; scaled \S+, adaptive \S+; hutchinson, "
        r"32 products, batch norm none\)",
        repr(trace),
    )
    assert re.fullmatch(r"\S+ \[\S+, \S+\], n=32", str(trace))
