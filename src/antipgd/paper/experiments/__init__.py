"""One file per figure family: what to run, what is claimed of it, how it looks.

An experiment is a module with a docstring that is its claim, a caption that says what its figure
`SHOWS` ({seeds} is the number that was run), the number `SEEDS` fixed beforehand, and three
functions: `runs(seeds)`, `claims(results)`, `plot(results)`. It holds numbers, no
mechanism. Those on networks are `SCALED`: they come at several scales, which fix their seeds, and
have `runs(seeds, scale)`; `more(records, scale)` says which trainings follow from those, where it
is not the usual (longer ones for seeds that did not end at a minimum). `words(claims)`, if there is
one, says in a paragraph what came out, `summary(claims)` in a sentence, which verdicts.md has. None
imports another; `runs_of` gives the runs of any.
"""

import ast
import importlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from types import ModuleType

from antipgd.checks import one_of
from antipgd.paper.networks.scales import Scale, scale_named
from antipgd.paper.networks.spec import Training
from antipgd.paper.record import Record, Spec

CHAPTERS = {
    "The noise": (
        "anticorrelation", "smoothing",
    ),
    "Regression and matrix sensing": (
        "two_minima", "regression", "regression_grid", "regression_sparsity", "sensing",
        "sensing_grid", "sensing_tuned", "anti_sgd", "beats_sgd", "always_best",
        "trace_predicts_test", "neighbourhood", "label_noise",
    ),
    "How fast: the law at real learning rates": (
        "clock", "finite_rate_valley", "finite_rate_regression", "finite_rate_sensing",
        "adam_clock", "find_sigma",
    ),
    "The widening valley": (
        "valley_paths", "valley_exit", "pgd_diverges", "valley_v_only",
    ),
    "Networks": (
        "one_hidden_unit", "student_teacher", "digits_networks", "cifar", "recover",
        "anti_sgd_network", "no_norm", "when_it_helps", "is_it_flatness",
    ),
    "The theory, formula by formula": (
        "implicit_bias", "cond_variance", "implicit_reg", "pac_bayes", "pac_bayes_digits",
        "variations", "moments", "valley_theory",
    ),
    "The questions of the paper's conclusion": (
        "plateau", "how_anticorrelated", "which_law", "when_to_begin", "after_others",
        "saddle", "batches", "layerwise",
    ),
}  # fmt: skip
EXPERIMENTS = tuple(name for names in CHAPTERS.values() for name in names)
# Named as one, and run only when asked for.
GROUPS = {"questions": CHAPTERS["The questions of the paper's conclusion"]}
OF_PAPER = tuple(name for name in EXPERIMENTS if name not in GROUPS["questions"])

SHOWN_SCALE = "small"  # the one on the page, all of whose records ship with the package


def load(name: str) -> ModuleType:
    """The module of an experiment."""
    one_of("experiment", name, EXPERIMENTS)
    return importlib.import_module(f"antipgd.paper.experiments.{name}")


def is_scaled(name: str) -> bool:
    """Whether an experiment comes at several scales: those that train networks do."""
    return getattr(load(name), "SCALED", False)


def scaled_experiments() -> list[str]:
    """Those that train networks, in the page's order."""
    return [name for name in EXPERIMENTS if is_scaled(name)]


@cache
def _lines(name: str) -> list[str]:
    """An experiment's docstring, read without importing it and all that it needs."""
    source = files(__package__).joinpath(f"{name}.py").read_text("utf-8")
    return str(ast.get_docstring(ast.parse(source))).strip().splitlines()


def chapter_of(name: str) -> str:
    """Where an experiment stands on the page."""
    return next(title for title, names in CHAPTERS.items() if name in names)


def title_of(name: str) -> str:
    """The first line of an experiment's docstring."""
    return _lines(name)[0]


def about(name: str) -> str:
    """The rest of an experiment's docstring."""
    return "\n".join(_lines(name)[1:]).strip()


def choose(names: Sequence[str] | None) -> list[str]:
    """The experiments named, alone or as a group, in the page's order; by default the paper's."""
    wanted = list(OF_PAPER) if names is None else list(names)
    for name in wanted:
        one_of("experiment", name, (*EXPERIMENTS, *GROUPS))
    named = {one for name in wanted for one in GROUPS.get(name, (name,))}
    return [name for name in EXPERIMENTS if name in named]


def more_runs_of(name: str, records: Sequence[Record], scale: Scale | None) -> list[Training]:
    """The trainings that follow from the records of an experiment on networks."""
    module = load(name)
    if hasattr(module, "more"):
        return [*module.more(records, scale or scale_named(SHOWN_SCALE))]
    from antipgd.paper.networks.minima import extensions  # a list of experiments needs no figures

    return extensions(records)


def runs_of(name: str, seeds: int | None = None, scale: Scale | None = None) -> list[Spec]:
    """The runs of an experiment; `scale` is that of experiments on networks."""
    module = load(name)
    if is_scaled(name):
        return [*module.runs(seeds, scale or scale_named(SHOWN_SCALE))]
    return [*module.runs(module.SEEDS if seeds is None else seeds)]
