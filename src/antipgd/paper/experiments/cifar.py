"""A network on images: noise from the start, taken out late

GD, SGD, PGD, Anti-PGD and Anti-SGD with η = 0.05 and momentum 0.9; GD, PGD and Anti-PGD with a
batch of a seventh of the images. The noise acts on all weights and is taken out of them before the
last epochs. σ of each method is the best of a grid on images held out of the
training set, with seeds that are not used here. Judged at the end, and at z where the noise ends;
each with BatchNorm's statistics estimated anew. Where a scale uses fewer images than there are,
each seed has images of its own. Traces are of the training loss on a part of them, compared at
equal training losses, because cross-entropy's Hessian shrinks with its loss.
"""

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import UNDECIDED, Claim, above, smaller
from antipgd.paper.networks.arms import (
    BRACKET,
    arm,
    gain,
    matched_traces,
    noisy_end,
    panels,
    value,
    values,
)
from antipgd.paper.networks.scales import TUNED, Scale, scale_named
from antipgd.paper.networks.spec import Training
from antipgd.paper.record import Record
from antipgd.paper.results import Results

SCALED = True  # a scale says how many seeds
METHODS = ("gd", "sgd", "pgd", "anti", "antisgd")
_TRACES = {"trace": "trace", "scaled_trace": "scale-normalised trace"}


def runs(seeds: int | None = None, scale: Scale | None = None) -> list[Training]:
    size = scale or scale_named("small")
    count = size.seeds if seeds is None else seeds
    main = [size.training(name, seed) for name in METHODS for seed in range(count)]
    return main + size.tuning()


def claims(results: Results) -> list[Claim]:
    by = {method: arm(results, method) for method in METHODS}
    end = f"test accuracy at the end, epoch {by['gd'][0].run.epochs}; points"
    noisy = noisy_end(by["anti"][0])
    on = f"test accuracy at z, epoch {noisy}, noise still on, against the other at its end; points"
    best = {method: _held_out(results, method) for method in ("pgd", "anti")}
    tuned = all(max(best[m], key=lambda s: best[m][s]) == by[m][0].run.sigma for m in best)
    untuned = "" if tuned else "; with σ of another scale, not tuned at this one"
    found = [
        above("cifar.anti_over_gd", "Anti-PGD ends with a higher test accuracy than GD",
              "fig:front_experiments (3rd)", end, gain(by["anti"], by["gd"]), 0),
        above("cifar.anti_over_pgd", "Anti-PGD ends with a higher test accuracy than PGD",
              "fig:front_experiments (3rd)", end, gain(by["anti"], by["pgd"]), 0),
        above("cifar.beats_sgd", "Anti-PGD ends with a higher test accuracy than SGD",
              "caption of fig:front_experiments", end, gain(by["anti"], by["sgd"]), 0),
        above("cifar.beats_sgd_noisy", "before the noise is taken out, Anti-PGD is above SGD's end",
              "caption of fig:front_experiments", on, gain(by["anti"], by["sgd"], noisy), 0),
        above("cifar.pgd_tuned", "PGD with the best σ of its grid stays below Anti-PGD's best",
              "§sec:exp", end + untuned, gain(by["anti"], by["pgd"]), 0),
        above("cifar.pgd_tuned_noisy", "also before the noise is taken out (PGD at w)",
              "§sec:exp", f"test accuracy at epoch {noisy}; points{untuned}",
              100 * (values(by["anti"], "test_accuracy", noisy)
                     - values(by["pgd"], "test_accuracy", noisy)), 0),
    ]  # fmt: skip
    return found + [
        _flatter(by["anti"], by[other], measure) for other in ("gd", "pgd") for measure in _TRACES
    ]


def _flatter(anti: list[Record], other: list[Record], measure: str) -> Claim:
    """Judged on the seeds in which both were measured around the same loss; undecided on one."""
    method, words = other[0].run.method, _TRACES[measure]
    ours, theirs = matched_traces(anti, other, measure)
    named = (
        f"cifar.{measure}_{method}",
        f"at equal training loss Anti-PGD has a smaller {words} than {figures.NAMES[method]}",
        "fig:front_experiments (3rd)",
    )
    tested = (
        f"{words} at the larger of the two final training losses, on the {len(ours)} of "
        f"{len(anti)} seeds measured on both sides of it, at losses within a factor of {BRACKET:g}"
    )
    if len(ours) < 2:
        nothing = float("nan")
        return Claim(*named, tested, UNDECIDED, nothing, nothing, nothing, len(ours))
    return smaller(*named, tested, ours, theirs)


def _held_out(results: Results, method: str) -> dict[float, float]:
    """The mean accuracy on held-out images by σ."""
    records = results.select(method=method, validation=True)
    sigmas = sorted({record.run.sigma for record in records})
    return {
        sigma: float(np.mean([value(r, "test_accuracy") for r in records if r.run.sigma == sigma]))
        for sigma in sigmas
    }


def _tuning_panels(results: Results) -> list[figures.Panel]:
    """Accuracy on the held-out images against σ; none if nothing was tuned."""
    lines, tuned = [], {record.run.method for record in results.records if record.run.validation}
    for method in [method for method in TUNED if method in tuned]:
        means = _held_out(results, method)
        lines.append(figures.Series([*means], [*means.values()], figures.NAMES[method],
                                    figures.COLOURS[method], marker="o"))  # fmt: skip
    panel = figures.Panel("tuning: held-out accuracy", lines, "σ", xscale="log", yscale="linear")
    return [panel] if lines else []


def plot(results: Results) -> figures.Figure:
    arms = [(figures.NAMES[method], arm(results, method)) for method in METHODS]
    return figures.draw([*panels(arms), *_tuning_panels(results)], columns=3)
