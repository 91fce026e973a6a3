"""A network on handwritten digits: squared loss and cross-entropy

(Ours.) 64-32-32-10 of ReLU without biases and norm, starting at half of He's weights; 128 images of
scikit-learn's digits; 597 others, the same for every seed, are tested on. All arms have momentum
0.9. PGD and Anti-PGD with η = 0.05: a descent, noise, clean steps (1,000, 3,000 and 2,000 with
squared loss, 500, 2,000 and 500 with cross-entropy); GD and SGD of batch 10 take as many. Judged is
the end. A minimum is a squared loss of at most 0.2 % of that of a network that says zero, a
cross-entropy of at most 0.01 with every training image right. σ of PGD and Anti-PGD and the
learning rate of GD and SGD are the best of five values at which three other seeds come to a
minimum, on images held out of the other 1,200, by the loss (squared) or the errors (cross-entropy).
Flatter means, with squared loss, a lower trace and a lower effective sharpness, of JᵀJ/n, which has
the trace of the Hessian and is the Hessian where the residuals are zero; with cross-entropy, a
lower scaled trace at the equal loss 0.01 by temperature. Raw traces of cross-entropy fall with the
loss: they are shown, never judged. Bands: one standard deviation. Changed after a first judged run
(100 images, He's weights, seeds from 100 on): with squared loss units died at the start and some
seeds of every arm missed the minimum. Hence half the weights, longer phases, a third seed to tune
by, tuned anew, other seeds.
"""

from dataclasses import dataclass

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, compare_difference, not_at_minimum
from antipgd.paper.record import Record
from antipgd.paper.results import Results, Values
from antipgd.paper.simulation import tuned
from antipgd.paper.simulation.problems import DigitsNetwork, Setting
from antipgd.paper.simulation.problems.digits_network import Data
from antipgd.paper.simulation.spec import Run, make_run
from antipgd.paper.simulation.temperature import LOSS, scaled_trace
from antipgd.paper.simulation.tuned import HELD_OUT, SHARE, Arm

SHOWS = (
    "For each loss: training loss, test loss and trace against the step, means over {seeds} seeds "
    "with one standard deviation; then errors, test loss and flatness at the end, a cross for "
    "each seed and a line at the mean."
)
JUDGING = 4  # seconds, for the bar
SEEDS = 12
FIRST, TUNING = 200, (0, 1, 2)
PROBLEM, IMAGES, INIT = "digits_network", 128, 0.5
ETA, MOMENTUM, BATCH = 0.05, 0.9, 10
RIVALS = ("gd", "sgd", "pgd")


@dataclass(frozen=True)
class Loss:
    """One of the two losses: steps without noise, with it, without; the arms."""

    words: str
    phases: tuple[int, int, int]
    arms: dict[str, Arm]
    chosen: dict[str, float]  # by the tuning seeds

    @property
    def steps(self) -> int:
        """In all."""
        return sum(self.phases)


LOSSES = {
    "squared": Loss(
        "squared loss",
        (1_000, 3_000, 2_000),
        {
            "gd": Arm("gd", "lr", (0.05, 0.1, 0.2, 0.3, 0.4)),
            "sgd": Arm("sgd", "lr", (0.05, 0.07, 0.1, 0.15, 0.2)),
            "pgd": Arm("pgd", "sigma", (0.0005, 0.001, 0.002, 0.004, 0.008)),
            "anti": Arm("anti", "sigma", (0.01, 0.02, 0.03, 0.04, 0.06)),
        },
        {"gd": 0.2, "sgd": 0.1, "pgd": 0.001, "anti": 0.02},
    ),
    "cross_entropy": Loss(
        "cross-entropy",
        (500, 2_000, 500),
        {
            "gd": Arm("gd", "lr", (0.00625, 0.0125, 0.025, 0.05, 0.1)),
            "sgd": Arm("sgd", "lr", (0.01, 0.025, 0.05, 0.075, 0.1)),
            "pgd": Arm("pgd", "sigma", (0.00025, 0.0005, 0.001, 0.002, 0.004)),
            "anti": Arm("anti", "sigma", (0.08, 0.12, 0.16, 0.2, 0.3)),
        },
        {"gd": 0.0125, "sgd": 0.05, "pgd": 0.0005, "anti": 0.2},
    ),
}


def _run(loss: str, name: str, value: float, seed: int, tuning: bool) -> Run:
    kind = LOSSES[loss]
    arm, (descent, noisy, _) = kind.arms[name], kind.phases
    lr, sigma = arm.settings(value, ETA)
    settings: dict[str, Setting] = {
        "n": IMAGES,
        "init": INIT,
        "loss_name": loss,
        "held_out": HELD_OUT[tuning],
    }
    return make_run(PROBLEM, settings, arm.method, lr=lr, sigma=sigma, steps=kind.steps, seed=seed,
                    measure=() if tuning else tuple(range(0, kind.steps, 250)),
                    relax=False, momentum=MOMENTUM, batch=BATCH if name == "sgd" else None,
                    start=descent, stop=descent + noisy)  # fmt: skip


def tuning_runs() -> list[Run]:
    """Every value of every grid on the tuning seeds."""
    return [
        _run(loss, name, value, seed, True)
        for loss, kind in LOSSES.items()
        for name, arm in kind.arms.items()
        for value in arm.grid
        for seed in TUNING
    ]


def runs(seeds: int) -> list[Run]:
    judged = [
        _run(loss, name, value, seed, False)
        for loss, kind in LOSSES.items()
        for name, value in kind.chosen.items()
        for seed in range(FIRST, FIRST + seeds)
    ]
    return judged + tuning_runs()


def _opened(record: Record) -> tuple[DigitsNetwork, Data, Values]:
    problem = record.run.make_problem()
    assert isinstance(problem, DigitsNetwork)
    return problem, record.run.make_data(problem), np.array(record.weights["w"])


def is_there(record: Record) -> bool:
    """Whether the end of a run is at a minimum."""
    if record.status == "diverged":
        return False
    problem, data, w = _opened(record)
    loss = float(record.column("train_loss", "w")[1][-1])
    if problem.entropy:
        return bool(loss <= LOSS and problem.errors(w[None], data)[0] == 0)
    return loss <= SHARE * problem.loss_of_nothing(data)


def score(record: Record) -> float:
    """What tuning makes small: the loss or the errors on held-out images, at a minimum only."""
    if not is_there(record):
        return np.inf
    problem, data, w = _opened(record)
    if problem.entropy:
        return float(problem.errors(w[None], data, test=True)[0])
    return tuned.held_out_loss(record)


def _flatness(record: Record) -> float:
    """Effective sharpness, or the scaled trace at equal loss, which needs every image right."""
    if record.status == "diverged":
        return np.inf
    problem, data, w = _opened(record)
    if not problem.entropy:
        return tuned.effective_sharpness(problem.gauss_newton_spectrum(w, data), ETA, MOMENTUM)
    right = problem.errors(w[None], data)[0] == 0
    return scaled_trace(problem, w, data) if right else np.inf


def _errors(record: Record) -> float:
    """On the test images, in percent."""
    if record.status == "diverged":
        return 100.0
    problem, data, w = _opened(record)
    return 100 * float(problem.errors(w[None], data, test=True)[0])


class _End:
    """The ends of an arm, by seed; infinite where a run diverged."""

    def __init__(self, records: list[Record]) -> None:
        self.test, self.trace = (Results(records).final(one) for one in ("test_loss", "trace"))
        self.errors = np.array([_errors(record) for record in records])
        self.flatness = np.array([_flatness(record) for record in records])
        self.there = np.array([is_there(record) for record in records])


_kept: dict[tuple[object, ...], _End] = {}


def _end(results: Results, loss: str, name: str) -> _End:
    """Measured once for claims and figure."""
    records = results.select(method=name, loss_name=loss, held_out=HELD_OUT[False])
    key = (loss, *((r.run.name, r.status, r.points[-1]) for r in records))
    if key not in _kept:
        _kept[key] = _End(records)
    return _kept[key]


# By loss: the part of a claim's name, where it is measured, in words.
MEASURES = {
    "squared": (
        ("test", "test", "a lower test loss"),
        ("trace", "trace", "a smaller trace of the Hessian"),
        ("sharpness", "flatness", f"a lower effective sharpness at η = {ETA}, β = {MOMENTUM}"),
    ),
    "cross_entropy": (
        ("test", "test", "a lower test loss"),
        ("scaled", "flatness", f"a lower scaled trace at the equal loss {LOSS} by temperature"),
    ),
}


def _named(loss: str, part: str, words: str, rival: str) -> tuple[str, str, str]:
    return (
        f"digits_networks.{part}_{loss}_{rival}",
        f"(ours) {LOSSES[loss].words}: Anti-PGD ends with {words} than {figures.NAMES[rival]}",
        "§sec:exp",
    )


def _fewer_errors(loss: str, ends: dict[str, _End], rival: str, how: str) -> Claim:
    """Differences in points, level within one."""
    ours, theirs = ends["anti"], ends[rival]
    named = _named(loss, "errors", "fewer errors on 597 other images", rival)
    tested = (
        f"{how}; means {ours.errors.mean():.3g} % for Anti-PGD, {theirs.errors.mean():.3g} % for "
        f"{figures.NAMES[rival]}; points"
    )
    missed = [int((~end.there).sum()) for end in (ours, theirs)]
    differences = theirs.errors - ours.errors
    if any(missed):
        why = f"; {missed[0]} and {missed[1]} of {len(differences)} seeds are not at a minimum"
        return not_at_minimum(*named, tested + why, differences)
    return compare_difference(*named, tested, differences)


def _loss_claims(results: Results, loss: str) -> list[Claim]:
    kind, found = LOSSES[loss], []
    ends = {name: _end(results, loss, name) for name in kind.arms}
    chosen = {
        name: tuned.best(results, arm, score, loss_name=loss) for name, arm in kind.arms.items()
    }
    for rival in RIVALS:
        used = ", ".join(kind.arms[arm].said(kind.chosen[arm]) for arm in ("anti", rival))
        how = f"at the end, step {kind.steps:,}, {used}{tuned.untuned(chosen, kind.chosen)}"
        found.append(_fewer_errors(loss, ends, rival, how))
        for part, attribute, words in MEASURES[loss]:
            ours, theirs = (getattr(ends[arm], attribute) for arm in ("anti", rival))
            there = (ends["anti"].there, ends[rival].there)
            means = tuned.geometric_means(("anti", ours), (rival, theirs))
            found.append(
                tuned.judge_ratio(_named(loss, part, words, rival), f"{how}; {means}", ours, theirs,
                                  there)
            )  # fmt: skip
    return found


def claims(results: Results) -> list[Claim]:
    return [claim for loss in LOSSES for claim in _loss_claims(results, loss)]


def _curves(results: Results, loss: str, measure: str) -> figures.Panel:
    series = [
        figures.method_series(results, measure, name, loss_name=loss, held_out=HELD_OUT[False])
        for name in LOSSES[loss].arms
    ]
    title = f"{LOSSES[loss].words}: {figures.MEASURES[measure]} at w"
    return figures.Panel(title, series, xscale="linear")


def _ends_panel(results: Results, loss: str, attribute: str, title: str) -> figures.Panel:
    """A mark for each seed, and the mean, arm by arm."""
    series, ticks = [], []
    for i, name in enumerate(LOSSES[loss].arms):
        values = getattr(_end(results, loss, name), attribute)
        colour = figures.COLOURS[name]
        spread = i + np.linspace(-0.25, 0.25, len(values))
        series.append(figures.Series(spread, values, "", colour, "", "x"))
        series.append(figures.Series([i - 0.35, i + 0.35], [values.mean()] * 2, "", colour))
        ticks.append((float(i), figures.NAMES[name]))
    scale = "linear" if attribute == "errors" else "log"
    return figures.Panel(title, series, "", "", "linear", scale, ticks=ticks)


def plot(results: Results) -> figures.Figure:
    flat = {
        "squared": "squared loss: effective sharpness at the end",
        "cross_entropy": "cross-entropy: scaled trace at equal loss",
    }
    panels = []
    for loss, kind in LOSSES.items():
        panels += [_curves(results, loss, one) for one in ("train_loss", "test_loss", "trace")]
        title = f"{kind.words}: test errors at the end, %"
        panels += [
            _ends_panel(results, loss, "errors", title),
            _ends_panel(results, loss, "test", f"{kind.words}: test loss at the end"),
            _ends_panel(results, loss, "flatness", flat[loss]),
        ]
    return figures.draw(panels, columns=3, width=3.8)
