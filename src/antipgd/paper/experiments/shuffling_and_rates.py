"""Formulas of the literature at work: a rate for Anti-PGD, two for shuffling, one for label noise.

(Ours.) Koloskova et al. (arXiv 2302.01463) bound what gradient descent with correlated noise comes
down to. With noise s on the gradients, so that σ = ηs, z ← z − η∇L(z + ξ) and an L-Lipschitz
gradient, half of ‖∇L(z) − ∇L(z+ξ)‖² ≤ L²‖ξ‖² remains: Anti-PGD's floor goes as η²s², PGD's as ηs².
(The rate is our paraphrase; the paper's abstract names the case.) In the valley the floor of the
loss is to have these powers of η, to 0.1.

Over an epoch of M batches, to second order in η, the mean over all orders of shuffling differs from
the gradient flow by a step on (η/4M)Σ‖g_i‖² (Smith et al., arXiv 2101.12176) and from batches drawn
with replacement by one on (η/4M)Σ‖g_i−g‖², the trace of the noise's covariance (Beneventano, arXiv
2312.16143, in the limit of small ηMh). Both exactly, over all 24 orders and 256 draws of four
examples, at random points: the difference projected on the step is to be 1, to 10 %, at ηMh = 0.05;
at ηMh = 1 it is to have the same sign. Shuffling is said to escape saddles faster, too: regression
from close to w = 0, steps until the training loss has halved, level within 10 %.

Label noise at a large learning rate is to penalise the largest eigenvalue more than a small rate
with the same ηs² (Damian et al., arXiv 2106.06530): its share of the trace, over that where noise
began, at the same Σηs²·η.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise, permutations, product

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import HOLDS, LEVEL, Claim, above, compare_ratio, near, smaller
from antipgd.paper.results import Results, Values, log_ratio
from antipgd.paper.settings import REGRESSION
from antipgd.paper.simulation.problems import make_problem
from antipgd.paper.simulation.problems.problem import Array
from antipgd.paper.simulation.spec import Run, make_run

SHOWS = (
    "Left, the floor of the training loss against η at equal noise on the gradients, with lines of "
    "slope 1 and 2; middle, an epoch of shuffling over the formulas, mean of eight seeds; right, "
    "steps to leave a saddle, shuffled against drawn with replacement. {seeds} seeds."
)
SEEDS = 32
FRESH = 8000  # settings were chosen on the seeds below
RATES, GRADIENT_NOISE, VALLEY_STEPS, AVERAGED = (0.0125, 0.05, 0.2), 0.005, 40_000, 30_000
VALLEY = "widening_valley"
POWERS, POWER_TOLERANCE = {"anti": 2.0, "pgd": 1.0}, 0.1
AS_WORD = {2.0: "η²", 1.0: "η"}
SMALL_EPOCH = {"d": 12, "n": 4, "nonzero": 4, "test": 1}
SIZES, NEAR = (0.05, 1.0), 0.1  # ηMh of the largest h
FLOW_STEPS = 64
NEAR_SADDLE, SADDLE_RATE, SADDLE_STEPS, EPOCH = 0.01, 0.01, 4_000, 40
ORDERS = ("shuffled", "replacement")
LABEL_RATES, LABEL_NOISE = (0.1, 0.025), (0.5, 1.0)  # of equal ηs²
LABEL_DESCENT, LABEL_TIME = 200.0, 600.0  # Ση
MARGIN = 0.1
KOLOSKOVA, SMITH, BENEVENTANO, DAMIAN = (
    "arXiv 2302.01463", "arXiv 2101.12176", "arXiv 2312.16143", "arXiv 2106.06530",
)  # fmt: skip


def _valley(method: str, lr: float, seed: int) -> Run:
    return make_run(VALLEY, {"d": 4, "D": 1.0}, method, lr=lr, sigma=lr * GRADIENT_NOISE,
                    steps=VALLEY_STEPS, average=AVERAGED, measure=(0,), seed=seed,
                    relax=False)  # fmt: skip


def _saddle(order: str, seed: int) -> Run:
    return make_run(REGRESSION, {"init": NEAR_SADDLE}, "sgd", lr=SADDLE_RATE, batch=1, order=order,
                    steps=SADDLE_STEPS, measure=tuple(range(0, SADDLE_STEPS + 1, EPOCH)), seed=seed,
                    relax=False)  # fmt: skip


def _label(lr: float, noise: float, seed: int) -> list[Run]:
    before, steps = round(LABEL_DESCENT / lr), round((LABEL_DESCENT + LABEL_TIME) / lr)
    return [
        make_run(REGRESSION, {}, "label", lr=lr, sigma=noise, start=before, steps=steps,
                 measure=(0,), seed=seed, relax=False),
        make_run(REGRESSION, {}, "gd", lr=lr, steps=before, measure=(0,), seed=seed, relax=False),
    ]  # fmt: skip


def runs(seeds: int) -> list[Run]:
    some = range(FRESH, FRESH + seeds)
    return [
        *(_valley(method, lr, seed) for method in POWERS for lr in RATES for seed in some),
        *(_saddle(order, seed) for order in ORDERS for seed in some),
        *(run for one in zip(LABEL_RATES, LABEL_NOISE, strict=True) for seed in some
          for run in _label(*one, seed)),
    ]  # fmt: skip


def _floor(results: Results, method: str, lr: float) -> Values:
    return results.final("train_loss", "average", problem=VALLEY, method=method, lr=lr)


def _rates(results: Results) -> list[Claim]:
    found = []
    for method, power in POWERS.items():
        for low, high in pairwise(RATES):
            rise = log_ratio(_floor(results, method, high), _floor(results, method, low))
            found.append(
                near(f"shuffling_and_rates.floor_{method}_{high:g}",
                     f"(ours) the floor of {figures.NAMES[method]} goes as {AS_WORD[power]} at "
                     "equal noise on the gradients", KOLOSKOVA,
                     f"power of η, mean loss of {AVERAGED:,} steps, η = {low:g} and {high:g}",
                     rise / np.log(high / low), power, POWER_TOLERANCE)
            )  # fmt: skip
    return found


class Epoch:
    """Four examples of a regression, a random point, and what an epoch from there does on average;
    `size` is ηMh of the largest curvature h."""

    def __init__(self, seed: int, size: float) -> None:
        rng = np.random.Generator(np.random.Philox(key=seed))
        self.problem = make_problem(REGRESSION, SMALL_EPOCH)
        self.data = self.problem.data(rng)
        self.w = 1 + 0.3 * rng.standard_normal(self.problem.start(rng).shape)
        self.M = self.problem.examples
        largest = np.linalg.eigvalsh(self.problem.hessian(self.w, self.data))[-1]
        self.lr = size / (self.M * float(largest))

    def _gradient(self, w: Array, example: int | None = None) -> Array:
        rows = None if example is None else np.array([example])
        return self.problem.gradient(w[None], self.data, rows)[0]

    def _after(self, order: Sequence[int]) -> Array:
        w = self.w
        for example in order:
            w = w - self.lr * self._gradient(w, example)
        return w

    def shuffled(self) -> Array:
        """Over all orders."""
        return np.mean([self._after(one) for one in permutations(range(self.M))], axis=0)

    def drawn(self) -> Array:
        """Over all draws with replacement."""
        return np.mean([self._after(one) for one in product(range(self.M), repeat=self.M)], axis=0)

    def flow(self) -> Array:
        """The gradient flow for the time Mη, by Runge and Kutta's steps."""
        w, dt = self.w, self.M * self.lr / FLOW_STEPS
        for _ in range(FLOW_STEPS):
            a = -self._gradient(w)
            b = -self._gradient(w + dt / 2 * a)
            c = -self._gradient(w + dt / 2 * b)
            d = -self._gradient(w + dt * c)
            w = w + dt / 6 * (a + 2 * b + 2 * c + d)
        return w

    def norms(self, w: Array) -> float:
        """(η/4M)Σ‖g_i‖², Smith's regulariser."""
        squares = [(self._gradient(w, i) ** 2).sum() for i in range(self.M)]
        return float(self.lr / (4 * self.M) * np.sum(squares))

    def spread(self, w: Array) -> float:
        """(η/4M)Σ‖g_i − g‖², Beneventano's for small ηMh."""
        mean = self._gradient(w)
        squares = [((self._gradient(w, i) - mean) ** 2).sum() for i in range(self.M)]
        return float(self.lr / (4 * self.M) * np.sum(squares))

    def step(self, regulariser: Callable[[Array], float]) -> Array:
        """−Mη times its gradient, by central differences."""
        tiny = 1e-5 * np.eye(len(self.w))
        slopes = [(regulariser(self.w + e) - regulariser(self.w - e)) / 2e-5 for e in tiny]
        return -self.M * self.lr * np.array(slopes)


def shares(seed: int, size: float) -> tuple[float, float]:
    """What shuffling does beside the flow and beside replacement, in units of the formulas' steps:
    the projection of the one on the other."""
    epoch = Epoch(seed, size)
    end, found = epoch.shuffled(), []
    for other, regulariser in ((epoch.flow(), epoch.norms), (epoch.drawn(), epoch.spread)):
        step = epoch.step(regulariser)
        found.append(float((end - other) @ step / (step @ step)))
    return found[0], found[1]


def _epochs(seeds: Sequence[int]) -> list[Claim]:
    told = {
        "flow": (SMITH, "the gradient flow", "(η/4M)Σ‖g_i‖²"),
        "drawn": (BENEVENTANO, "batches drawn with replacement", "(η/4M)Σ‖g_i−g‖²"),
    }
    tables = {size: np.array([shares(seed, size) for seed in seeds]).T for size in SIZES}
    found = []
    for k, (name, (source, beside, formula)) in enumerate(told.items()):
        says = f"an epoch of shuffling is that of {beside} and a step on {formula}"
        tested = "projection on the step, all orders of four examples"
        found += [
            near(f"shuffling_and_rates.epoch_{name}", f"(ours) {says}", source,
                 f"{tested}, ηMh = {SIZES[0]:g}", tables[SIZES[0]][k], 1.0, NEAR),
            above(f"shuffling_and_rates.large_{name}", f"(ours) {says}, at least in its sense, "
                  "where ηMh is 1", source, f"{tested}, ηMh = {SIZES[1]:g}",
                  tables[SIZES[1]][k], 0.0),
        ]  # fmt: skip
    return found


def _escapes(results: Results, order: str) -> Values:
    """Steps until the training loss has halved, between two measurements by a straight line."""
    found = []
    for record in results.select(problem=REGRESSION, method="sgd", order=order):
        steps, losses = record.column("train_loss", "w")
        below = np.flatnonzero(losses < losses[0] / 2)
        if not len(below):
            found.append(np.inf)
            continue
        i = below[0]
        found.append(float(np.interp(-losses[0] / 2, -losses[i - 1 : i + 1], steps[i - 1 : i + 1])))
    return np.array(found)


def _share_of_largest(results: Results, lr: float) -> Values:
    """λ_max/tr at the end over that where the noise began, by seed."""
    values = []
    for method in ("label", "gd"):
        shares = []
        for record in results.select(problem=REGRESSION, method=method, lr=lr):
            problem = record.run.make_problem()
            spectrum = np.linalg.eigvalsh(
                problem.hessian(np.array(record.weights["w"]), record.run.make_data(problem))
            )
            shares.append(spectrum[-1] / spectrum.sum())
        values.append(np.array(shares))
    return values[0] / values[1]


def claims(results: Results) -> list[Claim]:
    seeds = sorted({record.run.seed for record in results.records})
    shuffled, drawn = (_escapes(results, order) for order in ORDERS)
    large, small = (_share_of_largest(results, lr) for lr in LABEL_RATES)
    return [
        *_rates(results),
        *_epochs(seeds),
        compare_ratio("shuffling_and_rates.saddle", "(ours) from close to a saddle shuffled "
                      "batches take fewer steps than those drawn with replacement", BENEVENTANO,
                      "steps until the training loss has halved", shuffled, drawn, MARGIN),
        smaller("shuffling_and_rates.label", "(ours) with the same ηs² and time, label noise at "
                f"η = {LABEL_RATES[0]:g} lowers the largest eigenvalue's share of the trace more "
                f"than at η = {LABEL_RATES[1]:g}", DAMIAN,
                "λ_max/tr at the end over that where noise began", large, small),
    ]  # fmt: skip


def words(claims: Sequence[Claim]) -> str:
    """The answer, from what was judged."""
    if not claims:
        return ""
    told = {claim.id.partition(".")[2]: claim for claim in claims}

    def count(name: str) -> str:
        some = [claim for key, claim in told.items() if key.startswith(name)]
        return f"{sum(claim.verdict == HOLDS for claim in some)} of {len(some)}"

    saddle, label = told["saddle"], told["label"]
    level = ", level" if saddle.verdict == LEVEL else f", {saddle.verdict}"
    return (
        "Do the formulas of others hold here? The floors of Anti-PGD and PGD go as η² and η at "
        f"equal noise on the gradients ({count('floor_')}). An epoch of shuffling is the gradient "
        f"flow and a step on the mini-batches' gradient norms ({told['epoch_flow'].value:.2f} of "
        "it), and is replacement and a step on the trace of the noise's covariance "
        f"({told['epoch_drawn'].value:.2f}); at ηMh = 1 there are {told['large_flow'].value:.2f} "
        f"and {told['large_drawn'].value:.2f} left of them. Away from a saddle shuffling takes "
        f"{saddle.value:.2f} × the steps [{saddle.low:.2f}, {saddle.high:.2f}]{level}. Label noise "
        "at four times the learning rate ends with "
        f"{label.value:.2f} × the largest eigenvalue's share of the trace [{label.low:.2f}, "
        f"{label.high:.2f}] ({label.verdict})."
    )


def _floor_panel(results: Results) -> figures.Panel:
    series, at = [], np.array(RATES)
    for method, power in POWERS.items():
        floors = [_floor(results, method, lr) for lr in RATES]
        kept = [one[np.isfinite(one)] for one in floors]
        mean = np.array([one.mean() for one in kept])
        error = np.array([2 * one.std() / len(one) ** 0.5 for one in kept])
        colour = figures.COLOURS[method]
        series += [
            figures.Series(at, mean, figures.NAMES[method], colour, "", "o", mean - error,
                           mean + error, bars=True),
            figures.Series(at, mean[0] * (at / at[0]) ** power, AS_WORD[power], colour, "--"),
        ]  # fmt: skip
    return figures.Panel("floor of the loss, σ = ηs", series, "η", "", "log", "log")


def _epoch_panel(seeds: Sequence[int]) -> figures.Panel:
    sizes = np.geomspace(0.02, 1.0, 8)
    tables = np.array([[shares(seed, size) for seed in seeds[:8]] for size in sizes])
    names = ("beside the flow, Smith et al.", "beside replacement, Beneventano")
    series = [
        figures.Series(sizes, tables[:, :, k].mean(axis=1), name, colour, "-", "o")
        for k, (name, colour) in enumerate(zip(names, ("#7a4fa3", "#17968a"), strict=True))
    ]
    return figures.Panel("an epoch of shuffling over the formula", series, "ηMh", "", "log",
                         "linear")  # fmt: skip


def plot(results: Results) -> figures.Figure:
    seeds = sorted({record.run.seed for record in results.records})
    shuffled, drawn = (_escapes(results, order) for order in ORDERS)
    equal = np.array([drawn.min(), drawn.max()])
    saddle = [figures.Series(drawn, shuffled, "a seed each", "#c27c00", "", "o"),
              figures.Series(equal, equal, "equal", figures.THEORY, "--")]  # fmt: skip
    panels = [
        _floor_panel(results),
        _epoch_panel(seeds),
        figures.Panel("steps to leave a saddle, shuffled", saddle, "drawn with replacement", "",
                      "linear", "linear"),
    ]  # fmt: skip
    return figures.draw(panels, columns=3, width=4.2)
