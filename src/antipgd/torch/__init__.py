"""Anticorrelated noise for any torch optimizer: `attach(optimizer, sigma=…)`.

Needs torch (the `torch` extra); on CPUs numba (the `cpu` extra) makes it fast, with the same bits.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("antipgd.torch needs torch: pip install 'antipgd[torch]'") from error

from antipgd.torch.attaching import attach
from antipgd.torch.cleaning import clean_state_dict
from antipgd.torch.handle import Noise
from antipgd.torch.members import biases, norms, vectors
from antipgd.torch.saved import expect_noise
from antipgd.torch.sgd import AntiPGD

__all__ = [
    "AntiPGD",
    "Noise",
    "attach",
    "biases",
    "clean_state_dict",
    "expect_noise",
    "norms",
    "vectors",
]
