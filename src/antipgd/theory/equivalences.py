"""What is the same thing in other units: the clock, label noise, the delay at a saddle.

All ours, from def:L_tilde: Anti-PGD drifts along a valley of minima by (σ²/2)∇tr∇²L per unit of
learning rate. Knows no loss.
"""

import math
from typing import Literal, get_args

from antipgd.theory.linear import require

Optimizer = Literal["sgd", "adam", "muon"]
Form = Literal["quarter", "half"]
_FACTORS = {"quarter": 4, "half": 2}


def _rate(lr: float, sigma: float, momentum: float, optimizer: str) -> float:
    """The clock's advance per step."""
    require(0 < lr < math.inf, "a finite lr > 0", lr=lr)
    require(0 <= sigma < math.inf, "a finite sigma >= 0", sigma=sigma)
    kinds = get_args(Optimizer)
    require(optimizer in kinds, f"optimizer, one of {kinds}", optimizer=optimizer)
    require(0 <= momentum < 1, "0 <= momentum < 1", momentum=momentum)
    if optimizer != "sgd":
        require(momentum == 0, f"no momentum beside {optimizer}'s own", momentum=momentum)
        return lr * sigma
    return lr * sigma**2 / (1 - momentum)


def clock(
    lr: float, sigma: float, steps: int, *, momentum: float = 0.0, optimizer: Optimizer = "sgd"
) -> float:
    """τ = ησ²n/(1−β) for SGD with momentum β; ησn for Adam and, in a unit of its own, Muon.

    Runs of one problem with equal τ are equally far along their valley. That of SGD is derived, the
    limit of small η‖∇²L‖ and σ (def:L_tilde); at learning rates with η‖∇²L‖ not ≪ 1 use
    `finite_rate.clock`, of which this is the limit. Those of Adam and Muon were measured
    (`make clocks`): without weight decay, noise that dominates the second moments, η ≪ σ. `kind`
    of `antipgd.torch`'s `noise.clock` has the same names.

    >>> round(clock(0.1, 0.05, 20_000), 9)
    5.0
    """
    require(steps >= 0, "steps >= 0", steps=steps)
    return steps * _rate(lr, sigma, momentum, optimizer)


def steps_for(
    tau: float, lr: float, sigma: float, *, momentum: float = 0.0, optimizer: Optimizer = "sgd"
) -> int:
    """The number of steps after which the clock shows at least τ.

    >>> steps_for(0.5, 0.1, 0.05), steps_for(0.5, 0.1, 0.05, momentum=0.9)
    (2000, 200)
    """
    require(0 <= tau < math.inf, "a finite tau >= 0", tau=tau)
    require(sigma > 0, "sigma > 0, else the clock stands", sigma=sigma)
    rate = _rate(lr, sigma, momentum, optimizer)
    require(rate > 0 and tau / rate < 2**53, "a clock that is not too slow", tau=tau, rate=rate)
    return math.ceil(tau / rate * (1 - 1e-12))


def _check_label(spread: float, lr: float, examples: int, form: str) -> None:
    require(0 <= spread < math.inf, "a finite standard deviation >= 0", sd=spread)
    require(0 < lr < math.inf, "a finite lr > 0", lr=lr)
    require(examples >= 1, "examples >= 1", examples=examples)
    require(form in _FACTORS, f"form, one of {tuple(_FACTORS)}", form=form)


def sigma_of_label_noise(
    label_sd: float, lr: float, examples: int, form: Form = "quarter"
) -> float:
    """The σ of the Anti-PGD that fresh label noise of standard deviation s equals.

    σ² = ηs²/(4n) for the loss ¼·mean (f−y)² ("quarter") and ηs²/(2n) for ½·mean (f−y)² ("half"), n
    examples, full batch: the weights then spread by σ² in every direction that the data see.
    §subsec:Connection_with_label_noise prints another gradient and says that the two differ.
    Condition: squared loss near interpolation, η‖∇²L‖ ≪ 1 (the spread is 2/(2−ηh) times σ²).
    """
    _check_label(label_sd, lr, examples, form)
    return label_sd * math.sqrt(lr / (_FACTORS[form] * examples))


def label_noise_of_sigma(sigma: float, lr: float, examples: int, form: Form = "quarter") -> float:
    """The standard deviation of the label noise that equals Anti-PGD's σ; the inverse of above.

    >>> round(label_noise_of_sigma(0.05, 0.1, 40), 9)
    2.0
    """
    _check_label(sigma, lr, examples, form)
    return sigma * math.sqrt(_FACTORS[form] * examples / lr)


def saddle_delay(lr: float, curvature: float, *, leading: bool = False) -> float:
    """How many steps later than PGD Anti-PGD leaves a saddle: 1 + ln(1/a)/ln(1+a), a = η|λ|.

    On w ← (1+a)w + ε PGD spreads like σ(1+a)^k/√(a²+2a), Anti-PGD's z like a/(1+a) of that, because
    only aξ enters it and one step later (ξ_0 = 0). `leading=True` leaves out that one step.
    Condition: a negative curvature λ. With ξ_0 drawn (eq:def_antiPGD) there is no such delay, for
    z_0 is then off by a whole ξ_0.

    >>> round(saddle_delay(0.1, -0.1), 1)
    463.8
    """
    require(lr > 0, "lr > 0", lr=lr)
    require(
        curvature < 0, "a negative curvature, that of an unstable direction", curvature=curvature
    )
    a = -lr * curvature
    require(0 < a < math.inf, "0 < lr·|curvature| < ∞", lr=lr, curvature=curvature)
    return (0 if leading else 1) - math.log(a) / math.log1p(a)
