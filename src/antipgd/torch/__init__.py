"""Anticorrelated noise for any model and torch optimizer: `perturb(model, optimizer, sigma=…)`.

The model reads noisy weights while it trains and has clean ones always. `attach(optimizer, …)` is
the paper's own form, in which the weights carry the noise.

Needs torch; on CPUs numba makes it fast, with the same bits (both are the `torch` extra).
"""

from antipgd.extras import needed_by

with needed_by("antipgd.torch", "torch"):
    import torch as _torch  # noqa: F401

from antipgd.torch.attaching import attach
from antipgd.torch.batches import AnticorrelatedBatches
from antipgd.torch.cleaning import clean_state_dict
from antipgd.torch.forward.perturbing import perturb
from antipgd.torch.handle import Noise
from antipgd.torch.left_behind import forget_noise
from antipgd.torch.left_behind import listen as _listen
from antipgd.torch.living import noise_of
from antipgd.torch.members import biases, norms, vectors
from antipgd.torch.saved import expect_noise
from antipgd.torch.sgd import AntiPGD

__all__ = [
    "AntiPGD",
    "AnticorrelatedBatches",
    "Noise",
    "attach",
    "biases",
    "clean_state_dict",
    "expect_noise",
    "forget_noise",
    "noise_of",
    "norms",
    "perturb",
    "vectors",
]

_listen()
