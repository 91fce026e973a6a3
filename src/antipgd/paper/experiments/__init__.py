"""One file per figure family: what to run, what is claimed of it, how it looks.

An experiment is a module with a docstring that is its claim, the number `SEEDS` fixed beforehand,
and three functions: `runs(seeds)`, `claims(results)`, `plot(results)`. It holds numbers, no
mechanism. Those on networks come at several scales, which fix their seeds: `runs(seeds, scale)`.
"""

import importlib
from collections.abc import Sequence
from types import ModuleType

from antipgd.paper.experiments.scales import Scale, scale_named
from antipgd.paper.problems import nearest
from antipgd.paper.record import Spec
from antipgd.paper.training import Training

EXPERIMENTS = (
    "anticorrelation",
    "smoothing",
    "two_minima",
    "regression",
    "regression_grid",
    "regression_sparsity",
    "sensing",
    "sensing_grid",
    "anti_sgd",
    "beats_sgd",
    "always_best",
    "trace_predicts_test",
    "label_noise",
    "clock",
    "find_sigma",
    "valley_paths",
    "valley_exit",
    "pgd_diverges",
    "valley_v_only",
    "one_hidden_unit",
    "cifar",
    "recover",
    "anti_sgd_network",
    "implicit_bias",
    "cond_variance",
    "implicit_reg",
    "pac_bayes",
    "pac_bayes_digits",
    "moments",
    "valley_theory",
)


NETWORKS = ("cifar", "recover", "anti_sgd_network")
SHOWN_SCALE = "small"  # the one on the page, all of whose records ship with the package


def load(name: str) -> ModuleType:
    """The module of an experiment."""
    if name not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {name!r}; {nearest(name, list(EXPERIMENTS))}")
    return importlib.import_module(f"antipgd.paper.experiments.{name}")


def title_of(name: str) -> str:
    """The first line of an experiment's docstring."""
    return str(load(name).__doc__).strip().splitlines()[0]


def about(name: str) -> str:
    """The rest of an experiment's docstring."""
    return "\n".join(str(load(name).__doc__).strip().splitlines()[1:]).strip()


def choose(names: Sequence[str] | None) -> list[str]:
    """The experiments named, in the page's order; all of them by default."""
    wanted = list(EXPERIMENTS) if names is None else list(names)
    for name in wanted:
        load(name)
    return [name for name in EXPERIMENTS if name in wanted]


def runs_of(name: str, seeds: int | None = None, scale: Scale | None = None) -> list[Spec]:
    """The runs of an experiment; `scale` is that of experiments on networks."""
    module = load(name)
    if name in NETWORKS:
        return [*module.runs(seeds, scale or scale_named(SHOWN_SCALE))]
    return [*module.runs(module.SEEDS if seeds is None else seeds)]


def network_runs(scale: Scale) -> list[Training]:
    """All trainings of a scale, as its experiments ask for them."""
    found = [run for name in NETWORKS for run in runs_of(name, scale=scale)]
    return [run for run in found if isinstance(run, Training)]
