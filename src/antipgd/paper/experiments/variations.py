"""The variations of constants formula, and its anticorrelated form as printed

lemma:variations, cor:anti_variations and its remark, on w_{k+1} = A_k w_k + ε_k step by step: three
dimensions, ten sets of random matrices with entries of deviation 0.4, random starts and draws, k up
to 20. The corollary is for any matrices; as printed, A_{i+1} − I stands left of the product, which
is right only where matrices commute. Errors are relative to ‖w_{k+1}‖, tolerance 1e-10. No training
run is needed.
"""

from collections.abc import Callable

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, below
from antipgd.paper.results import Results
from antipgd.paper.simulation.problems.problem import Array
from antipgd.paper.simulation.spec import Run
from antipgd.paper.simulation.tanh_regression import generator
from antipgd.theory import linear

SHOWS = (
    "Relative error of the formula as printed and as corrected, and of the lemma, against the "
    "number of steps. Lines are means over {seeds} sets of random matrices."
)
SEEDS = 10
DIMENSIONS, STEPS, SCALE = 3, 20, 0.4
TOLERANCE = 1e-10
MATRICES = ("any", "multiples", "identity")
Formula = Callable[[Array, Array, Array], Array]


def runs(seeds: int) -> list[Run]:
    return []


def _case(seed: int, kind: str) -> tuple[Array, Array, Array]:
    """Matrices A_0, …, the start w_0 and draws ξ_0, …"""
    rng = generator(seed, "variations")
    A = SCALE * rng.standard_normal((STEPS, DIMENSIONS, DIMENSIONS))
    rho = rng.uniform(0.5, 1, STEPS)
    if kind != "any":
        A = (rho if kind == "multiples" else np.ones(STEPS))[:, None, None] * np.eye(DIMENSIONS)
    return A, rng.standard_normal(DIMENSIONS), rng.standard_normal((STEPS, DIMENSIONS))


def _injections(xi: Array) -> Array:
    """ε_0 = ξ_0 and ε_k = ξ_k − ξ_{k−1}."""
    return np.diff(xi, axis=0, prepend=np.zeros((1, DIMENSIONS)))


def _walk(A: Array, w: Array, eps: Array) -> Array:
    """w_1, w_2, … step by step."""
    found = []
    for matrix, injection in zip(A, eps, strict=True):
        w = matrix @ w + injection
        found.append(w)
    return np.array(found)


def _errors(kind: str, formula: Formula) -> Array:
    """‖formula − w_{k+1}‖/‖w_{k+1}‖ by seed and k, for anticorrelated injections."""
    table = np.empty((SEEDS, STEPS))
    for seed, row in enumerate(table):
        A, w, xi = _case(seed, kind)
        walked = _walk(A, w, _injections(xi))
        for k in range(STEPS):
            gap = formula(A[: k + 1], w, xi[: k + 1]) - walked[k]
            row[k] = np.linalg.norm(gap) / np.linalg.norm(walked[k])
    return table


def _lemma(A: Array, w: Array, xi: Array) -> Array:
    return linear.variation(list(A), w, list(_injections(xi)))


def _printed(A: Array, w: Array, xi: Array) -> Array:
    return linear.anti_variation(list(A), w, list(xi), printed=True)


def _corrected(A: Array, w: Array, xi: Array) -> Array:
    return linear.anti_variation(list(A), w, list(xi))


def _without_last(A: Array, w: Array, xi: Array) -> Array:
    """The corollary without its last summand."""
    for matrix in A:
        w = matrix @ w
    return w + xi[-1]


def claims(results: Results) -> list[Claim]:
    tested = f"largest relative error for k < {STEPS}, n sets of %s; bound {TOLERANCE:g}"
    parts = [
        ("lemma", "the variations of constants formula is right", "lemma:variations", "any",
         _lemma, "random matrices"),
        ("printed", "the anticorrelated form is right as printed", "cor:anti_variations", "any",
         _printed, "random matrices"),
        ("printed_multiples", "the printed form is right for multiples of the identity",
         "cor:anti_variations", "multiples", _printed, "A_k = ρ_k I"),
        ("corrected", "with A_{i+1} − I right of the product it is right for any matrices",
         "cor:anti_variations", "any", _corrected, "random matrices"),
        ("identity", "if A_i = I for all i, the last summand is zero", "remark on "
         "cor:anti_variations", "identity", _without_last, "A_k = I"),
    ]  # fmt: skip
    return [
        below(f"variations.{part}", statement, reference, tested % words,
              _errors(kind, formula).max(axis=1), TOLERANCE)
        for part, statement, reference, kind, formula, words in parts
    ]  # fmt: skip


def plot(results: Results) -> figures.Figure:
    k = np.arange(1, STEPS + 1)
    lines = (
        ("printed", _printed, figures.COLOURS["pgd"]),
        ("corrected", _corrected, figures.COLOURS["anti"]),
        ("lemma", _lemma, figures.COLOURS["gd"]),
    )
    series = [
        figures.spread(k, np.maximum(_errors("any", formula), 1e-17), 0, label=name, colour=colour)
        for name, formula, colour in lines
    ]
    panel = figures.Panel("relative error, random matrices", series, "k + 1", "", "linear", "log",
                          depth=1e-18)  # fmt: skip
    return figures.draw([panel], height=3.0, width=5.2)
