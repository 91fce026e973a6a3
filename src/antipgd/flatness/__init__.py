"""How flat is this minimum, and how sure are we? For any PyTorch model or plain function.

Needs torch and SciPy (the `flatness` extra). Whatever is measured, the model, its gradients and all
random number generators are left exactly as they were found.
"""

try:
    import scipy as _scipy  # noqa: F401
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "antipgd.flatness needs torch and SciPy: pip install 'antipgd[flatness]'"
    ) from error

from antipgd.flatness.bound import pac_bayes_bound
from antipgd.flatness.finding import FoundSigma, TooFewStepsWarning, find_sigma
from antipgd.flatness.monitoring import (
    ExplosiveNoiseWarning,
    InertNoiseWarning,
    Monitor,
    Reading,
    monitor,
)
from antipgd.flatness.objective import NotDeterministicError
from antipgd.flatness.samples import ToleranceWarning
from antipgd.flatness.sharpness import Sharpness, expected_sharpness
from antipgd.flatness.spectrum import Eigenvalues, Spectrum, spectrum, top_eigenvalues
from antipgd.flatness.trace import Trace, difference, hessian_trace

__all__ = [
    "Eigenvalues",
    "ExplosiveNoiseWarning",
    "FoundSigma",
    "InertNoiseWarning",
    "Monitor",
    "NotDeterministicError",
    "Reading",
    "Sharpness",
    "Spectrum",
    "ToleranceWarning",
    "TooFewStepsWarning",
    "Trace",
    "difference",
    "expected_sharpness",
    "find_sigma",
    "hessian_trace",
    "monitor",
    "pac_bayes_bound",
    "spectrum",
    "top_eigenvalues",
]
