"""The base optimizers on flat weights: what every method's gradient is handed to in the end."""

from collections.abc import Callable

import torch
from torch import Tensor


class HeavyBall:
    """v ← βv + g, w ← w − ηv: torch's SGD."""

    def __init__(self, momentum: float) -> None:
        self.momentum = momentum
        self._velocity: Tensor | None = None

    def step(self, w: Tensor, g: Tensor, lr: float) -> Tensor:
        """The next weights."""
        if not self.momentum:
            return w - lr * g
        v = self._velocity
        self._velocity = g.clone() if v is None else v.mul_(self.momentum).add_(g)
        return w - lr * self._velocity

    def kept(self) -> list[Tensor]:
        """Its state."""
        return [] if self._velocity is None else [self._velocity]


class AdamW:
    """Adam with decoupled decay, torch's defaults but for β₂ = 0.95, as language models have it."""

    DECAY, BETA, EPSILON = 0.01, 0.95, 1e-8

    def __init__(self, momentum: float) -> None:
        self.momentum = momentum
        self._moments: tuple[Tensor, Tensor] | None = None
        self._steps = 0

    def step(self, w: Tensor, g: Tensor, lr: float) -> Tensor:
        """The next weights."""
        if self._moments is None:
            self._moments = torch.zeros_like(w), torch.zeros_like(w)
        first, second = self._moments
        self._steps += 1
        first.lerp_(g, 1 - self.momentum)
        second.mul_(self.BETA).addcmul_(g, g, value=1 - self.BETA)
        root = (second / (1 - self.BETA**self._steps)).sqrt_().add_(self.EPSILON)
        scale = lr / (1 - self.momentum**self._steps)
        return (w * (1 - lr * self.DECAY)).addcdiv_(first, root, value=-scale)

    def kept(self) -> list[Tensor]:
        """Its state."""
        return [*(self._moments or ())]


OPTIMIZERS: dict[str, Callable[[float], HeavyBall | AdamW]] = {"sgd": HeavyBall, "adamw": AdamW}
