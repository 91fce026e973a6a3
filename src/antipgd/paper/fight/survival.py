"""What is left of a trained network after rounding, noise and a second task; and how flat it is."""

from torch import Tensor

from antipgd.paper.fight.problem import Network


def survive(problem: Network, w: Tensor, *, lr: float, seed: int) -> dict[str, float]:
    """Columns by name, of the weights that were judged; asked once at the end of a judged bout.

    `lr` is the learning rate of the base, `seed` that of the bout. Draws come from the noise stream,
    never from global generators.
    """
    return {}
