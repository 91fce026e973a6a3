"""Steps of Anti-PGD rehearsed: does training bear this noise, and does it learn to live with it?

SGD on displaced copies of the weights, full gradients, fresh draws; the weights themselves stay.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from antipgd.checks import number
from antipgd.flatness.draws import Draws
from antipgd.flatness.objective import Objective
from antipgd.torch.kinds import SGD, kind_of

REHEARSED = 200  # steps
UNSTABLE = 2.0  # times its first cost, at which noise has not been learned but has broken learning
LOWERED = tuple(2 ** (-k / 2) for k in range(11))  # what an unstable σ is multiplied with


@dataclass(frozen=True)
class Rate:
    """The options of SGD that a rehearsal follows."""

    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    def move(self, velocity: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The velocity after a step with this gradient, and how far the weights go."""
        velocity = self.momentum * velocity + (1 - self.dampening) * gradient
        ahead = gradient + self.momentum * velocity if self.nesterov else velocity
        return velocity, self.lr * ahead


def _of_group(group: dict[str, Any]) -> Rate:
    """Of a param group of SGD, which looks at dampening only where there is momentum."""
    momentum = float(group.get("momentum") or 0)
    dampening = float(group.get("dampening") or 0) if momentum else 0.0
    lr = group.get("initial_lr", group["lr"])  # at which a schedule begins, and the noise with it
    return Rate(float(lr), momentum, dampening, bool(group.get("nesterov")))


def rate_of(lr: float | None, momentum: float, optimizer: Optimizer | None) -> Rate | None:
    """None where it is not known, or for another optimizer than SGD."""
    if lr is not None and optimizer is not None:
        raise ValueError(f"give lr= or optimizer=, not both; got lr={lr!r}")
    if optimizer is not None:
        if kind_of(optimizer) is not SGD:  # whose steps can be rehearsed
            return None
        rates = list(dict.fromkeys(map(_of_group, optimizer.param_groups)))
        if len(rates) > 1:
            raise ValueError(
                f"param groups differ in (lr, momentum) or in how it is used, {rates}: give lr= "
                f"instead"
            )
        lr, momentum = rates[0].lr, rates[0].momentum
    number("momentum", momentum, 0, 1)
    if lr is None:
        return None
    number("lr", lr, 0, above=True)
    return Rate(lr, momentum) if optimizer is None else rates[0]


def rehearsal(
    objective: Objective, watched: Objective, sigma: float, draws: Draws, rate: Rate, here: float
) -> Iterator[float]:
    """What the noise costs, step by step of Anti-PGD from here: z ← z − η·velocity(∇L(z + ξ)).

    Ends where that is not finite: it would stay so.
    """
    z = velocity = torch.zeros_like(objective.flat())
    for step in range(REHEARSED):
        noisy = z + sigma * draws.directions(objective, step, 1)[0]
        cost = float(watched.values_at(noisy[None], [1.0])[0, 0]) - here
        yield cost
        if not math.isfinite(cost):
            return
        velocity, way = rate.move(velocity, objective.gradient_at(noisy))
        z = z - way
