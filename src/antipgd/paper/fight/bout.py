"""What a method is given at each step: the gradient, the base optimizer, draws, its value.

A method sees nothing else, and cannot know which seed or problem it is on unless it asks.
"""

from typing import Any, Protocol

from torch import Tensor

from antipgd.paper.fight.problem import Problem


class Bout(Protocol):
    """The interface; `Corner` in `corner.py` is what is behind it."""

    value: float
    """Of what the method tunes, from its GRID."""
    lr: float
    """The learning rate: tuned for the base that has the same order of batches."""
    n: int
    """The step, from 1."""
    steps: int
    """How many there are."""
    noisy: bool
    """False in the last sixth of the steps, where noise is taken out."""
    start_rms: float
    """Root mean square of the starting weights: a scale for σ."""
    start_norm: float
    """Their norm: a scale for radii."""
    rows: Tensor
    """The examples of this step's batch."""
    state: dict[str, Any]
    """Empty at the start; the method's own. Tensors in it are counted as its bytes."""
    problem: Problem
    """Its layout and outputs; its data are not to be changed."""

    def gradient(self, at: Tensor, **how: Any) -> Tensor:
        """Of this step's batch, at any weights; counted. `how` goes to the problem's gradient."""

    def descend(self, w: Tensor, g: Tensor) -> Tensor:
        """One step of the base optimizer, which keeps its own state."""

    def draw(self, n: int, name: str = "") -> Tensor:
        """ξ_n, unit normals as long as the weights: a function of seed, name and n. ξ_0 = 0."""

    def draw_labels(self) -> Tensor:
        """Unit normals for the labels of this step's batch, of shape (rows, outputs)."""

    def tensors(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat vector by the names of the layout, in their shapes."""
