"""(Ours.) When does it help?

A small network on 250 images, GD and Anti-PGD with noise in the first five sevenths of the epochs,
and each of these varied alone: data, number of images, batch, norm, loss, width, length, optimizer,
network; also norm × loss and images × batch. In every cell GD's learning rate and then σ are tuned
with as many values and seeds, on other seeds and images; judged at a minimum, at the end, with
twelve seeds. Gains are points of test accuracy; flatness is the ratio of the scaled traces at a
training loss of 0.01 by temperature, with the squared loss that of the traces. With so many cells
some would stand out by chance: of those that are decided, level ones too, a share of at most 5 % is
wrong in the mean (Benjamini and Hochberg). Changed after tuning runs were seen, before any judged
one: a value whose training does not end at a minimum cannot be chosen by its accuracy, and σ is
tried again where a longer grid finds a better learning rate.
"""

import textwrap
from collections.abc import Sequence

from antipgd.paper import figures
from antipgd.paper.claims import FAILS, HOLDS, LEVEL, NOT_AT_MINIMUM, Claim
from antipgd.paper.networks.cells import CELLS, Cell, Known, following, settled
from antipgd.paper.networks.minima import Place, better, flatter, gone_on
from antipgd.paper.networks.scales import Scale
from antipgd.paper.networks.spec import Training, trace_at
from antipgd.paper.record import Record
from antipgd.paper.results import Results

SCALED = True  # a scale says which cells
REFERENCE = "§sec:exp"
SMOKE = Cell(
    "smoke", "base", "a few digits", {}, {"gd": (0.05, 0.1), "anti": (0.01, 0.02)}, {}, 2, 1, 2,
    {"data": "digits", "model": "lenet", "width": 2, "images": 100, "batch": 20, "norm": "none",
     "epochs": 3, "noise_stop": 2},
)  # fmt: skip


def cells_of(scale: Scale | None) -> list[Cell]:
    """The cells of a scale: all, those it names, or none."""
    if scale is None or "all" in scale.cells:
        return [*CELLS]
    return [cell for cell in (SMOKE, *CELLS) if cell.name in scale.cells]


def runs(seeds: int | None = None, scale: Scale | None = None) -> list[Training]:
    return following(cells_of(scale), [])


def more(records: Sequence[Record], scale: Scale | None = None) -> list[Training]:
    return following(cells_of(scale), records)


def _judged(results: Results) -> dict[str, tuple[Cell, Place, Place]]:
    """Of every cell whose trainings are there: Anti-PGD's and GD's, extended where they were."""
    known, names = Known(results.records), {record.run.name for record in results.records}
    smoke = any(record.run.width == SMOKE.base["width"] for record in results.records)
    found: dict[str, tuple[Cell, Place, Place]] = {}
    for cell in [SMOKE] if smoke else CELLS:
        if not any(run.name in names for run in cell.tuning("gd")):
            continue
        main = known(settled(cell, known).judged())
        last = gone_on(main, results.records)
        by = {arm: [r for r in last if r.run.method == arm] for arm in ("anti", "gd")}
        found[cell.name] = cell, (by["anti"], None), (by["gd"], None)
    return found


def _measure(cell: Cell) -> tuple[str, str]:
    if {**cell.base, **cell.changes}.get("loss") == "squared":
        return "trace", "trace of the Hessian"
    return trace_at(0.01), "scaled trace at training loss 0.01"


def claims(results: Results) -> list[Claim]:
    found = []
    for name, (cell, anti, gd) in _judged(results).items():
        chosen = f"η {gd[0][0].run.lr:g}, σ {anti[0][0].run.sigma:g}"
        measure, words = _measure(cell)
        found += [
            better(f"when_it_helps.gain_{name}", f"(ours) {cell.words}: Anti-PGD is better than GD",
                   REFERENCE, f"at the end, {chosen}", anti, gd),
            flatter(f"when_it_helps.flatter_{name}", f"(ours) {cell.words}: and flatter", REFERENCE,
                    f"{words}, at the end, {chosen}", measure, anti, gd),
        ]  # fmt: skip
    return found


def words(claims: Sequence[Claim]) -> str:
    """Use it if, leave it if: what the cells say."""
    by = {claim.id.partition(".")[2]: claim for claim in claims}
    gains = [(cell, by[f"gain_{cell.name}"]) for cell in (*CELLS, SMOKE)
             if f"gain_{cell.name}" in by]  # fmt: skip
    said: dict[str, list[str]] = {HOLDS: [], LEVEL: [], FAILS: []}
    for cell, claim in gains:
        if claim.verdict in said:
            said[claim.verdict].append(_shown(cell, claim))
    rest = len(gains) - sum(map(len, said.values()))
    flatter_cells = [cell for cell, _ in gains if by[f"flatter_{cell.name}"].verdict == HOLDS]
    only = [cell.words for cell, claim in gains
            if claim.verdict in (LEVEL, FAILS) and cell in flatter_cells]  # fmt: skip
    parts = [
        f"Use it if your training is like these, where it gained: {_list(said[HOLDS])}.",
        f"Leave it if it is like these, where it lost: {_list(said[FAILS])};"
        f" or made no difference of a point: {_list(said[LEVEL])}.",
        f"{rest} of {len(gains)} cells are undecided or not at a minimum.",
        f"Flatter without a gain: {_list(only)}.",
    ]
    return " ".join(parts)


def _shown(cell: Cell, claim: Claim) -> str:
    return f"{cell.words} ({claim.value:+.1f} [{claim.low:.1f}, {claim.high:.1f}])"


def _list(words: Sequence[str]) -> str:
    return "; ".join(words) if words else "none"


def plot(results: Results) -> figures.Figure:
    found = {claim.id.partition(".")[2]: claim for claim in claims(results)}
    cells = [cell for cell, _, _ in _judged(results).values()]
    panels = [_panel(cells, [found[f"gain_{cell.name}"] for cell in cells],
                     "test accuracy over GD's, points, at minima", 0.0, "linear"),
              _panel(cells, [found[f"flatter_{cell.name}"] for cell in cells],
                     "flatness at minima, ratio to GD's", 1.0, "log")]  # fmt: skip
    return figures.draw(panels, columns=1, width=11.0, height=3.4)


def _panel(
    cells: list[Cell], shown: list[Claim], title: str, level: float, scale: str
) -> figures.Panel:
    """A mark with its interval for each cell that is at a minimum."""
    there = [(at, claim) for at, claim in enumerate(shown) if claim.verdict != NOT_AT_MINIMUM]
    marks = figures.Series(
        [at for at, _ in there], [claim.value for _, claim in there], "Anti-PGD",
        figures.COLOURS["anti"], "", "o", [claim.low for _, claim in there],
        [claim.high for _, claim in there], bars=True,
    )  # fmt: skip
    line = figures.Series([-0.5, len(cells) - 0.5], [level] * 2, dash=":")
    ticks = [(float(at), textwrap.fill(cell.words, 14)) for at, cell in enumerate(cells)]
    return figures.Panel(title, [marks, line], "", "", "linear", scale, ticks=ticks)
