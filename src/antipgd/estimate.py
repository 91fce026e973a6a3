"""An estimate with its own error bar: what every measurement of this package returns.

Knows nothing of what was measured. Needs SciPy only for intervals.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from antipgd.extras import needed_by


@dataclass(frozen=True)
class Estimate:
    """A mean, the standard error of that mean, and the number of independent samples behind it.

    >>> Estimate.of([1.0, 2.0, 3.0, 6.0])
    Estimate(mean=3.0, sem=1.0801234497346432, n=4)
    >>> print(Estimate.of([1.0, 2.0, 3.0, 6.0]))
    3 [-0.437, 6.44], n=4
    """

    mean: float
    sem: float
    n: int
    freedom: float | None = field(default=None, repr=False)
    """Degrees of freedom of `sem`, where they are not n − 1."""

    @classmethod
    def of(cls, samples: Iterable[float]) -> "Estimate":
        """From independent samples; one that is not finite makes the mean so, too."""
        values = [float(sample) for sample in samples]
        n = len(values)
        if n == 0:
            raise ValueError("an estimate needs at least one sample; got none")
        largest = max(map(abs, values))
        if not math.isfinite(largest):
            return cls(sum(values), math.nan, n)  # ±inf, or nan where both or a nan take part
        scale = largest or 1.0  # lest squares of large numbers overflow
        mean = math.fsum(value / scale for value in values) / n
        if n == 1:
            return cls(values[0], math.nan, n)
        variance = math.fsum((value / scale - mean) ** 2 for value in values) / (n - 1)
        return cls(mean * scale, math.sqrt(variance / n) * scale, n)

    @property
    def degrees(self) -> float:
        """Degrees of freedom of `sem`: n − 1 unless it was told otherwise."""
        return self.n - 1 if self.freedom is None else self.freedom

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Student's interval for the mean; not a number where the spread is unknown (n = 1)."""
        with needed_by("an interval"):
            from scipy.special import stdtrit
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1; got {level}")
        if math.isnan(self.sem):
            return math.nan, math.nan
        half = float(stdtrit(self.degrees, (1 + level) / 2)) * self.sem
        return self.mean - half, self.mean + half

    def __str__(self) -> str:
        low, high = self.interval()
        around = "" if math.isnan(low) else f" [{low:.3g}, {high:.3g}]"
        return f"{self.mean:.3g}{around}, n={self.n}"
