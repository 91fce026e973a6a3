"""Student and teacher: a network that decides in minutes where noise helps

(Ours.) Forty ReLU units, 440 weights and no norm, learn a teacher of 1 to 40 units from 30, 60 and
120 examples with ten inputs, fewer than there are weights, and from 440, as many. Squared loss. PGD
and Anti-PGD: 1,500 steps of GD, 6,000 noisy ones, 5,000 clean ones, η = 0.1; GD and SGD of batch 4
take as many steps, SGD from the start, because it has no noise where GD has converged. Judged is
the end, where every arm is without noise and a minimum is a training loss of at most 0.2 % of that
of a network that says zero. σ of PGD and Anti-PGD and the learning rate of GD and SGD are the best
of five values for each teacher and n, by the mean loss on held-out examples of two other seeds, at
a minimum. Where the best is at the end of its grid, the next learning rate (GD 0.5, SGD 0.2)
diverges in many seeds, and less noise makes PGD gradient descent. Flatter means a lower trace and a
lower effective sharpness at η = 0.1, both from the Hessian in closed form. A unit is active if
|v|‖u‖ is above 1 % of the largest. Bands and bars: one standard deviation. Nothing was changed
after the judged seeds were seen; grids and η were chosen on others. Changed after the result was
seen: whether the test loss follows the trace is not at a minimum where a run is at none (with 440
examples it had been undecided).
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipgd.paper import figures
from antipgd.paper.claims import HOLDS, Claim, mostly, not_at_minimum
from antipgd.paper.record import Record
from antipgd.paper.results import Results, Values
from antipgd.paper.simulation import tuned
from antipgd.paper.simulation.problems import Setting, StudentTeacher
from antipgd.paper.simulation.problems.student_teacher import Data
from antipgd.paper.simulation.spec import Run, make_run
from antipgd.paper.simulation.tuned import HELD_OUT, SHARE, Arm

SHOWS = (
    "First row: test loss, trace and active units against the step. Below, the same at the end "
    "against the teacher's size, a row for each number of examples. Means over {seeds} seeds, "
    "bands and bars one standard deviation."
)
JUDGING = 18  # seconds, for the bar
SEEDS = 8
FIRST, TUNING = 100, (0, 1)
PROBLEM, TEST = "student_teacher", 500
TEACHERS, COUNTS = (1, 2, 5, 10, 40), (30, 60, 120, 440)
SHOWN = (2, 60)  # teacher and n of the curves against steps
ETA, BATCH = 0.1, 4
DESCENT, NOISY, CLEAN = 1_500, 6_000, 5_000
STEPS = DESCENT + NOISY + CLEAN
ARMS = {
    "gd": Arm("gd", "lr", (0.1, 0.2, 0.3, 0.35, 0.4)),
    "sgd": Arm("sgd", "lr", (0.05, 0.075, 0.1, 0.125, 0.15)),
    "pgd": Arm("pgd", "sigma", (0.00125, 0.0025, 0.005, 0.01, 0.02)),
    "anti": Arm("anti", "sigma", (0.02, 0.04, 0.08, 0.16, 0.32)),
}
RIVALS = ("gd", "sgd", "pgd")
Cell = tuple[int, int]  # teacher and n
# What the tuning seeds chose, by teacher and n, in the order of the arms.
CHOSEN: dict[Cell, tuple[float, ...]] = {
    (1, 30): (0.4, 0.15, 0.00125, 0.16),
    (1, 60): (0.4, 0.15, 0.00125, 0.16),
    (1, 120): (0.4, 0.125, 0.0025, 0.16),
    (1, 440): (0.35, 0.15, 0.01, 0.08),
    (2, 30): (0.3, 0.125, 0.00125, 0.16),
    (2, 60): (0.35, 0.15, 0.0025, 0.16),
    (2, 120): (0.4, 0.15, 0.01, 0.16),
    (2, 440): (0.35, 0.15, 0.005, 0.08),
    (5, 30): (0.35, 0.075, 0.00125, 0.08),
    (5, 60): (0.4, 0.15, 0.00125, 0.08),
    (5, 120): (0.4, 0.15, 0.005, 0.08),
    (5, 440): (0.4, 0.15, 0.00125, 0.16),
    (10, 30): (0.3, 0.15, 0.00125, 0.04),
    (10, 60): (0.4, 0.15, 0.005, 0.08),
    (10, 120): (0.4, 0.15, 0.005, 0.08),
    (10, 440): (0.4, 0.15, 0.0025, 0.08),
    (40, 30): (0.3, 0.05, 0.00125, 0.04),
    (40, 60): (0.3, 0.15, 0.00125, 0.08),
    (40, 120): (0.35, 0.15, 0.0025, 0.04),
    (40, 440): (0.4, 0.15, 0.005, 0.08),
}


def _run(cell: Cell, name: str, value: float, seed: int, tuning: bool) -> Run:
    arm, (teacher, n) = ARMS[name], cell
    lr, sigma = arm.settings(value, ETA)
    settings: dict[str, Setting] = {
        "teacher": teacher,
        "n": n,
        "test": TEST,
        "held_out": HELD_OUT[tuning],
    }
    measure = () if tuning else tuple(range(0, STEPS, 500))
    return make_run(PROBLEM, settings, arm.method, lr=lr, sigma=sigma, steps=STEPS, seed=seed,
                    measure=measure, relax=False,
                    batch=BATCH if name == "sgd" else None, start=DESCENT,
                    stop=DESCENT + NOISY)  # fmt: skip


def tuning_runs() -> list[Run]:
    """Every value of every grid on the tuning seeds."""
    return [
        _run((teacher, n), name, value, seed, True)
        for teacher in TEACHERS
        for n in COUNTS
        for name, arm in ARMS.items()
        for value in arm.grid
        for seed in TUNING
    ]


def runs(seeds: int) -> list[Run]:
    judged = [
        _run(cell, name, value, seed, False)
        for cell, values in CHOSEN.items()
        for name, value in zip(ARMS, values, strict=True)
        for seed in range(FIRST, FIRST + seeds)
    ]
    return judged + tuning_runs()


def _opened(record: Record) -> tuple[StudentTeacher, Data]:
    problem = record.run.make_problem()
    assert isinstance(problem, StudentTeacher)
    return problem, record.run.make_data(problem)


def is_there(record: Record) -> bool:
    """Whether the end of a run is at a minimum."""
    if record.status == "diverged":
        return False
    problem, data = _opened(record)
    return bool(record.column("train_loss", "w")[1][-1] <= SHARE * problem.loss_of_nothing(data))


def score(record: Record) -> float:
    """What tuning makes small: the loss on held-out examples, at a minimum only."""
    return tuned.held_out_loss(record) if is_there(record) else np.inf


def _sharpness(record: Record) -> float:
    """Effective sharpness at the end."""
    if record.status == "diverged":
        return np.inf
    problem, data = _opened(record)
    H = problem.hessian(np.array(record.weights["w"]), data)
    return tuned.effective_sharpness(np.linalg.eigvalsh(H).astype(np.float64), ETA)


class _End:
    """The ends of an arm in a cell, by seed; infinite where a run diverged."""

    def __init__(self, records: list[Record]) -> None:
        self.test, self.trace = (Results(records).final(one) for one in ("test_loss", "trace"))
        self.sharpness = np.array([_sharpness(record) for record in records])
        self.there: NDArray[np.bool_] = np.array([is_there(record) for record in records])


def _judged(results: Results, cell: Cell, name: str) -> list[Record]:
    return results.select(method=name, teacher=cell[0], n=cell[1], held_out=HELD_OUT[False])


def _chosen(results: Results, cell: Cell) -> dict[str, float]:
    """What the tuning seeds choose, by arm."""
    return {
        name: tuned.best(results, arm, score, teacher=cell[0], n=cell[1])
        for name, arm in ARMS.items()
    }


MEASURES = {
    "test": "a lower test loss",
    "trace": "a smaller trace of the Hessian",
    "sharpness": f"a lower effective sharpness at η = {ETA}",
}


def _compare(cell: Cell, ends: dict[str, _End], rival: str, measure: str, note: str) -> Claim:
    teacher, n = cell
    name, words = figures.NAMES[rival], MEASURES[measure]
    ours, theirs = (getattr(ends[arm], measure) for arm in ("anti", rival))
    named = (
        f"student_teacher.{measure}_{teacher}_{n}_{rival}",
        f"(ours) teacher of {teacher}, {n} examples: Anti-PGD ends with {words} than {name}",
        "§sec:exp",
    )
    values = zip(ARMS, CHOSEN[cell], strict=True)
    used = ", ".join(ARMS[arm].said(value) for arm, value in values if arm in ("anti", rival))
    means = tuned.geometric_means(("anti", ours), (rival, theirs))
    tested = f"at the end, step {STEPS:,}, {used}; {means}{note}"
    return tuned.judge_ratio(named, tested, ours, theirs, (ends["anti"].there, ends[rival].there))


def _cell_claims(results: Results, cell: Cell, ends: dict[str, _End]) -> list[Claim]:
    """Flatness first: where it is there and the test loss does not follow, that is said."""
    used = dict(zip(ARMS, CHOSEN[cell], strict=True))
    note = tuned.untuned(_chosen(results, cell), used)
    found = []
    for rival in RIVALS:
        flat = [_compare(cell, ends, rival, m, note) for m in ("trace", "sharpness")]
        test = _compare(cell, ends, rival, "test", note)
        if flat[0].verdict == HOLDS and test.verdict != HOLDS:
            beside = f"; the trace falls ({flat[0].value:.2g} of it) and the gain does not follow"
            test = replace(test, tested=test.tested + beside)
        found += [test, *flat]
    return found


def _followed(n: int, every: dict[Cell, dict[str, _End]]) -> Claim:
    """Among the runs where the trace is lower than GD's, how often the test loss is, too; not at a
    minimum where one of them is at none."""
    cells = [ends for (_, count), ends in every.items() if count == n]
    hits = [
        ends["anti"].test[i] < ends["gd"].test[i]
        for ends in cells
        for i in range(len(ends["gd"].test)) if ends["anti"].trace[i] < ends["gd"].trace[i]
    ]  # fmt: skip
    what = (f"student_teacher.follows_{n}", f"(ours) with {n} examples, where Anti-PGD's trace is "
            "below GD's, its test loss is, too", "§sec:conection_pacbayes",
            f"share of the seeds of all teachers with a lower trace, step {STEPS:,}")  # fmt: skip
    if not all(all(ends[arm].there) for ends in cells for arm in ("anti", "gd")):
        return not_at_minimum(*what, np.asarray(hits or [False], np.float64))
    return mostly(*what, hits or [False])


def claims(results: Results) -> list[Claim]:
    every = {cell: {name: _End(_judged(results, cell, name)) for name in ARMS} for cell in CHOSEN}
    found = [claim for cell in CHOSEN for claim in _cell_claims(results, cell, every[cell])]
    return found + [_followed(n, every) for n in COUNTS]


_SHOWN = {"test_loss": "test loss", "trace": "trace of the Hessian", "watched": "active units"}


def _against_steps(results: Results, measure: str) -> figures.Panel:
    teacher, n = SHOWN
    series = [
        figures.method_series(results, measure, name, teacher=teacher, n=n,
                              held_out=HELD_OUT[False])
        for name in ARMS
    ]  # fmt: skip
    title = f"{_SHOWN[measure]} at w, teacher of {teacher}, n = {n}"
    yscale = "linear" if measure == "watched" else "log"
    return figures.Panel(title, series, xscale="linear", yscale=yscale)


def _against_teachers(results: Results, measure: str, n: int) -> figures.Panel:
    series = []
    for i, name in enumerate(ARMS):
        table = np.array([
            Results(_judged(results, (teacher, n), name)).final(measure) for teacher in TEACHERS
        ])  # fmt: skip
        x = np.arange(len(TEACHERS), dtype=np.float64) + 0.08 * (i - 1.5)
        series.append(_dots(x, table, name, measure))
    ticks = [(float(i), str(teacher)) for i, teacher in enumerate(TEACHERS)]
    yscale = "linear" if measure == "watched" else "log"
    title = f"{_SHOWN[measure]} at the end, n = {n}"
    return figures.Panel(title, series, "units of the teacher", "", "linear", yscale, ticks=ticks)


def _dots(x: Values, table: Values, name: str, measure: str) -> figures.Series:
    """Means over seeds with one deviation, geometric where the axis is logarithmic."""
    with np.errstate(all="ignore"):
        logs = table if measure == "watched" else np.log(table)
        mean, reach = logs.mean(axis=1), logs.std(axis=1, ddof=1)
        edges: list[Any] = [mean, mean - reach, mean + reach]
        if measure != "watched":
            edges = [np.exp(edge) for edge in edges]
    return figures.Series(x, edges[0], figures.NAMES[name], figures.COLOURS[name], "-", "o",
                          edges[1], edges[2], bars=True)  # fmt: skip


def plot(results: Results) -> figures.Figure:
    panels = [_against_steps(results, measure) for measure in _SHOWN]
    panels += [_against_teachers(results, measure, n) for n in COUNTS for measure in _SHOWN]
    return figures.draw(panels, columns=3, width=3.8)
