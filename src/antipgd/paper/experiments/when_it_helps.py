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

from collections.abc import Sequence

from antipgd.paper import figures
from antipgd.paper.claims import FAILS, HOLDS, LEVEL, NOT_AT_MINIMUM, Claim
from antipgd.paper.networks.cells import CELLS, Cell, Known, following, settled
from antipgd.paper.networks.minima import Place, better, flatter, gone_on
from antipgd.paper.networks.scales import Scale
from antipgd.paper.networks.spec import Training, trace_at
from antipgd.paper.record import Record
from antipgd.paper.results import Results

SHOWS = (
    "What Anti-PGD adds to GD's test accuracy, and the ratio of flatness (below 1 is flatter), "
    "setting by setting. Dots are means over twelve paired seeds, bars 95 % intervals; the colour "
    "is the verdict."
)
SCALED = True  # a scale says which cells
REFERENCE = "§sec:exp"
SHOWN = {HOLDS: figures.COLOURS["anti"], LEVEL: "#555555", "undecided": "#b0b0b0",
         FAILS: figures.COLOURS["pgd"]}  # fmt: skip
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


def _cells(claims: Sequence[Claim]) -> list[tuple[Cell, Claim, Claim]]:
    """Each cell with what was said of its gain and of its flatness."""
    by = {claim.id.partition(".")[2]: claim for claim in claims}
    return [(cell, by[f"gain_{cell.name}"], by[f"flatter_{cell.name}"])
            for cell in (*CELLS, SMOKE) if f"gain_{cell.name}" in by]  # fmt: skip


def summary(claims: Sequence[Claim]) -> str:
    """The map in a sentence."""
    cells = _cells(claims)
    if not cells:
        return ""
    gains = [gain.verdict for _, gain, _ in cells]
    decided = {verdict: gains.count(verdict) for verdict in (HOLDS, LEVEL, FAILS)}
    gained = [_interval(gain) for _, gain, _ in cells if gain.verdict == HOLDS]
    by = f" (by {' and '.join(gained)} points)" if gained else ""
    flat = sum(flatter.verdict == HOLDS for _, _, flatter in cells)
    return (
        f"Small networks, {len(cells)} settings, trained with Anti-PGD and without noise, tuned "
        f"alike and compared at a minimum: test accuracy rose in {decided[HOLDS]}{by}, fell in "
        f"{decided[FAILS]} and is level, the whole interval within a point, in {decided[LEVEL]}; "
        f"{len(cells) - sum(decided.values())} are undecided or not at a minimum. The minimum was "
        f"flatter in {flat}. Of what is decided at most 5 % is wrong in the mean."
    )


def table(claims: Sequence[Claim]) -> str:
    """The map in a few lines of Markdown."""
    cells = _cells(claims)
    by = {verdict: [_shown(cell, gain) for cell, gain, _ in cells if gain.verdict == verdict]
          for verdict in (HOLDS, LEVEL, FAILS)}  # fmt: skip
    flat = sum(flatter.verdict == HOLDS for _, _, flatter in cells)
    rows = [
        (f"rose: {_list(by[HOLDS])}", len(by[HOLDS])),
        ("level: the whole interval is within ± 1", len(by[LEVEL])),
        (f"fell: {_list(by[FAILS])}", len(by[FAILS])),
        ("undecided, or not at a minimum", len(cells) - sum(map(len, by.values()))),
        ("and of all of them, flatter", flat),
    ]
    head = (
        "small networks, Anti-PGD beside the same training without noise: accuracy, points [95 %]"
    )
    return "\n".join(
        [
            f"| {head} | of {len(cells)} settings |",
            "|---|---|",
            *(f"| {a} | {n} |" for a, n in rows),
        ]
    )


def words(claims: Sequence[Claim]) -> str:
    """The map in a sentence, then use it if, leave it if: what the cells say."""
    cells = _cells(claims)
    if not cells:
        return ""
    said = {
        verdict: _list([_shown(cell, gain) for cell, gain, _ in cells if gain.verdict == verdict])
        for verdict in (HOLDS, LEVEL, FAILS)
    }
    only = [cell.words for cell, gain, flatter in cells
            if gain.verdict in (LEVEL, FAILS) and flatter.verdict == HOLDS]  # fmt: skip
    parts = [
        summary(claims),
        f"Use it if your training is like these, where accuracy rose: {said[HOLDS]}.",
        f"Leave it if it is like these, where it fell: {said[FAILS]}; or was level: {said[LEVEL]}.",
        f"Flatter without a gain: {_list(only)}.",
    ]
    return " ".join(parts)


def _shown(cell: Cell, claim: Claim) -> str:
    return f"{cell.words} ({_interval(claim)})"


def _interval(claim: Claim) -> str:
    return f"{claim.value:+.2f} [{claim.low:.2f}, {claim.high:.2f}]"


def _list(words: Sequence[str]) -> str:
    return "; ".join(words) if words else "none"


def plot(results: Results) -> figures.Figure:
    found = {claim.id.partition(".")[2]: claim for claim in claims(results)}
    cells = [cell for cell, _, _ in _judged(results).values()]
    columns = [
        figures.Column("test accuracy over GD's, points",
                       [_mark(found[f"gain_{cell.name}"]) for cell in cells], 0.0),
        figures.Column("flatness, ratio to GD's",
                       [_mark(found[f"flatter_{cell.name}"]) for cell in cells], 1.0, "log"),
    ]  # fmt: skip
    return figures.rows([cell.words for cell in cells], columns, SHOWN)


def _mark(claim: Claim) -> tuple[float, float, float, str] | str:
    """A mark with its interval where it is at a minimum, in the colour of its verdict."""
    if claim.verdict == NOT_AT_MINIMUM:
        return NOT_AT_MINIMUM
    return claim.value, claim.low, claim.high, SHOWN.get(claim.verdict, SHOWN["undecided"])
