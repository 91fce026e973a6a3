"""The injections: anticorrelated by exactly one half, and with nothing else

Injections ε_n = ξ_{n+1} − ξ_n of 2,000 steps of 100 coordinates from the noise stream itself, for
three laws: the correlation of successive injections, of more distant ones, of different
coordinates and of different parameters. PGD's injections are independent. No training run is
needed.
"""

from functools import cache

import numpy as np

from antipgd.noise import stream_key
from antipgd.noise.inplace import law_arguments
from antipgd.noise.kernels import draw_into
from antipgd.paper import figures
from antipgd.paper.claims import Claim, near
from antipgd.paper.results import Results
from antipgd.paper.simulation.spec import Run

SHOWS = (
    "Correlation of injections at a lag of so many steps, for three laws. Dots are means over 100 "
    "coordinates, bars their range; dashed: −½."
)
SEEDS = 1
STEPS, COORDINATES = 2000, 100
LAWS = ("gaussian", "rademacher", "laplace")
LAGS = 6


def runs(seeds: int) -> list[Run]:
    return []


@cache
def _draws(law: str, name: str = "w") -> np.ndarray:
    """ξ_1, ξ_2, … by step and coordinate."""
    xi = np.empty((STEPS + 1, COORDINATES), np.float32)
    for n, row in enumerate(xi, 1):
        draw_into(row, np.uint64(stream_key(0, name)), n, 0, law_arguments(law))
    return xi.astype(np.float64)


def _injections(law: str, name: str = "w") -> np.ndarray:
    """(steps, coordinates) of ξ_{n+1} − ξ_n, from step 2 on, where both draws exist."""
    return np.diff(_draws(law, name), axis=0)


def _correlations(eps: np.ndarray, lag: int) -> np.ndarray:
    """For each coordinate, the correlation of ε_n with ε_{n+lag}."""
    a, b = eps[: len(eps) - lag], eps[lag:]
    return (a * b).mean(axis=0) / (eps * eps).mean(axis=0)


def claims(results: Results) -> list[Claim]:
    found = []
    for law in LAWS:
        eps, other = _injections(law), _injections(law, "another")
        norm = (eps * eps).mean(axis=0)
        across = (eps * np.roll(eps, 1, axis=1)).mean(axis=0) / norm
        apart = (eps * other).mean(axis=0) / norm
        tested = f"{law}, {STEPS:,} steps of {COORDINATES} coordinates, the coordinates being n"
        parts = [
            ("lag1", "consecutive injections have correlation −½", _correlations(eps, 1), -0.5),
            ("lag2", "injections two steps apart are uncorrelated", _correlations(eps, 2), 0.0),
            ("lag3", "injections three steps apart are uncorrelated", _correlations(eps, 3), 0.0),
            ("coordinates", "different coordinates are uncorrelated", across, 0.0),
            ("parameters", "different parameters are uncorrelated", apart, 0.0),
        ]
        found += [
            near(f"anticorrelation.{part}_{law}", statement, "eq:def_antiPGD", tested, values,
                 target, 0.02)
            for part, statement, values, target in parts
        ]  # fmt: skip
    return found


def plot(results: Results) -> figures.Figure:
    panels = []
    for law in LAWS:
        eps = _injections(law)
        lags = np.arange(LAGS)
        series = []
        for method, values, aside in (("pgd", _draws(law), -0.08), ("anti", eps, 0.08)):
            table = np.array([_correlations(values, lag) for lag in range(LAGS)])
            series.append(
                figures.Series(lags + aside, table.mean(axis=1), figures.NAMES[method],
                               figures.COLOURS[method], "", "o", table.min(axis=1),
                               table.max(axis=1), bars=True)
            )  # fmt: skip
        series.append(figures.Series([0, LAGS - 1], [-0.5, -0.5], "−½", dash="--"))
        panels.append(
            figures.Panel(f"correlation of injections, {law}", series, "lag in steps", "",
                          "linear", "linear")
        )  # fmt: skip
    return figures.draw(panels)
