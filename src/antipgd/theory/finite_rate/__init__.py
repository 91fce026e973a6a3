"""What Anti-PGD regularises at real learning rates: R(H) with the slope σ²φ(ηh)/2.

σ²/2·tr∇²L (def:L_tilde) is its limit η → 0. `ratios` has φ, `regularisers` R, `flows` the law along
the minima, `clocks` its approximation by one number. All ours.
"""

from antipgd.theory.finite_rate.clocks import Clock, clock, mean_ratio, ratio_by_direction
from antipgd.theory.finite_rate.flows import Landscape, flow
from antipgd.theory.finite_rate.ratios import flat_diffusion, stability_limit, variance_ratio
from antipgd.theory.finite_rate.regularisers import regulariser

__all__ = [
    "Clock",
    "Landscape",
    "clock",
    "flat_diffusion",
    "flow",
    "mean_ratio",
    "ratio_by_direction",
    "regulariser",
    "stability_limit",
    "variance_ratio",
]
