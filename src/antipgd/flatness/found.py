"""What the finder of σ found: numbers, a table, a picture, a line."""

import math
from dataclasses import dataclass
from typing import Any

from antipgd.estimate import Estimate
from antipgd.extras import needed_by
from antipgd.flatness.rehearsing import LOWERED, REHEARSED, UNSTABLE

BREAKS = (
    f"training breaks at this learning rate, also with noise {1 / LOWERED[-1]:.0f} times smaller: "
    f"lower it"
)
MASKED = (
    "every answer counts, also those that the loss masks out after reduction='none', if it does: "
    "then give errors="
)


@dataclass(frozen=True, kw_only=True, repr=False)
class FoundSigma:
    """The σ to begin with, and what it was read from.

    `judged` is "errors", the share of answers that are wrong, or "loss". σ costs `share` of
    `scale`, which is that of zero weights less `here`; `low` and `high` bound it by the error of
    the cost. `rows` are (σ, cost, its share of `scale`) for each σ of the grid, `table` is that in
    print. `steps` is how many steps of Anti-PGD from here, rehearsed with full gradients, halve
    that cost; None if 200 did not; `left` of it is left in the last half of them. Both are None
    without a learning rate and for other optimizers than SGD. `enough` says whether the planned
    steps are as many, the fewest that training anew may take. `lowered` is the σ of the rule where
    its noise broke the rehearsal, which that of `sigma` does not; else None. `breaks` says that
    noise 32 times smaller broke it as well, so that the learning rate is at fault.
    `drowns` is what `attach` and `perturb` would warn of at these weights, were σ not found here;
    `masked` says that answers may count which the loss leaves out.
    """

    sigma: float
    low: float
    high: float
    relative: bool
    judged: str
    share: float
    scale: float
    here: float
    loss: float
    rows: tuple[tuple[float, Estimate, float], ...]
    steps: int | None
    left: float | None
    planned: int | None
    lowered: float | None
    drowns: str | None
    masked: str | None = None

    @property
    def breaks(self) -> bool:
        """Whether training breaks at this learning rate, however small the noise."""
        return self.left is not None and self.left > UNSTABLE

    @property
    def enough(self) -> bool | None:
        """Whether the planned steps suffice; None where that is not known."""
        if self.planned is None or self.left is None or self.breaks:
            return None
        if self.steps is None:
            return False if self.planned <= REHEARSED else None
        return self.planned >= self.steps

    @property
    def table(self) -> str:
        """What was measured and found, in lines of text."""
        lines = [f"{'sigma':>10}  {self.judged + ' +':>10}  {'95 % interval':>22}  {'of scale':>8}"]
        for sigma, cost, share in self.rows:
            low, high = cost.interval()
            interval = f"[{low:.3g}, {high:.3g}]"
            lines.append(f"{sigma:10.3g}  {cost.mean:10.3g}  {interval:>22}  {share:8.2g}")
        return "\n".join([*lines, *self._summary])

    @property
    def _summary(self) -> list[str]:
        lines = [f"{self._title} [{self.low:.3g}, {self.high:.3g}]", self._cost]
        if self.lowered is not None:
            lines = [f"{self._title}, lowered from {self.lowered:.3g}", "which breaks training at "
                     "this learning rate; a smaller one takes more noise"]  # fmt: skip
        if self.left is not None:
            lines.append(f"{self._rehearsed}{self._plan}")
        return lines + [said for said in (self.drowns, self.masked) if said is not None]

    @property
    def _cost(self) -> str:
        if self.judged == "errors":
            rise = self.share * self.scale
            return f"there {rise:.1%} more answers are wrong than the {self.here:.1%} without noise"
        return (
            f"there the loss is higher by {self.share:g} of {self.scale:.3g}, from {self.here:.3g}"
        )

    @property
    def _rehearsed(self) -> str:
        if self.breaks:
            return BREAKS
        if self.steps is not None and self.lowered is not None:
            return f"{self.steps} steps from here bring it to half of what the rule allows"
        if self.steps is not None:
            return f"{self.steps} steps from here halve that"
        return f"in {REHEARSED} steps from here it came to {self.left:.0%} of its cost"

    @property
    def _plan(self) -> str:
        if self.enough is None:
            return ""
        return f": the {self.planned:,} planned are {'enough' if self.enough else 'too few'}"

    def __repr__(self) -> str:
        return f"FoundSigma({'; '.join(self._summary)})"

    def __str__(self) -> str:
        return "\n".join(self._summary)

    def metrics(self) -> dict[str, float]:
        """For a log: every single number, without those that are not known."""
        found = {"sigma": self.sigma, "sigma_low": self.low, "sigma_high": self.high,
                 self.judged: self.here, "loss": self.loss, "scale": self.scale,
                 "share": self.share, "steps": self.steps, "left": self.left}  # fmt: skip
        return {name: float(value) for name, value in found.items() if value is not None}

    @property
    def _title(self) -> str:
        return f"{'relative sigma' if self.relative else 'sigma'} {self.sigma:.3g}"

    def plot(self) -> Any:
        """The table as a matplotlib figure."""
        with needed_by("plot()"):
            from matplotlib.figure import Figure
        shown = [(s, one) for s, one, _ in self.rows if 0 < one.mean < math.inf]
        means = [one.mean for _, one in shown]
        reach = [one.mean - one.interval()[0] for _, one in shown]
        figure = Figure(figsize=(5, 3.4), layout="constrained")
        axes = figure.subplots()
        axes.errorbar([s for s, _ in shown], means, reach, fmt="o-", capsize=2)
        axes.axhline(self.share * self.scale, color="grey", linestyle="--")
        axes.axvline(self.sigma, color="grey", linestyle="--")
        judged = "answers made wrong" if self.judged == "errors" else "expected sharpness"
        axes.set(xscale="log", yscale="log", xlabel="sigma", ylabel=judged)
        axes.set_title(f"{self.share:g} of {self.scale:.3g} at {self._title}")
        return figure
