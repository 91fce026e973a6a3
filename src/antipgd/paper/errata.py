"""Slips in the paper: what is printed, what is right, and the check that shows it.

One list, from which the page's section and docs/errata.md are made. A check is a small computation
that returns its measured figures as text, or None where reading suffices. Formulas come from
`antipgd.theory`, as printed and corrected.
`python -m antipgd.paper.errata` prints docs/errata.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np

from antipgd.noise import WHITE
from antipgd.theory import linear, regularisation, valley

ALPHA, D, DIMENSIONS, SIGMA = 0.25, 1.0, 100, 0.03
BY_READING = "by reading"


@dataclass(frozen=True)
class Slip:
    """A slip, where it is, and how it is shown."""

    where: str
    printed: str
    right: str
    check: Callable[[], str] | None = None

    def shown_by(self) -> str:
        """The measured figures, or that reading suffices."""
        return BY_READING if self.check is None else self.check()


def _valley(w: np.ndarray) -> float:
    return float(w[-1] ** 2 * (w[:-1] @ w[:-1]) / 2)


def _hessian_corner() -> str:
    u, h = np.array([1.0, 2.0, 2.0]), 1e-3
    at = [_valley(np.append(u, 0.5 + k * h)) for k in (-1, 0, 1)]
    second = (at[0] - 2 * at[1] + at[2]) / h**2
    return f"∂²L/∂v² = {second:.3f} by differences at a point with ‖u‖ = 3"


def _linear_term() -> str:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200_000, 3))
    c, u, v = np.array([0.5, -1.0, 0.0]), np.array([0.3, 0.4, -0.2]), 0.7
    y = X @ c
    loss = ((y - v * (X @ u)) ** 2).mean() / 2
    linear = (loss - v**2 * (u @ u) / 2 - (y @ y) / len(y) / 2) / (-v * (u @ c))
    return f"coefficient {linear:.2f} of −v uᵀE[yx], 200,000 samples; printed 2"


def _limit(sigma: float) -> float:
    """dσ²/(1−ρ²) at the factor ρ of the proof's best case."""
    rho = (ALPHA**3 * D - 2 * sigma**2) / (ALPHA**3 * D)
    return DIMENSIONS * linear.stationary_variance(rho, sigma, WHITE)


def _pgd_limit() -> str:
    printed, right = (
        valley.proof_limit(DIMENSIONS, D, ALPHA, SIGMA, printed=printed)
        for printed in (True, False)
    )
    return f"dσ²/(1−ρ²) = {_limit(SIGMA):.4f}; printed form {printed:.4f}, half of it {right:.4f}"


def _thresholds() -> str:
    theorem = valley.printed_dimension_threshold(ALPHA, "theorem")
    proof = valley.printed_dimension_threshold(ALPHA, "proof")
    corrected = valley.printed_dimension_threshold(ALPHA, "corrected")
    return (
        f"α = {ALPHA}: 2/α² = {theorem:.0f}, 2/α⁴ = {proof:.0f}, "
        f"with the right limit 4/α⁴ = {corrected:.0f}"
    )


def _small_noise_limit() -> str:
    return (
        f"limit {_limit(1e-5):.4f} at σ = 1e-5; dDα³/4 = {DIMENSIONS * D * ALPHA**3 / 4:.4f}, "
        f"printed dDα²/2 = {DIMENSIONS * D * ALPHA**2 / 2:.4f}"
    )


def _interval() -> str:
    return f"α = {ALPHA}: ({1 - ALPHA**2 / 2:.3f}, 0.5) is empty"


def _bound_by_induction() -> str:
    largest = 1 - ALPHA**2 / 2
    return f"the factor reaches {largest:.3f}, so the argument gives {2 / (1 - largest):.0f}σ"


def _true_bound() -> str:
    rng = np.random.default_rng(1)
    w = np.append(np.full(DIMENSIONS, sqrt(D / DIMENSIONS)), 0.0)
    xi, largest = np.zeros(DIMENSIONS + 1), 0.0
    for _ in range(20_000):
        new = SIGMA * rng.choice([-1.0, 1.0], DIMENSIONS + 1)
        u, v = w[:-1], w[-1]
        w = w - ALPHA / (2 * D) * np.append(v * v * u, v * (u @ u)) + new - xi
        xi, largest = new, max(largest, abs(w[-1]))
    return f"largest |v| in 20,000 steps: {largest / SIGMA:.3f}σ"


def _exponent() -> str:
    _, exact = linear.second_moment([0.5], 1.0)
    printed = linear.anti_moment(0, 0.5, 1.0, printed=True)
    return f"k = 0, ρ = ½: {exact:.2f} dσ² exactly, printed {printed:.2f} dσ²"


def _matrix_order() -> str:
    rng = np.random.default_rng(2)
    A, xi = rng.standard_normal((4, 3, 3)) / 2, rng.standard_normal((4, 3))
    w = np.zeros(3)
    for k in range(4):
        w = A[k] @ w + xi[k] - (xi[k - 1] if k else 0)
    printed, right = (
        linear.anti_variation(list(A), np.zeros(3), list(xi), printed=printed)
        for printed in (True, False)
    )
    wrong, rounding = np.abs(printed - w).max(), np.abs(right - w).max() < 1e-14
    return (
        f"random 3×3 matrices, k = 3: error {wrong:.2g} as printed, with the factor on the right "
        f"{'below 1e-14' if rounding else 'too'}"
    )


def _vanishing_product() -> str:
    left = (linear.vanishing_rho(100_000) ** 2).prod()
    return f"ρ_k = 1 − 1/(k+2)² < 1 always, yet Πρ_k² → {left:.4f}: the start is never forgotten"


def _variance_of_a_quadratic() -> str:
    eta, sigma, z = 0.1, 0.2, np.ones(1)
    exact = regularisation.enumerated_step(lambda w: w, z, eta, sigma).variance[0]
    at = regularisation.Derivatives(z, np.eye(1), np.zeros((1,) * 3), np.zeros((1,) * 4))
    printed = regularisation.conditional_variance(at, eta, sigma, kurtosis=1, printed=True)[0]
    return f"L = z²/2, z = 1: variance {exact:.2e} by enumeration, printed {printed:.2e}"


def _smaller_variance() -> str:
    eta, sigma, curvature = 0.1, 0.05, 5.0
    step = regularisation.enumerated_step(lambda z: curvature * z, np.zeros(1), eta, sigma)
    anti = step.variance[0]
    return f"η = 0.1, curvature 5: {anti:.2e} for Anti-PGD, σ² = {sigma**2:.2e} for PGD"


def _smoothness() -> str:
    z, sigma = 10.0, 0.1
    return f"L = z⁴ has β = 24; L̃″(10) = {12 * z**2 + 12 * sigma**2:.0f}"


def _divergence() -> str:
    z = 1.0
    for _ in range(10):
        z -= 1.0 * 10 * z  # L = 5z², whose third derivative is zero: any β > 0 will do
    return f"L = 5z², η = 1: |z| = {abs(z):.1g} after ten steps without any noise"


def _stuck() -> str:
    u, v = np.full(DIMENSIONS, sqrt(D / DIMENSIONS)), 0.5
    start = u @ u
    for _ in range(200_000):
        u, v = u - 1e-3 * v * v * u, v - 1e-3 * v * (u @ u)
    return (
        f"‖u_0‖² = {start:.2f}, v_0 = 0.5: ends at {u @ u:.4f}, ‖u_0‖² − v_0² = {start - 0.25:.4f}"
    )


def _one_scale() -> str:
    rng = np.random.default_rng(3)
    J, residual = rng.standard_normal((50, 20)), rng.standard_normal(50)
    summed, mean = J.T @ residual, J.T @ residual / len(J)
    ratio = np.linalg.norm(summed) / np.linalg.norm(mean)
    return f"50 examples, ξ = 0: ∇L̄ is {ratio:.0f} times ∇L"


def _unbounded() -> str:
    """L = z⁴ has third derivatives 24z, Lipschitz with β = 24; its expansion ends with 4ξ³."""
    inner = [4 * z**3 * 4 for z in (1.0, 10.0, 100.0)]
    squares = [(12 * z**2) ** 2 for z in (1.0, 10.0, 100.0)]
    shown = ", ".join(f"{a:.2g} and {b:.2g}" for a, b in zip(inner, squares, strict=True))
    return f"L = z⁴, β = 24: their leading parts over σ³ and σ² at z = 1, 10, 100: {shown}"


def _batch() -> str:
    return f"50,000/7,500 = {50_000 / 7_500:.2f}"


SLIPS = (
    Slip("eq:gradientHessianWV", "corner of the Hessian ‖u‖", "‖u‖²", _hessian_corner),
    Slip("eq:sparse_loss", "−2v u₁:ₘᵀE[yx], constant in the spurious subspace",
         "−v u₁:ₘᵀE[yx]; it depends on v, so it is not constant there", _linear_term),
    Slip("§sec:exp", "targets y ∈ ℝᵈ", "y ∈ ℝⁿ, one per example"),
    Slip("thm:main_tube", "theorem: d ≥ 2/α²; its proof: d ≥ 2/α⁴", "they differ; see below",
         _thresholds),
    Slip("proof of thm:main_tube", "limit dD²α⁶/(2Dα³ − 2σ²), so d ≥ 2/α⁴",
         "dD²α⁶/(4Dα³ − 4σ²), so the proof gives 4/α⁴", _pgd_limit),
    Slip("remark \"Phase transition\"", "the process will grow until at least dDα²/2", "dDα³/4",
         _small_noise_limit),
    Slip("fig:tube_verification", "caption: η = α/D", "theorem: η = α/2D; both are run here"),
    Slip("proof of thm:main_tube", "1 − η‖u‖² ∈ (1 − α²/2, ½)", "(½, 1 − α²/2)", _interval),
    Slip("eq:for_ind_vk", "|v_{k+1}| ≤ ½|v_k| + 2σε_k, hence |v_k| ≤ 4σ",
         "½ is the smallest factor, not the largest, and ε_k has no place: 4σ does not follow",
         _bound_by_induction),
    Slip("eq:for_ind_vk", "|v_k| ≤ 4σ", "|v_k| ≤ 2σ, from z_{k+1} = ρz_k − (1−ρ)ξ_k", _true_bound),
    Slip("cor:ito_discrete_const", "1 − ρ^{2(k+1)} in the anticorrelated case", "1 − ρ^{2k}",
         _exponent),
    Slip("cor:anti_variations", "(A_{i+1} − I) left of the product", "right of it", _matrix_order),
    Slip("proof of prop:ito_discrete_all_rho", "ρ_k before the sum in the third line", "ρ_k²"),
    Slip("proof of prop:ito_discrete", "σ² in the last line", "dσ²"),
    Slip("proof of lemma:variations", "base of the induction \"k = 1: w_1 = …\"", "k = 0"),
    Slip("eq:def_antiPGD, prop:ito_discrete, proof of thm:main_tube",
         "ξ_{n+1} − ξ_n from ξ_0; ε_0 = ξ_0; ε_k = ξ_{k+1} − ξ_k",
         "three start conventions; here ξ_0 = 0, so the first injection is ξ_1"),
    Slip("prop:ito_discrete_all_rho", "ρ_k ≠ 1 with non-vanishing probability suffices",
         "Σ(1 − ρ_k) = ∞ is needed", _vanishing_product),
    Slip("app:wv_proof", "‖u_0‖ := D", "‖u_0‖² = D"),
    Slip("corollary:main_tube", "w^un and w^anti \"computed by Anti-PGD and PGD respectively\"",
         "the other way round"),
    Slip("app:cond_var", "E[(…)²] as the variance, third derivatives not squared",
         "subtract the squared mean, square them; fourth derivatives enter too",
         _variance_of_a_quadratic),
    Slip("proof of thm:implicit_reg", "Lipschitz third derivatives make L̃ β-smooth",
         "they do not; it has to be assumed", _smoothness),
    Slip("§subsec:Connection_with_label_noise", "∇L̄ = ∇L + Σ∇f ξ_{n+1} with L̄ a sum and L a mean",
         "the same scale on both sides; one ξ for all examples is a definition, no slip, though "
         "the works cited shift each label by itself", _one_scale),
    Slip("fig:cifar-full-inj-init", "\"Compared to Fig. 1\"; \"in 70 iteration\"",
         "fig:front_experiments; 70 epochs"),
    Slip("§sec:matrix_sensing", "X* of unit 2-norm, V Gaussian; A_i symmetric, entries i.i.d.",
         "each pair excludes the other; both scalings are run, only the symmetric part matters"),
    Slip("proof of thm:main_tube", "bounds a process that never leaves the domain",
         "the theorem speaks of the free one"),
    Slip("thm:pac", "any non-negative λ; no assumption on the loss",
         "λ > 0, a bounded loss, and prior and λ chosen without the data"),
    Slip("eq:trace_hess_pac", "L(Q(w|w*), w*) with variance s²", "one argument; covariance s²I"),
    Slip("§subsec:wv_empirical", "GD's final trace is ‖u_0‖², since d ≫ 1",
         "‖u_0‖² − v_0², conserved by the flow; small v_0² ≪ ‖u_0‖² is the reason", _stuck),
    Slip("app, matrix sensing", "gradient and Hessian \"provided in §sec:matrix_sensing\"",
         "they are not there"),
    Slip("§sec:exp_app", "noise injection \"variance\" in the text",
         "standard deviation, as the captions say"),
    Slip("§sec:squared_regr", "\"we also study the effect of sparseness\"",
         "the study is absent; see `regression_sparsity`"),
    Slip("thm:implicit_reg", "η < 1/β with β of the third derivatives suffices",
         "the curvature must be bounded too", _divergence),
    Slip("app:cond_var", "the cross term of E[(…)²] is η²σ²Σ_j∂_ijjL",
         "it lacks its factor ∂_iL; see `cond_variance`"),
    Slip("app:cond_var", "PGD's step has Hessian terms", "they belong to Anti-PGD's step in z"),
    Slip("app:cond_var", "\"it seems likely that this variance is larger\" than PGD's σ²",
         "smaller whenever η²Σ_jH_ij² < 1, to leading order", _smaller_variance),
    Slip("proof of thm:implicit_reg", "\"we assumed L has Lipschitz gradients\"",
         "the theorem does not assume it"),
    Slip("prop:ito_discrete_all_rho", "stochastic ρ_k, \"only specified up to an interval\"",
         "independent of the draws, or bounded draws; ρ_k chosen from gaussian draws exceed 2dσ²"),
    Slip("proof of thm:implicit_reg",
         "E⟨∇L̃, O(σ³)⟩ = O(σ³) and E‖B(z)⊙ξ‖² = O(σ²)",
         "both need bounds that are not assumed, on ‖∇L̃‖ and on the Hessian; Young's inequality "
         "does without the first and gives the floor O(σ⁶)", _unbounded),
    Slip("§sec:exp", "a batch of 7,500 is 1/7 of the dataset", "of 50,000 it is 1/6.7", _batch),
)  # fmt: skip


def as_markdown() -> str:
    """docs/errata.md."""
    lines = [
        "# Slips in the paper",
        "",
        "Made by `python -m antipgd.paper.errata` from the list in `src/antipgd/paper/errata.py`;",
        "the last column is measured when it is made.",
        "",
        "| | where | printed | right | shown by |",
        "|---|---|---|---|---|",
    ]
    for number, slip in enumerate(SLIPS, 1):
        cells = (slip.where, slip.printed, slip.right, slip.shown_by())
        escaped = [cell.replace("|", "\\|") for cell in cells]
        lines.append(f"| {number} | " + " | ".join(escaped) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(as_markdown(), end="")
