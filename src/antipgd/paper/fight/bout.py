"""What a method is given at each step: a gradient, the base optimizer, draws, its value.

All contestants of a seed have the same data, start, batches and draws. Draws are functions of
(seed, name, step) from the noise stream, so a method needs no generator, and may use none.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipgd.noise.inplace import Targets
from antipgd.noise.orders import epoch_order
from antipgd.noise.stream import stream_key
from antipgd.paper.fight.descending import OPTIMIZERS
from antipgd.paper.fight.problem import FULL, REPLACEMENT, SHUFFLED, Problem, Sizes

_DRAWN = 256  # batches with replacement


def noisy_steps(steps: int) -> int:
    """In the last sixth noise is taken out, and the learning rate falls to nothing."""
    return steps * 5 // 6


def batches(sizes: Sizes, order: str, seed: int) -> Callable[[int], Tensor | None]:
    """The rows of the step n, from 1; None where a batch is all examples."""
    batch = sizes.full_batch if order == FULL else sizes.batch
    if batch >= sizes.examples:
        return lambda n: None
    if order == REPLACEMENT:
        length, visited = _DRAWN, _with_replacement
    else:
        length, visited = sizes.examples // batch, _shuffled
    many: dict[int, Tensor] = {}

    def rows(n: int) -> Tensor:
        number, place = divmod(n - 1, length)
        if number not in many:
            many.clear()
            many[number] = torch.from_numpy(visited(seed, number, sizes.examples, batch))
        return many[number][place * batch : (place + 1) * batch]

    return rows


def _shuffled(seed: int, number: int, examples: int, batch: int) -> NDArray[np.int64]:
    """An epoch."""
    return epoch_order(SHUFFLED, seed, number, examples)


def _with_replacement(seed: int, number: int, examples: int, batch: int) -> NDArray[np.int64]:
    """So many batches at once: a generator is slow to make."""
    key = stream_key(seed, f"with replacement {number}", "batch")
    return np.random.Generator(np.random.Philox(key=key)).integers(examples, size=_DRAWN * batch)


class Bout:
    """One training, as its method sees it."""

    def __init__(
        self, problem: Problem, *, value: float, lr: float, steps: int, seed: int, order: str
    ) -> None:
        start = problem.start()
        self.problem = problem
        """Its `layout` and `outputs`; its data are not to be changed."""
        self.value = value
        """Of what the method tunes, from its GRID."""
        self.steps = steps
        """How many there are."""
        self.n = 0
        """The present one, from 1."""
        self.start_rms = float(start.square().mean().sqrt())
        """Root mean square of the starting weights: a scale for σ."""
        self.start_norm = float(start.norm())
        """Their norm: a scale for radii."""
        self.state: dict[str, Any] = {}
        """The method's own. Tensors in it are counted as its bytes."""
        self.gradients = 0
        """How many it has asked for."""
        self._lr, self._seed = lr, seed
        self._start = start
        self._batches = batches(problem.sizes, order, seed)
        self._rows: Tensor | None = None
        self._optimizer = OPTIMIZERS[problem.sizes.optimizer](problem.sizes.momentum)
        self._draws: dict[tuple[str, str], tuple[np.ndarray, Targets]] = {}

    def begin(self, n: int) -> None:
        """The step n begins."""
        self.n, self._rows = n, self._batches(n)

    @property
    def noisy(self) -> bool:
        """False in the last sixth of the steps, where noise is taken out."""
        return self.n <= noisy_steps(self.steps)

    @property
    def lr(self) -> float:
        """The learning rate; it falls linearly to nothing over the last sixth."""
        last = self.steps - noisy_steps(self.steps)
        return self._lr * min(1.0, (self.steps - self.n + 1) / (last + 1))

    @property
    def rows(self) -> Tensor:
        """The examples of this step's batch."""
        everything = torch.arange(self.problem.sizes.examples)
        return everything if self._rows is None else self._rows.clone()

    def gradient(self, at: Tensor, **how: Any) -> Tensor:
        """Of this step's batch, at any weights; counted. `how` goes to the problem's gradient."""
        self.gradients += 1
        return self.problem.gradient(at, self._rows, **how)

    def descend(self, w: Tensor, g: Tensor) -> Tensor:
        """One step of the base optimizer, which keeps its own state."""
        return self._optimizer.step(w, g, self.lr)

    def draw(self, n: int, name: str = "") -> Tensor:
        """ξ_n, unit normals as long as the weights: a function of seed, name and n. ξ_0 = 0."""
        return self._unit(n, name or "weights", "noise", len(self._start))

    def _unit(self, n: int, name: str, purpose: str, size: int) -> Tensor:
        """Draws of a step, by the compiled stream."""
        if (name, purpose) not in self._draws:
            array = np.zeros(size, self._start.numpy().dtype)
            key = stream_key(self._seed, name, purpose)
            self._draws[name, purpose] = array, Targets([array], [key])
        array, targets = self._draws[name, purpose]
        array[:] = 0
        targets.inject(n, [[1.0]])
        return torch.from_numpy(array.copy())

    def draw_labels(self) -> Tensor:
        """Unit normals for the labels of this step's batch, of shape (rows, outputs)."""
        sizes, outputs = self.problem.sizes, self.problem.outputs
        count = (sizes.examples if self._rows is None else len(self._rows)) * outputs
        return self._unit(self.n, "labels", "label", count).view(-1, outputs)

    def tensors(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat vector by the names of the layout, in their shapes."""
        return views(self.problem, flat)

    @property
    def bytes(self) -> int:
        """Of all tensors that are kept between steps beside the weights."""
        kept = [*self.state.values(), *self._optimizer.kept()]
        tensors = [one for one in kept if isinstance(one, Tensor)]
        return sum(one.numel() * one.element_size() for one in tensors)


def views(problem: Problem, flat: Tensor) -> dict[str, Tensor]:
    """A flat vector by the names of the layout, in their shapes; memory is shared."""
    parts = flat.split([prod(shape) for _, shape in problem.layout])
    return {
        name: part.view(shape) for (name, shape), part in zip(problem.layout, parts, strict=True)
    }
