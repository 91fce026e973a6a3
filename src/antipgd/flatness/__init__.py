"""How flat is this minimum, and how sure are we? For any PyTorch model or plain function.

Needs torch, SciPy and tqdm (the `flatness` extra), and matplotlib to plot. Whatever is measured,
the model, its gradients and all random number generators are left exactly as they were found.
"""

from antipgd.extras import needed_by

with needed_by("antipgd.flatness", "flatness"):
    import scipy as _scipy  # noqa: F401
    import torch as _torch  # noqa: F401
    import tqdm as _tqdm  # noqa: F401

from antipgd.flatness.bound import pac_bayes_bound
from antipgd.flatness.density import Spectrum
from antipgd.flatness.effective import EffectiveSharpness, StabilityWarning
from antipgd.flatness.eigenvalues import Eigenvalues
from antipgd.flatness.finding import TooFewStepsWarning, find_sigma
from antipgd.flatness.found import FoundSigma
from antipgd.flatness.functions import (
    effective_sharpness,
    expected_sharpness,
    hessian_trace,
    spectrum,
    top_eigenvalues,
)
from antipgd.flatness.measuring import ChangedError
from antipgd.flatness.monitoring import (
    ExplosiveNoiseWarning,
    InertNoiseWarning,
    Monitor,
    Reading,
    monitor,
)
from antipgd.flatness.objective import NotDeterministicError
from antipgd.flatness.place import Place, at
from antipgd.flatness.samples import ToleranceWarning
from antipgd.flatness.sharpness import Sharpness
from antipgd.flatness.temperature import (
    TraceAtEqualLoss,
    UnreachableLossError,
    trace_at_equal_loss,
)
from antipgd.flatness.trace import Trace, difference

__all__ = [
    "ChangedError",
    "EffectiveSharpness",
    "Eigenvalues",
    "ExplosiveNoiseWarning",
    "FoundSigma",
    "InertNoiseWarning",
    "Monitor",
    "NotDeterministicError",
    "Place",
    "Reading",
    "Sharpness",
    "Spectrum",
    "StabilityWarning",
    "ToleranceWarning",
    "TooFewStepsWarning",
    "Trace",
    "TraceAtEqualLoss",
    "UnreachableLossError",
    "at",
    "difference",
    "effective_sharpness",
    "expected_sharpness",
    "find_sigma",
    "hessian_trace",
    "monitor",
    "pac_bayes_bound",
    "spectrum",
    "top_eigenvalues",
    "trace_at_equal_loss",
]
