"""What the noise costs from ten million to a trillion parameters, computed: `make cost`.

CPUs: the measured time of a parameter (benchmarks/results.json) times their number. GPUs, of which
none was there: the larger of bytes over bandwidth and instructions over what a GPU can issue, with
the instructions of the compiled kernel (benchmarks/gpu_kernel.json) and the makers' data of three
GPUs. Writes docs/cost.md, and the table of the compiled kernel into docs/gpu.md.
"""

import json
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE, GPU_PAGE = ROOT / "docs" / "cost.md", ROOT / "docs" / "gpu.md"
BEGIN, END = "<!-- kernel begins -->", "<!-- kernel ends -->"
SIZES = tuple(10**n for n in range(7, 13))
RESNET18 = 11_173_962  # parameters of the 62 tensors that were measured
PER_CLOCK = 64  # instructions of threads: the rate of integer multiplies, half of what is issued


TEXT = """# What the noise costs, from ten million to a trillion parameters

Written by `make cost` (`benchmarks/cost.py`). **Every time in these tables is computed**; no
training of these sizes was measured. Taps (1, −1): noise in the weights makes two draws for each
parameter and step; the forward form makes one for each parameter and pass.

## One CPU core

The measured time of one parameter (last row; `make bench`, one thread, float32) times their number.
Cores share the work: the draw of an element depends on no other.

{cpu}

## One GPU

No GPU was there to measure on. The larger of two bounds: the bytes that the kernel moves (8 for a
float32 parameter in either form, 4 for bfloat16: one read, one write) over the bandwidth, and the
instructions of its machine code ([counted](gpu.md), weights without gaps in memory) over
{per_clock} a clock and processor, the rate of integer multiplies. Neither launches nor latency are
in it, which rule where tensors are small. Data of the GPUs as published: {gpus}.

gaussian:

{gaussian}

rademacher:

{rademacher}

The instructions cost more than the memory: the draws are what is paid for, and rademacher's are
the cheapest. Where it is the memory: {bound}.

## Memory

Nothing is kept between steps in either form. In the forward form a copy w is there from forward to
backward (`memory="keep"`), or one layer's at a time with `memory="recompute"`, which draws twice.

{memory}

## On many GPUs

- *In the weights*: each rank adds noise to its own shards, so the times above are divided by the
  number of shards (FSDP2, tensor parallel); with DDP each rank adds all of it.
- *Forward*: each rank forms all the weights that it reads. FSDP2 gathers them layer by layer, and
  the noise is formed on what was gathered: the times are not divided by the number of ranks, and
  are paid for every micro-batch. Tensor parallel ranks form their own part.
- Both scale with the number of parameters as the training itself does. A pass with its backward
  over T tokens takes 6T operations for a parameter; forming it in bfloat16 takes {shares}
  ({names}), computed.
"""


class Gpu(NamedTuple):
    name: str
    kind: str
    bandwidth: float  # bytes a second
    processors: int
    clock: float  # Hz

    @property
    def rate(self) -> float:
        """Instructions a second."""
        return self.processors * PER_CLOCK * self.clock


GPUS = (
    Gpu("A100 80 GB SXM", "sm_80", 2.04e12, 108, 1.41e9),
    Gpu("H100 SXM", "sm_90", 3.35e12, 132, 1.98e9),
    Gpu("B200", "sm_100", 7.7e12, 148, 1.98e9),
)


class Way(NamedTuple):
    """A form in one type: how many draws it makes, and bytes that are read and written."""

    name: str
    dtype: str
    draws: int
    bytes: int


WAYS = (
    Way("in the weights, float32", "float32", 2, 8),  # ξ_{n+1} in, ξ_n out
    Way("forward, float32", "float32", 1, 8),
    Way("forward, bfloat16", "bfloat16", 1, 4),
)
LAWS = ("gaussian", "rademacher")


def results(name: str) -> dict:
    return json.loads((ROOT / "benchmarks" / name).read_text())


def cpu_ns(form: str, law: str) -> float:
    """Measured nanoseconds of a parameter on one core, float32."""
    found = results("results.json")
    if form == "in the weights":
        ways = [("one of 1e8", 1, f"antipgd {law}")]
        rows = [r for r in found["rows"] if (r["problem"], r["threads"], r["way"]) in ways]
        return rows[0]["ns_per_parameter"]
    rows = [r for r in found["forms"]["rows"] if r["way"] == f"forming {law}"]
    (seconds,) = [r["seconds"] for r in rows if r["part"] == "resnet18"]
    return seconds / RESNET18 * 1e9


CASE = ("law", "type", "gpu", "one_run", "one_tap")


def gpu_seconds(way: Way, law: str, gpu: Gpu) -> tuple[float, float]:
    """Of one parameter: by memory alone, and by instructions alone."""
    wanted = (law, way.dtype, gpu.kind, True, way.draws == 1)
    rows = results("gpu_kernel.json")["rows"]
    (row,) = [r for r in rows if tuple(r[name] for name in CASE) == wanted]
    count = way.draws * row["per_draw"] + row["per_element"]
    return way.bytes / gpu.bandwidth, count / gpu.rate


def text(seconds: float) -> str:
    """Two digits and a unit."""
    for unit, size in (("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        value = float(f"{seconds / size:.2g}")
        if value >= (2 if unit == "min" else 1) or unit == "µs":
            return f"{value:.2g} {unit}" if value < 10 else f"{value:.0f} {unit}"
    raise AssertionError


def cpu_table() -> list[str]:
    lines = ["| parameters | " + " | ".join(f"{form}, {law}" for form, law in CPU_WAYS) + " |",
             "|---" * (1 + len(CPU_WAYS)) + "|"]  # fmt: skip
    lines += [
        f"| {power(n)} | " + " | ".join(text(n * cpu_ns(*way) * 1e-9) for way in CPU_WAYS) + " |"
        for n in SIZES
    ]
    each = " | ".join(f"{cpu_ns(*way):.2f} ns" for way in CPU_WAYS)
    return [*lines, f"| one, measured | {each} |"]


CPU_WAYS = [(form, law) for form in ("in the weights", "forward") for law in LAWS]


def power(n: int) -> str:
    return "10" + "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(len(str(n)) - 1))


def gpu_table(law: str) -> list[str]:
    columns = [(way, gpu) for way in WAYS for gpu in GPUS]
    lines = ["| parameters | " + " | ".join(f"{way.name}: {gpu.name}" for way, gpu in columns)
             + " |", "|---" * (1 + len(columns)) + "|"]  # fmt: skip
    each = [gpu_seconds(way, law, gpu) for way, gpu in columns]
    for n in SIZES:
        lines.append(f"| {power(n)} | " + " | ".join(text(n * max(pair)) for pair in each) + " |")
    for name, which in (("one, memory alone", 0), ("one, instructions alone", 1)):
        cells = " | ".join(f"{pair[which] * 1e12:.2g} ps" for pair in each)
        lines.append(f"| {name} | {cells} |")
    return lines


def memory_table() -> list[str]:
    def size(n: int, each: int) -> str:
        value, unit = n * each / 1e9, "GB"
        return f"{value * 1000:.0f} MB" if value < 1 else f"{value:,.0f} {unit}"

    more = " | ".join(f"{way.name}: more" for way in WAYS)
    lines = [f"| parameters | the weights in float32 | {more} |", "|---|---|---|---|---|"]
    return lines + [
        f"| {power(n)} | {size(n, 4)} | 0 | {size(n, 4)} | {size(n, 2)} |" for n in SIZES
    ]


def bound_by_memory() -> list[str]:
    """The cells in which the memory costs more than the instructions."""
    cells = [(law, way, gpu) for law in LAWS for way in WAYS for gpu in GPUS]
    found = [(cell, gpu_seconds(cell[1], cell[0], cell[2])) for cell in cells]
    return [
        f"{law}, {way.name}, {gpu.name}"
        for (law, way, gpu), (memory, instructions) in found
        if memory >= instructions
    ]


def page() -> str:
    gpus = ", ".join(
        f"{g.name} ({g.bandwidth / 1e12:.3g} TB/s, {g.processors} × {g.clock / 1e9:.3g} GHz)"
        for g in GPUS
    )
    shares = [f"{max(gpu_seconds(WAYS[2], 'gaussian', gpu)) * 1e12:.2g} ps" for gpu in GPUS]
    return TEXT.format(
        cpu="\n".join(cpu_table()), gaussian="\n".join(gpu_table("gaussian")), gpus=gpus,
        rademacher="\n".join(gpu_table("rademacher")), memory="\n".join(memory_table()),
        bound="; ".join(bound_by_memory()) or "nowhere",
        per_clock=PER_CLOCK, shares=", ".join(shares), names=", ".join(g.name for g in GPUS),
    )  # fmt: skip


def kernel_table() -> str:
    """Registers and spills of the compiled kernel, in Markdown."""
    found = results("gpu_kernel.json")
    gpus = " | ".join(f"{g.kind}: registers, spills, fma" for g in GPUS)
    lines = [f"Triton {found['triton']}.", ""]
    lines.append(f"| law | type | runs | taps | {gpus} | instructions a draw, and a parameter |")
    lines.append("|---" * (5 + len(GPUS)) + "|")
    kinds: dict[tuple, list[dict]] = {}
    for row in found["rows"]:
        kinds.setdefault(tuple(row[name] for name in CASE if name != "gpu"), []).append(row)
    for (law, dtype, one_run, one_tap), rows in kinds.items():
        cells = [f"{r['registers']}, {r['spills']}, {r['fma']}" for r in rows]
        draws = " · ".join(instructions(r) for r in rows)
        runs, taps = "one" if one_run else "several", "one" if one_tap else "any"
        lines.append(f"| {law} | {dtype} | {runs} | {taps} | {' | '.join(cells)} | {draws} |")
    return "\n".join(lines)


def instructions(row: dict) -> str:
    """Those of a draw and those besides, or all where there is one draw."""
    besides = f"{row['per_element']:.0f}"
    return besides if row["one_tap"] else f"{row['per_draw']:.0f} + {besides}"


def with_table(text_: str) -> str:
    """The page about the kernel with its table as it was last computed."""
    before, rest = text_.split(BEGIN)
    return f"{before}{BEGIN}\n{kernel_table()}\n{END}{rest.split(END)[1]}"


def main() -> None:
    PAGE.write_text(page(), "utf-8")
    GPU_PAGE.write_text(with_table(GPU_PAGE.read_text("utf-8")), "utf-8")
    print(page())
    print(kernel_table())


if __name__ == "__main__":
    main()
