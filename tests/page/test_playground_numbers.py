"""The playground's arithmetic, run in chromium, is that of the package: draws, walks, the cut."""

import math

import numpy as np
import pytest
import torch

from antipgd.noise import canonical_name, draws, reference, stream_key
from antipgd.noise.stream import stream_words
from antipgd.paper.simulation.blocks import Block
from antipgd.paper.simulation.problems import QuadraticRegression, WideningValley
from antipgd.paper.simulation.problems.quadratic_regression import Data
from antipgd.paper.simulation.spec import make_run
from antipgd.paper.simulation.stepping import NumpyStepper
from antipgd.torch import perturb

STEPS, SEED = 1000, 3
ETA, SIGMA, LAMBDA, HOLD = 0.1, 0.02, 0.4, 3
METHODS = ("gd", "pgd", "anti", "taps", "hold", "antithetic")
NAMES = ["w", "module._orig_mod.layer1.0.weight", "module", "", "ü" * 70]


# Draws


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [0, 1, 2**53 + 1, 2**64 - 1])
def test_keys_are_those_of_the_stream(lib, seed, name):
    found = lib("return stream_js.keyText(stream_js.streamKey(...given))", [str(seed), name])
    assert found == f"{stream_key(seed, name):016x}"


def test_names_lose_the_marks_of_wrappers(lib):
    assert lib("return given.map(stream_js.canonicalName)", NAMES) == [*map(canonical_name, NAMES)]


def test_seeds_go_up_to_64_bits(lib):
    given = ["0", "7", str(2**64 - 1), str(2**64), "01", "-1", "1.5", "", "1e3", " 1"]
    assert lib("return given.map(stream_js.isSeed)", given) == [True] * 3 + [False] * 7


def test_words_are_those_of_the_stream(lib):
    key = stream_key(SEED, "w")
    code = """
      const out = new Int32Array(4), all = [];
      for (const [step, block] of given.places) {
        stream_js.philox(given.key, step, block, out);
        all.push(Array.from(out));
      }
      return all;"""
    places = [(1, 0), (1, 1), (2, 0), (77_777, 12_345), (2**32 - 1, 2**31)]
    found = lib(code, {"key": [key & 0xFFFFFFFF, key >> 32], "places": places})
    wanted = [
        stream_words(key, step, block, 1)[0].view(np.int32).tolist() for step, block in places
    ]
    assert found == wanted


BITS = """
  const key = stream_js.streamKey(given.seed, given.name, given.purpose);
  return given.steps.map((step) =>
    Array.from(new Int32Array(stream_js.draws(key, step, given.count).slice().buffer)));"""


@pytest.mark.parametrize("purpose", ["noise", "data"])
def test_draws_are_those_of_the_library_bit_for_bit(lib, purpose):
    steps, count = [0, 1, 2, 3, 999, 1_000_000], 40_003
    given = {"seed": str(SEED), "name": "w", "purpose": purpose, "steps": steps, "count": count}
    found = lib(BITS, given)
    for step, bits in zip(steps, found, strict=True):
        wanted = draws(SEED, "w", step, 0, count, purpose=purpose)
        assert (np.array(bits, np.int64) == wanted.view(np.int32)).all(), step


class Reader(torch.nn.Module):
    """Keeps the weights that it read."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(101))

    def forward(self):
        self.read = self.w.detach().clone()
        return self.w.square().sum()


def test_perturb_draws_the_same_for_a_parameter_of_this_name(lib):
    model = Reader()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-30)
    perturb(model, optimizer, sigma=1.0, seed=SEED)
    steps = [0, 1, 2, 3]
    given = {"seed": str(SEED), "name": "w", "purpose": "noise", "steps": steps, "count": 101}
    for bits in lib(BITS, given):
        model().backward()
        assert (np.array(bits, np.int64) == model.read.numpy().view(np.int32)).all()
        optimizer.step()


# Walks


def problem_of(land, d, regression):
    if land == "valley":
        problem = WideningValley(d=d, D=4.0, v=0.3)
        return problem, None, problem.start(np.random.default_rng(0))
    problem, data = regression(SEED, d)
    return problem, data, np.ones(d)


def walked(method, problem, data, w):
    """The slow reference; a held draw is that of ⌈k/T⌉, a pair is ± that of ⌈k/2⌉."""

    def xi(k):
        return draws(SEED, "w", k, 0, len(w))

    def paired(k):
        return xi(-(-k // 2)) * np.float32(1 if k % 2 else -1)

    base = reference.gradient_step(lambda at: problem.gradient(at[None], data)[0], ETA)
    if method == "gd":
        return reference.gd(base, w, STEPS)
    draw = {"hold": lambda k: xi(-(-k // HOLD)), "antithetic": paired}.get(method, xi)
    taps = {"pgd": (1.0,), "taps": (1.0, -LAMBDA)}.get(method, (1.0, -1.0))
    return reference.perturbed(base, w, STEPS, draw=draw, sigma=SIGMA, taps=taps)


WALK = """
  const problem = given.land === "valley"
    ? problems_js.wideningValley(given.d) : problems_js.quadraticRegression(given.seed, given.d);
  const noise = methods_js.noiseOf(given.method, given);
  const draw = methods_js.drawing(given.seed, "w", problem.size);
  const walk = new methods_js.Walk(problem, given.start, noise, given, draw);
  const points = [], seen = [];
  for (let n = 0; n <= given.steps; n++) {
    points.push(Array.from(walk.w));
    seen.push([walk.seen.loss, walk.seen.trace, walk.seen.watch]);
    walk.advance();
  }
  return { points, seen };"""


def walk_settings(land, d, method, start):
    return {
        "land": land, "d": d, "method": method, "seed": str(SEED), "start": start,
        "eta": ETA, "sigma": SIGMA, "lambda": LAMBDA, "hold": HOLD, "steps": STEPS,
    }  # fmt: skip


@pytest.mark.parametrize("d", [7, 100])
@pytest.mark.parametrize("land", ["valley", "regression"])
@pytest.mark.parametrize("method", METHODS)
def test_a_thousand_steps_are_those_of_the_reference(lib, regression, method, land, d):
    problem, data, start = problem_of(land, d, regression)
    found = lib(WALK, walk_settings(land, d, method, start.tolist()))
    W = np.array([*walked(method, problem, data, start)])
    assert W.shape == (STEPS + 1, len(start))
    np.testing.assert_allclose(found["points"], W, rtol=1e-12, atol=1e-12)
    watched = problem.watch(W) if land == "valley" else expected_test_loss(W)
    wanted = np.stack([problem.loss(W, data), problem.trace(W, data), watched], axis=1)
    np.testing.assert_allclose(found["seen"], wanted, rtol=1e-11, atol=1e-13)


def expected_test_loss(W):
    """Over new standard Gaussian inputs: ‖w⊙w − w*⊙w*‖²/4."""
    d = W.shape[1]
    return ((W**2 - (np.arange(d) < math.ceil(d / 10))) ** 2).sum(axis=1) / 4


def test_the_test_loss_is_that_of_many_new_inputs():
    rng, d = np.random.default_rng(0), 20
    target, w = (np.arange(d) < 2).astype(np.float64), rng.uniform(0, 1, d)
    X = rng.standard_normal((200_000, d))
    problem = QuadraticRegression(d=d, n=8, nonzero=2)
    many = problem.test_loss(w[None], Data(X, X @ target, X, X @ target))[0]
    assert expected_test_loss(w[None])[0] == pytest.approx(many, rel=0.02)


@pytest.mark.parametrize("method", ["pgd", "anti"])
def test_the_valley_walks_as_in_a_sweep(lib, method):
    run = make_run(
        "widening_valley", {"d": 100, "D": 4.0, "v": 0.3}, method, lr=ETA, sigma=SIGMA,
        law="gaussian", steps=STEPS, seed=SEED, measure=(0, STEPS), relax=False,
    )  # fmt: skip
    stepper = NumpyStepper(Block((run,) + (None,) * 7))
    start = stepper.weights()[0].tolist()
    stepper.advance(STEPS)
    found = lib(WALK, walk_settings("valley", 100, method, start))
    np.testing.assert_allclose(found["points"][-1], stepper.weights()[0], rtol=1e-12, atol=1e-12)


def test_what_is_off_the_numbers_has_diverged(lib):
    code = WALK.replace("return { points, seen };", "return [walk.diverged, walk.step];")
    steep = walk_settings("valley", 5, "gd", [3.0] * 6) | {"eta": 1.0}
    diverged, step = lib(code, steep)
    assert diverged == step < 20
    assert lib(code, steep | {"eta": 0.01})[0] is None


# The plane


@pytest.mark.parametrize("d", [2, 10, 100])
def test_the_cut_goes_through_both_minima_and_the_start(lib, regression, d):
    code = """
      const problem = problems_js.quadraticRegression(given.seed, given.d);
      const place = (point) => Array.from(problem.place(point));
      return {
        start: problem.start, marks: problem.marks, at: given.points.map(place),
        heights: given.points.map(([a, b]) => problem.height(a, b)),
        back: given.points.map((point) => problem.position(problem.place(point))),
        curved: given.points.map((point) =>
          problem.curvature(problem.place(point), new Float64Array(problem.data.n).fill(1), 3000)),
        ones: place(problem.start), minimum: place([0, 0]),
        target: place(problem.marks[1].slice(1)),
      };"""
    points = [[0.0, 0.0], [1.0, 0.5], [-2.0, 3.0], [5.0, -1.5]]
    found = lib(code, {"seed": str(SEED), "d": d, "points": points})
    problem, data = regression(SEED, d)
    np.testing.assert_allclose(found["ones"], np.ones(d), atol=1e-12)
    np.testing.assert_allclose(found["target"], np.arange(d) < math.ceil(d / 10), atol=1e-12)
    np.testing.assert_allclose(found["back"], points, atol=1e-12)
    W = np.array(found["at"])
    np.testing.assert_allclose(found["heights"], problem.loss(W, data), rtol=1e-9, atol=1e-12)
    for w, h in zip(W, found["curved"], strict=True):
        scaled = data.X * w
        wanted = np.linalg.eigvalsh(2 * scaled @ scaled.T / len(scaled))[-1]
        assert h == pytest.approx(wanted, rel=1e-3)
    minimum = np.array(found["minimum"])
    assert np.linalg.norm(problem.gradient(minimum[None], data)) < 1e-6
    *_, gd = reference.gd(
        reference.gradient_step(lambda w: problem.gradient(w[None], data)[0], 0.01),
        np.ones(d),
        20_000,
    )
    np.testing.assert_allclose(minimum, gd, atol=0.05)
