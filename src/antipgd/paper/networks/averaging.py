"""The exponential moving average of a training's weights.

After n steps Σ_k d^{n−k} w_k / Σ_k d^{n−k}: the weights of the start are not in it, so nothing is
left to be forgotten. It is of the weights as the optimizer leaves them: w, where they carry noise.
"""

import torch
from torch import Tensor, nn


class Average:
    """An average of a model's weights, by name."""

    def __init__(self, decay: float, model: nn.Module) -> None:
        self._decay = decay
        self.weights: dict[str, Tensor] = {
            name: p.detach().clone() for name, p in model.named_parameters()
        }

    def add(self, model: nn.Module, step: int) -> None:
        """Take in the weights after `step`, counted from 1."""
        share = (1 - self._decay) / (1 - self._decay**step)
        with torch.no_grad():
            for name, p in model.named_parameters():
                self.weights[name].lerp_(p, share)

    def load(self, weights: dict[str, Tensor]) -> None:
        """Go on from a saved one."""
        for name, average in self.weights.items():
            average.copy_(weights[name])
