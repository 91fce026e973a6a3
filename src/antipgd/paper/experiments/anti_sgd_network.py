"""Anti-SGD on the network, at a batch and at eight times that

SGD with and without anticorrelated noise; σ as in `cifar`, tuned at the smaller batch. Judged at
the end, when the noise has been taken out, with BatchNorm's statistics estimated anew. Traces are
final ones, as in the paper: they also differ because the training losses do.
"""

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, above, mostly
from antipgd.paper.networks.arms import arm, gain, panels, values
from antipgd.paper.networks.scales import Scale, scale_named
from antipgd.paper.networks.spec import Training
from antipgd.paper.results import Results

SCALED = True  # a scale says how many seeds
ARMS = ("sgd", "antisgd", "sgd_middle", "antisgd_middle")


def runs(seeds: int | None = None, scale: Scale | None = None) -> list[Training]:
    size = scale or scale_named("small")
    count = size.seeds if seeds is None else seeds
    return [size.training(name, seed) for name in ARMS for seed in range(count)]


def claims(results: Results) -> list[Claim]:
    sgd, anti = arm(results, "sgd"), arm(results, "antisgd")
    middle, anti_middle = arm(results, "sgd", "middle"), arm(results, "antisgd", "middle")
    small, large = sgd[0].run.batch, middle[0].run.batch
    gains = gain(anti, sgd), gain(anti_middle, middle)
    four = [sgd, anti, middle, anti_middle]
    accuracy = np.array([values(records, "test_accuracy") for records in four])
    trace = np.array([values(records, "trace") for records in four])
    best_first = np.argsort(-accuracy, axis=0), np.argsort(trace, axis=0)
    same = best_first[0] == best_first[1]
    seeds = "seeds; final traces, at unequal training losses"
    reference = "fig:anti-sgd"
    return [
        above(f"anti_sgd_network.gain_{small}", f"the noise helps SGD with batch {small}",
              reference, "test accuracy at the end; points", gains[0], 0),
        above(f"anti_sgd_network.gain_{large}", f"the noise helps SGD with batch {large}",
              reference, "test accuracy at the end; points", gains[1], 0),
        above("anti_sgd_network.larger", f"it helps more at batch {large} than at {small}",
              reference, "difference of the gains; points", gains[1] - gains[0], 0),
        above("anti_sgd_network.moderate", f"Anti-SGD is best at the moderate batch {large}",
              reference, f"test accuracy at the end against batch {small}; points",
              gain(anti_middle, anti), 0),
        mostly("anti_sgd_network.lowest", "the highest accuracy has the lowest trace",
               reference, f"of the four; {seeds}", same[0]),
        mostly("anti_sgd_network.order", "the traces are in the order of the accuracies",
               reference, f"all four; {seeds}", same.all(axis=0)),
    ]  # fmt: skip


def plot(results: Results) -> figures.Figure:
    arms = [
        (f"{figures.NAMES[method]}, batch {records[0].run.batch}", records)
        for method in ("sgd", "antisgd")
        for records in (arm(results, method), arm(results, method, "middle"))
    ]
    return figures.draw(panels(arms), columns=3)
