"""target = source + Σ_j c_j ξ_{n−j} for many tensors at once: one read and one write of each.

A *piece* (`antipgd.noise.placement`) is a number of runs of elements that are consecutive in the
parameter, mostly one without gaps in memory; a lane makes one unit of draws. Step, keys and
coefficients are read from the device's memory: a captured graph draws anew when they have changed.
"""

from antipgd.torch.gpu.stream import tl, triton, unit_draws
from antipgd.torch.gpu.tables import Field

(
    AT, START, ROWS, COLUMNS, OUTER_STEP, ROW_STEP, COLUMN_STEP, OUTER_JUMP, ROW_JUMP, PER_RUN,
    LANES_THERE, OWNER,
) = (tl.constexpr(int(field)) for field in Field)  # fmt: skip
FIELDS = tl.constexpr(len(Field))


@triton.jit
def widened(value, Wide: tl.constexpr):
    """A value as the type that is computed in; exact."""
    if value.dtype == tl.bfloat16:  # by its bits: Triton's interpreter truncates
        return (value.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return value.to(Wide)


@triton.jit
def narrowed(value, Kept: tl.constexpr):
    """A value as the type that is kept, rounded to nearest, ties to even."""
    if Kept == tl.bfloat16:
        bits = value.to(tl.int32, bitcast=True)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        nearest = tl.where(value == value, nearest, 0x7FC0)
        return nearest.to(tl.int16).to(tl.bfloat16, bitcast=True)
    return value.to(Kept)


@triton.jit
def add_draws(
    source, target, chunks, pieces, facts, newest, table, taps, power, log_high, log_low, scale,
    LAW: tl.constexpr, UNIT: tl.constexpr, LANES: tl.constexpr, CHUNK: tl.constexpr,
    DOUBLE: tl.constexpr, ONE_RUN: tl.constexpr,
):  # fmt: skip
    """A chunk of at most CHUNK lanes of one piece, LANES at a time."""
    Wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    chunk = chunks + 2 * tl.program_id(0)
    piece = pieces + FIELDS * tl.load(chunk).to(tl.int64)
    first_lane = tl.load(chunk + 1)
    source, target = source + tl.load(piece + AT), target + tl.load(piece + AT)
    start, columns = tl.load(piece + START), tl.load(piece + COLUMNS).to(tl.int32)
    per_run = tl.load(piece + PER_RUN).to(tl.int32)
    lanes = tl.load(piece + LANES_THERE).to(tl.int32)
    fact = facts + 2 * tl.load(piece + OWNER)
    key, coefficients = tl.load(fact), table + tl.load(fact + 1) * taps
    now = tl.load(newest)
    for begin in range(first_lane, min(first_lane + CHUNK, lanes), LANES):
        lane = begin + tl.arange(0, LANES)
        if ONE_RUN:
            first, along = start, lane
        else:
            run, rows = lane // per_run, tl.load(piece + ROWS).to(tl.int32)
            outer, row = (run // rows).to(tl.int64), (run % rows).to(tl.int64)
            first = start + outer * tl.load(piece + OUTER_JUMP) + row * tl.load(piece + ROW_JUMP)
            along = lane % per_run
        unit = first // UNIT + along
        before = (first % UNIT).to(tl.int32)  # elements of the first unit that are not in the run
        column = (along * UNIT - before)[:, None] + tl.arange(0, UNIT)[None, :]
        here = (column >= 0) & (column < columns) & (lane < lanes)[:, None]
        if ONE_RUN:
            place = column
        else:
            run_at = outer * tl.load(piece + OUTER_STEP) + row * tl.load(piece + ROW_STEP)
            place = run_at[:, None] + column * tl.load(piece + COLUMN_STEP)
        w = widened(tl.load(source + place, mask=here), Wide)
        eps = tl.full((LANES, UNIT), -0.0, Wide)  # to which x is added as x, also −0
        for lag in range(taps):
            c = tl.load(coefficients + lag)
            if (c != 0) & (now - lag >= 1):
                xi = unit_draws(unit, key, now - lag, power, log_high, log_low, scale, LAW)
                eps = eps + xi.to(Wide) * c.to(Wide)
        tl.store(target + place, narrowed(w + eps, target.dtype.element_ty), mask=here)
