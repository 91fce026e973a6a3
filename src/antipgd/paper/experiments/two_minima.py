"""Two minima: gradient descent ends in a sharp one, Anti-PGD in a flat one

Five examples in 100 dimensions, η = 0.02, σ = 0.05, 60,000 steps, ten seeds. The picture shows
the plane through the start, GD's end and the relaxed end of Anti-PGD (seed 0), and contours of the
loss on it.
"""

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, smaller
from antipgd.paper.results import Results
from antipgd.paper.simulation.spec import Run, make_run

SHOWS = (
    "Training and test loss on the plane through the start, GD's end and the relaxed end of "
    "Anti-PGD, first seed of {seeds}. Darker is higher, on a logarithmic scale."
)
SEEDS = 10
STEPS = 60_000
PROBLEM, SETTINGS = "quadratic_regression", {"n": 5}


def runs(seeds: int) -> list[Run]:
    return [
        make_run(PROBLEM, SETTINGS, method, lr=0.02, sigma=0.05, steps=STEPS, seed=seed)
        for method in ("gd", "anti")
        for seed in range(seeds)
    ]


def claims(results: Results) -> list[Claim]:
    return [
        smaller(
            f"two_minima.{short}",
            f"Anti-PGD ends in a minimum with a lower {figures.MEASURES[measure]} than GD's",
            "fig:page1",
            f"{figures.MEASURES[measure]} relaxed from step {STEPS:,}",
            results.final(measure, "relaxed", method="anti"),
            results.final(measure, "relaxed", method="gd"),
        )
        for measure, short in (("test_loss", "test"), ("trace", "trace"))
    ]


def plot(results: Results) -> figures.Figure:
    gd, anti = (results.select(method=method, seed=0)[0] for method in ("gd", "anti"))
    problem = gd.run.make_problem()
    data, start = gd.run.make_data(problem), gd.run.make_start(problem)
    sharp, flat = (np.array(record.weights["relaxed"]) for record in (gd, anti))
    along = flat - sharp
    length = np.linalg.norm(along)
    along /= length
    aside = start - sharp
    aside -= (aside @ along) * along
    aside /= np.linalg.norm(aside)
    x, y = (
        np.linspace(-0.5 * length, 1.5 * length, 161),
        np.linspace(-0.9 * length, 0.9 * length, 145),
    )
    W = sharp + x[None, :, None] * along + y[:, None, None] * aside
    flatW = W.reshape(-1, W.shape[-1])
    marks = [
        figures.Series([at @ along], [at @ aside], label, colour, dash="", marker=marker)
        for label, colour, marker, at in (
            ("start", figures.THEORY, "s", start - sharp),
            (f"GD's end, trace {_trace(gd):.0f}", figures.COLOURS["gd"], "*", sharp - sharp),
            (
                f"Anti-PGD's end, trace {_trace(anti):.0f}",
                figures.COLOURS["anti"],
                "*",
                flat - sharp,
            ),
        )
    ]
    panels = [
        figures.Panel(
            title, marks, "from GD's end to Anti-PGD's", "towards the start", "linear", "linear",
            surface=(x, y, values.reshape(len(y), len(x))),
        )
        for title, values in (
            ("training loss", problem.loss(flatW, data)),
            ("test loss", problem.test_loss(flatW, data)),
        )
    ]  # fmt: skip
    return figures.draw(panels, height=3.2)


def _trace(record: object) -> float:
    return float(record.column("trace", "relaxed")[1][-1])  # type: ignore[attr-defined]
