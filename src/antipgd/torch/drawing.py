"""Which draw is in the weights after n steps: held, antithetic, one for each of several passes,
for all layers or one.

Numbers only: knows neither tensors nor streams. ξ_0 = 0, so there is no draw before step 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass


def draw_of(step: int, hold: int) -> int:
    """The draw that the weights carry after `step` steps, each being held for `hold`: ⌈n/hold⌉."""
    return -(-step // hold)


@dataclass(frozen=True)
class Drawing:
    """How draws are shared out over steps, micro-batches, ranks and layers."""

    hold: int = 1
    per: str = "step"
    antithetic: bool = False
    layers: str = "all"

    def number(self, step: int) -> int:
        """Which draw of the stream is the newest after so many steps, its sign apart.

        Antithetic over steps, ξ_{2k} is −ξ_{2k−1}: both are ± the k-th draw of the stream.
        """
        newest = draw_of(step, self.hold)
        return -(-newest // 2) if self.antithetic and self.per == "step" else newest

    def terms(self, step: int, coefficients: Sequence[float]) -> tuple[int, list[float]]:
        """The newest draw of the stream, and the coefficients of it and those before it.

        `coefficients` are those of ξ_d, ξ_{d−1}, … where d = ⌈step/hold⌉.
        """
        newest = draw_of(step, self.hold)
        if not self.antithetic or self.per != "step":
            return newest, list(coefficients)
        pair = self.number(step)
        merged = [0.0] * (len(coefficients) // 2 + 1)
        for lag, coefficient in enumerate(coefficients):
            draw = newest - lag
            if draw >= 1:
                merged[pair - -(-draw // 2)] += coefficient if draw % 2 else -coefficient
        return pair, merged

    def of_pass(self, number: int) -> tuple[int, float]:
        """Which of a step's draws the pass (micro-batch or rank) of this number takes; its sign."""
        if not self.antithetic:
            return number, 1.0
        return number // 2, -1.0 if number % 2 else 1.0


def name_of_draw(name: str, number: int) -> str:
    """What keys the stream of a step's draw of this number: 0 is the one that all forms share."""
    return name if number == 0 else f"{name}@{number}"
