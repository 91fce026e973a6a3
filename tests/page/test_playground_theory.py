"""The playground's lines are those of antipgd.theory, and its walks follow them."""

import numpy as np
import pytest

from antipgd.theory import valley
from antipgd.theory.finite_rate import Landscape, flat_diffusion, flow, variance_ratio

SEED = 3
KINDS = {
    "pgd": {"taps": [1.0]},
    "anti": {"taps": [1.0, -1.0]},
    "taps": {"taps": [1.0, -0.3]},
    "hold": {"taps": [1.0, -1.0], "hold": 2},
    "hold 5": {"taps": [1.0, -1.0], "hold": 5},
    "antithetic": {"taps": [1.0, -1.0], "antithetic": True},
    "all": {"taps": [1.0, -0.3], "hold": 3, "antithetic": True},
}


def kind_of(name):
    return {"hold": 1, "antithetic": False} | KINDS[name]


@pytest.mark.parametrize("name", KINDS)
def test_the_ratio_is_that_of_the_theory(lib, name):
    kind, x = kind_of(name), [1e-6, 0.01, 0.3, 0.5, 1.0, 1.5, 1.99]
    found = lib("return given.x.map((x) => theory_js.varianceRatio(x, given.kind))",
                {"x": x, "kind": kind})  # fmt: skip
    np.testing.assert_allclose(found, variance_ratio(x, **kind), rtol=1e-12)
    outside = lib("""return [-1, 2, 2.5, 0].map((x) =>
        String(theory_js.varianceRatio(x, given)))""", kind)  # fmt: skip
    wanted = [variance_ratio(x, **kind) for x in (-1.0, 2.0, 2.5, 0.0)]
    assert [float(one.replace("Infinity", "inf")) for one in outside] == pytest.approx(wanted)
    found = lib("return theory_js.flatDiffusion(given)", kind)
    assert found == pytest.approx(flat_diffusion(**kind), rel=1e-12)


@pytest.mark.parametrize("theta", [0.0, -0.3, -1.0])
def test_the_drift_is_that_of_the_theory(lib, theta):
    x, d, sigma = [0.01, 0.3, 1.0, 1.9], 10, 0.05
    kind = {"taps": [1.0, theta] if theta else [1.0], "hold": 1, "antithetic": False}
    found = lib("return given.x.map((x) => theory_js.drift(x, given.d, given.sigma, given.kind))",
                {"x": x, "d": d, "sigma": sigma, "kind": kind})  # fmt: skip
    np.testing.assert_allclose(found, valley.drift(x, d, sigma, theta), rtol=1e-12, atol=1e-18)


def test_the_long_run_is_that_of_the_theory(lib):
    d, eta, sigma = 10, 0.1, 0.05
    code = """
      const kind = { taps: [1, -1], hold: 1, antithetic: false };
      const [d, eta, sigma, u2] = given;
      return theory_js.valleyExpected(u2, d, eta, sigma, kind);"""
    u2 = valley.long_run_u2(d, eta, sigma)
    found = lib(code, [d, eta, sigma, u2])
    assert found["trace"] == pytest.approx(valley.long_run_trace(d, eta, sigma), rel=1e-12)
    v2 = (found["trace"] - u2) / d
    assert found["loss"] == pytest.approx(v2 * u2 / 2, rel=1e-12)


def test_the_line_of_anti_pgd_ends_in_the_long_run(lib):
    """Which is dσ² to 1e-4: all of it is the noise that w carries."""
    given = {"d": 10, "eta": 0.1, "sigma": 0.05}
    code = """
      const start = problems_js.wideningValley(given.d).place([2, 0]);
      const kind = { taps: [1, -1], hold: 1, antithetic: false };
      const line = theory_js.valleyLine(start, given, kind);
      let last;
      for (let n = 0; n < 60000; n++) last = line.next();
      return last;"""
    last = lib(code, given)
    assert last["watch"] == pytest.approx(valley.long_run_u2(10, 0.1, 0.05), rel=1e-3)
    assert last["trace"] == pytest.approx(valley.long_run_trace(10, 0.1, 0.05), rel=1e-3)


MEAN_WALKS = """
  const problem = problems_js.wideningValley(given.d);
  const noise = methods_js.noiseOf(given.method, given);
  const start = problem.place([2, 0]);
  const sums = [0, 0, 0];
  for (let seed = 0; seed < given.seeds; seed++) {
    const draw = methods_js.drawing(String(seed), "w", problem.size);
    const walk = new methods_js.Walk(problem, start, noise, given, draw);
    for (let n = 0; n < given.steps; n++) walk.advance();
    for (let n = 0; n < 20; n++) {  // a mean over 20 steps, for v moves fast
      walk.advance();
      const { loss, trace, watch } = walk.seen;
      [loss, trace, watch].forEach((one, k) => { sums[k] += one / 20 / given.seeds; });
    }
  }
  const line = theory_js.valleyLine(start, given, noise);
  let last;
  for (let n = 0; n < given.steps + 10; n++) last = line.next();
  return [sums, [last.loss, last.trace, last.watch]];"""


QUICK = {"d": 20, "sigma": 0.02, "steps": 600}  # ‖u‖² doubles, and is still far from the barrier
SLOW = {"d": 5, "sigma": 0.05, "steps": 1500}  # ‖u‖² falls to less than a half


@pytest.mark.parametrize(("method", "case"), [
    ("pgd", QUICK), ("taps", QUICK | {"steps": 2000}), ("anti", SLOW), ("hold", SLOW),
    ("antithetic", SLOW),
])  # fmt: skip
def test_the_valley_follows_its_line(lib, method, case):
    """The means of 200 seeds; 2/3 or 3/2 of a drift would be 15 % off or more."""
    given = {"method": method, "eta": 0.1, "lambda": 0.5, "hold": 2, "seeds": 200, **case}
    means, line = lib(MEAN_WALKS, given)
    assert not 0.7 < line[2] / 4 < 1.4  # it has gone far enough for that
    np.testing.assert_allclose(means[1:], line[1:], rtol=0.05)
    assert means[0] == pytest.approx(line[0], rel=0.15)


MEAN_FITS = """
  const problem = problems_js.quadraticRegression("3", 20);
  const noise = methods_js.noiseOf(given.method, given);
  const start = problem.place(problem.start);
  const line = theory_js.regressionLine(problem, start, given, noise);
  const walks = Array.from({ length: 40 }, (_, seed) => new methods_js.Walk(
    problem, start, noise, given, methods_js.drawing(String(seed), "w", 20)));
  const rows = [];
  for (let n = 1; n <= 1500; n++) {
    walks.forEach((walk) => walk.advance());
    const expected = line.next();
    if (n > 300) rows.push(["loss", "trace", "watch"].map((name) => [
      walks.reduce((sum, walk) => sum + walk.seen[name], 0) / 40, expected[name]]));
  }
  return [0, 1, 2].map((k) => [0, 1].map((j) => rows.reduce((sum, row) => sum + row[k][j], 0)));"""


@pytest.mark.parametrize("method", ["anti", "hold", "antithetic"])
def test_the_regression_follows_its_line(lib, method):
    """Means of 40 seeds over steps 300 to 1,500, at w: the noise that w carries is in the line."""
    given = {"method": method, "eta": 0.05, "sigma": 0.05, "hold": 2, "lambda": 0.5}
    for measured, expected in lib(MEAN_FITS, given):
        assert measured == pytest.approx(expected, rel=0.06)


@pytest.fixture(scope="module")
def minimum(regression):
    problem, data = regression(SEED, 20)
    w = np.ones(20)
    for _ in range(60_000):
        w = w - 0.02 * problem.gradient(w[None], data)[0]
    assert np.linalg.norm(problem.gradient(w[None], data)) < 1e-10
    return problem, data, w


@pytest.mark.parametrize("name", ["anti", "hold", "antithetic"])
def test_the_pull_is_that_of_the_law(lib, minimum, name):
    problem, data, w = minimum
    code = """
      const problem = problems_js.quadraticRegression(given.seed, 20);
      const at = theory_js.regularised(
        problem, Float64Array.from(given.w), given.eta, theory_js.rationalParts(given.kind));
      return { pull: Array.from(at.pull), diagonal: Array.from(at.diagonal), trace: at.trace };"""
    kind = kind_of(name)
    H = problem.hessian(w, data)
    values, vectors = np.linalg.eigh(H)
    eta = 1.2 / values[-1]
    M = (vectors * variance_ratio(eta * values.clip(0), **kind)) @ vectors.T
    found = lib(code, {"seed": str(SEED), "w": w.tolist(), "eta": eta, "kind": kind})
    np.testing.assert_allclose(found["pull"], problem.curvature_gradient(w, data, M), rtol=1e-6)
    np.testing.assert_allclose(found["diagonal"], np.diag(M), rtol=1e-6)
    assert found["trace"] == pytest.approx((H * M).sum(), rel=1e-6)


def test_there_is_no_law_past_the_barrier_and_for_other_noise(lib, minimum):
    problem, data, w = minimum
    code = """
      const problem = problems_js.quadraticRegression(given.seed, 20);
      const w = Float64Array.from(given.w);
      return theory_js.regularised(problem, w, given.eta, [0, 1]) === null;"""
    h = np.linalg.eigvalsh(problem.hessian(w, data))[-1]
    for x, past in ((1.99, False), (2.01, True)):
        assert lib(code, {"seed": str(SEED), "w": w.tolist(), "eta": x / h}) is past
    for name in ("pgd", "taps", "hold 5", "all"):
        assert lib("return theory_js.rationalParts(given)", kind_of(name)) is None


@pytest.mark.parametrize("name", ["anti", "hold", "antithetic"])
def test_what_is_expected_at_w_is_the_mean_over_its_noise(lib, minimum, name):
    """Each weight of w has the variance σ²M_jj about z; the mean of the test loss by quadrature."""
    problem, data, w = minimum
    kind, sigma = kind_of(name), 0.2
    H = problem.hessian(w, data)
    values, vectors = np.linalg.eigh(H)
    eta = 1.2 / values[-1]
    M = (vectors * variance_ratio(eta * values.clip(0), **kind)) @ vectors.T
    code = """
      const problem = problems_js.quadraticRegression(given.seed, 20);
      const line = theory_js.regressionLine(problem, Float64Array.from(given.w), given, given.kind);
      const expected = line.next();
      return { ...expected, z: Array.from(line.z) };"""
    found = lib(
        code, {"seed": str(SEED), "w": w.tolist(), "eta": eta, "sigma": sigma, "kind": kind}
    )
    z, spread = np.array(found["z"]), sigma * np.sqrt(np.diag(M))
    np.testing.assert_allclose(  # the step itself
        z, w - eta * sigma**2 / 2 * problem.curvature_gradient(w, data, M), rtol=1e-6
    )
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    at = (z[:, None] + spread[:, None] * nodes) ** 2 - (np.arange(20) < 2)[:, None]
    assert found["watch"] == pytest.approx((at**2 @ weights).sum() / weights.sum() / 4, rel=1e-6)
    both = problem.trace(np.concatenate([z + np.diag(spread), z - np.diag(spread)]), data)
    (here,) = problem.trace(z[None], data)
    assert found["trace"] == pytest.approx(here + (both - here).sum() / 2, rel=1e-6)
    floor = sigma**2 / 2 * (H * M).sum()
    assert found["loss"] == pytest.approx(problem.loss(z[None], data)[0] + floor, rel=1e-6)


@pytest.mark.parametrize("name", ["anti", "hold", "antithetic"])
def test_the_line_of_the_regression_is_the_flow(lib, minimum, name):
    problem, data, w = minimum
    kind, sigma, steps = kind_of(name), 0.02, 4000
    eta = 1.0 / np.linalg.eigvalsh(problem.hessian(w, data))[-1]
    code = """
      const problem = problems_js.quadraticRegression(given.seed, 20);
      const line = theory_js.regressionLine(problem, Float64Array.from(given.w), given, given.kind);
      for (let n = 0; n < given.steps; n++) line.next();
      return Array.from(line.z);"""
    found = lib(code, {"seed": str(SEED), "w": w.tolist(), "eta": eta, "sigma": sigma,
                       "kind": kind, "steps": steps})  # fmt: skip
    land = Landscape(
        gradient=lambda z: problem.gradient(z[None], data)[0],
        hessian=lambda z: problem.hessian(z, data),
        third=lambda z, M: problem.curvature_gradient(z, data, M),
    )
    (wanted,) = flow(w, eta, sigma, land, [steps * eta], **kind)
    traces = [problem.trace(np.array(z)[None], data)[0] for z in (w, wanted, found)]
    assert traces[2] - traces[0] == pytest.approx(traces[1] - traces[0], rel=0.02)
    assert traces[0] - traces[1] > 0.05 * traces[0]
