"""Fouls: what a method may not do, and how it is noticed. The others go on."""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antipgd.paper.fight.problem import Problem


class FoulError(Exception):
    """What a method did that makes its numbers no numbers of the fight."""


def _generators() -> dict[str, bytes]:
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 (whether it was used)
    return {
        "Python's random": repr(random.getstate()).encode(),
        "NumPy's": repr((kind, rest)).encode() + np.asarray(keys).tobytes(),
        "torch's": torch.get_rng_state().numpy().tobytes(),
    }


class Referee:
    """Looks at the weights after each step, at data and generators after the first and the last."""

    def __init__(self, problem: Problem, start: Tensor) -> None:
        self._problem, self._kind = problem, (start.shape, start.dtype)
        self._data, self._generators = problem.checksum(), _generators()

    def weights(self, w: Any, where: str) -> None:
        """Refuse what is no weights."""
        if not isinstance(w, Tensor) or (w.shape, w.dtype) != self._kind:
            shape, dtype = self._kind
            got = f"{w.dtype} of shape {tuple(w.shape)}" if isinstance(w, Tensor) else repr(w)[:80]
            raise FoulError(f"{where} returned {got}, not weights: {dtype} of shape {tuple(shape)}")

    def count(self, asked: int, steps: int, declared: int) -> None:
        """Refuse more gradients than were declared."""
        if asked > steps * declared:
            raise FoulError(
                f"it asked for {asked} gradients in {steps} steps and declares "
                f"GRADIENTS = {declared}"
            )

    def everything_else(self) -> None:
        """Refuse changed data and drawn global generators."""
        if self._problem.checksum() != self._data:
            raise FoulError("it changed the data of the problem")
        for name, state in _generators().items():
            if state != self._generators[name]:
                raise FoulError(
                    f"it drew from {name} global generator: draws are bout.draw(n), the same for "
                    "all"
                )
