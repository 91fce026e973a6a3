"""The trace of a small classifier at equal loss, its logits multiplied by a temperature.

Once a network fits, longer training mostly scales its logits up: the cross-entropy falls, and with
it the trace of its Hessian, though the network is no flatter. So T is chosen to give the loss of
T·logits a fixed value, and the trace of that loss is taken, each layer scaled by its mean square.
`antipgd.flatness.temperature` defines it for torch's networks; this is the same in NumPy.
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp

from antipgd.paper.simulation.problems.digit_images import Digits
from antipgd.paper.simulation.problems.digits_network import Data, DigitsNetwork
from antipgd.paper.simulation.problems.problem import Array

LOSS = 0.01
_DOUBLINGS = 200
_EXACT = 1e-12


def loss_at(temperature: float, logits: Array, labels: Digits) -> float:
    """The mean cross-entropy of T·logits."""
    scaled = temperature * logits
    own = scaled[np.arange(len(labels)), labels]
    return float((logsumexp(scaled, axis=1) - own).mean())


def temperature_of(logits: Array, labels: Digits, loss: float = LOSS) -> float:
    """The smallest T > 0 at which the loss has this value; refuses logits that err somewhere,
    since theirs need not have one."""
    own = logits[np.arange(len(labels)), labels]
    others = logits.copy()
    others[np.arange(len(labels)), labels] = -np.inf
    wrong = int((others.max(axis=1) >= own).sum())
    if wrong:
        raise ValueError(
            f"equal loss needs every example right; {wrong} of {len(labels)} are classified wrongly"
        )
    if not 0 < loss < math.log(logits.shape[1]):
        raise ValueError(f"loss must lie between 0 and ln {logits.shape[1]}; got {loss:g}")
    high = 1 / float(np.abs(logits).max())
    low = 0.0
    for _ in range(_DOUBLINGS):
        if loss_at(high, logits, labels) <= loss:
            break
        low, high = high, 2 * high
    return float(
        brentq(lambda t: loss_at(t, logits, labels) - loss, low, high, rtol=_EXACT, xtol=1e-300)
    )


def scaled_trace(problem: DigitsNetwork, w: Array, data: Data, loss: float = LOSS) -> float:
    """Σ_l ‖w_l‖² tr_l / n_l of the loss of T·outputs on the training images, at the T that gives
    it this value."""
    logits = problem.outputs(w[None], data.X)[0]
    traces = problem.layer_traces(w, data, temperature_of(logits, data.y, loss))
    sizes = [float((layer**2).mean()) for layer in problem.layers(w[None])]
    return float(traces @ sizes)
