"""What Anti-PGD regularises at real learning rates: R(H) with the slope σ²φ(ηh)/2.

σ²/2·tr∇²L (def:L_tilde) is its limit η → 0. `ratios` has φ, `regularisers` R. All ours.
"""

from antipgd.theory.finite_rate.ratios import flat_diffusion, stability_limit, variance_ratio
from antipgd.theory.finite_rate.regularisers import regulariser

__all__ = ["flat_diffusion", "regulariser", "stability_limit", "variance_ratio"]
