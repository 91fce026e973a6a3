"""Anti-SGD on the network, at a batch and at eight times that

SGD with and without anticorrelated noise, at batches of half a percent and four percent of the
images (the paper's 128 and 1,024 are 0.26 and 2 percent); learning rate and σ as in `cifar`, tuned
at the smaller batch. Judged at the end, when the noise has been taken out, where all are at a
minimum. "Highest test, lowest trace": Spearman's correlation of accuracy and scaled trace at
training loss 0.01 over the four arms, seed by seed, is negative in the mean.
"""

import numpy as np
from scipy.stats import spearmanr

from antipgd.paper import figures
from antipgd.paper.claims import Claim, compare_difference
from antipgd.paper.networks.arms import Values, arm, panels, values
from antipgd.paper.networks.minima import better, judged, unmeasured
from antipgd.paper.networks.scales import Scale, scale_named
from antipgd.paper.networks.spec import Training, trace_at
from antipgd.paper.record import Record
from antipgd.paper.results import Results

SHOWS = (
    "Losses, accuracies and traces against the epoch at two batches. Lines are means over {seeds} "
    "seeds, bands one standard deviation."
)
SCALED = True  # a scale says how many seeds
ARMS = ("sgd", "antisgd", "sgd_middle", "antisgd_middle")
REFERENCE = "fig:anti-sgd"


def runs(seeds: int | None = None, scale: Scale | None = None) -> list[Training]:
    size = scale or scale_named("small")
    count = size.seeds["batch"] if seeds is None else seeds
    return [size.training(name, seed) for name in ARMS for seed in range(count)]


def _correlations(four: list[list[Record]]) -> Values:
    """Of accuracy and trace by seed; zero where all arms have the same."""
    accuracy = np.array([values(records, "test_accuracy") for records in four])
    trace = np.array([values(records, trace_at(0.01)) for records in four])
    return np.array([
        spearmanr(a, t).statistic if np.ptp(a) and np.ptp(t) else 0.0
        for a, t in zip(accuracy.T, trace.T, strict=True)
    ])  # fmt: skip


def _trend(four: list[list[Record]]) -> Claim:
    words = ("anti_sgd_network.trend", "highest test, lowest trace", REFERENCE,
             "minus Spearman's correlation of accuracy and scaled trace at training loss 0.01 over "
             "the four arms")  # fmt: skip
    missed = unmeasured(*words, [(records, None) for records in four])
    if missed is not None:
        return missed
    return compare_difference(*words, -_correlations(four), margin=0.1)


def claims(results: Results) -> list[Claim]:
    sgd, anti = arm(results, "sgd"), arm(results, "antisgd")
    middle, anti_middle = arm(results, "sgd", "middle"), arm(results, "antisgd", "middle")
    small, large = sgd[0].run.batch, middle[0].run.batch
    accuracy = {id(one): 100 * values(one, "test_accuracy") for one in (sgd, anti, middle,
                                                                        anti_middle)}  # fmt: skip
    more = accuracy[id(anti_middle)] - accuracy[id(middle)] - accuracy[id(anti)] + accuracy[id(sgd)]
    four = [sgd, anti, middle, anti_middle]
    everywhere = [(records, None) for records in four]
    return [
        better(f"anti_sgd_network.gain_{small}", f"the noise helps SGD with batch {small}",
               REFERENCE, "at the end", (anti, None), (sgd, None)),
        better(f"anti_sgd_network.gain_{large}", f"the noise helps SGD with batch {large}",
               REFERENCE, "at the end", (anti_middle, None), (middle, None)),
        judged("anti_sgd_network.larger", f"it helps more at batch {large} than at {small}",
               REFERENCE, "difference of the gains in test accuracy; points", more, everywhere),
        better("anti_sgd_network.moderate", f"Anti-SGD is best at the moderate batch {large}",
               REFERENCE, f"at the end, against batch {small}", (anti_middle, None), (anti, None)),
        _trend(four),
    ]  # fmt: skip


def plot(results: Results) -> figures.Figure:
    arms = [
        (f"{figures.NAMES[method]}, batch {records[0].run.batch}", records)
        for method in ("sgd", "antisgd")
        for records in (arm(results, method), arm(results, method, "middle"))
    ]
    return figures.draw(panels(arms), columns=3)
