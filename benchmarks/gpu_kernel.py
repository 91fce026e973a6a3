"""The GPU kernel compiled for GPUs that are not here: `make gpu-kernel`.

For each law, kind of GPU and layout: registers, spills, fused multiply-adds, and how many
instructions a parameter costs. No GPU is needed: Triton brings NVIDIA's assembler. Instructions are
counted in the machine code (SASS): those between a backward branch and its target are a loop, the
inner loop runs once a draw, the outer once for every 1024 elements of 128 threads; a slow path that
an ordinary number does not take is counted with them. With one tap, as in the forward form, there
is no inner loop. Writes benchmarks/gpu_kernel.json.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from itertools import product
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from antipgd.noise import as_law
from antipgd.torch.gpu.kernel import add_draws
from antipgd.torch.gpu.launching import OPTIONS, constants_of
from antipgd.torch.gpu.tables import ELEMENTS

RESULTS = Path(__file__).with_name("gpu_kernel.json")
LAWS = ("gaussian", "rademacher", "uniform", "laplace", "student-t:5")
GPUS = (80, 90, 100)
TYPES = {
    "float32": (torch.float32, "*fp32"),
    "float64": (torch.float64, "*fp64"),
    "bfloat16": (torch.bfloat16, "*bf16"),
    "float16": (torch.float16, "*fp16"),
}
PER_THREAD = ELEMENTS / (32 * OPTIONS["num_warps"])


def compiled(
    law: str, dtype: str, gpu: int, one_run: bool = True, fused: bool = False, one_tap: bool = False
):
    """The kernel as a launch would have it on such a GPU; `fused` is for tests that must fail.

    `one_tap`: as the forward form launches it with taps (1, −1). Triton compiles a number that is 1
    into the kernel.
    """
    torch_type, pointer = TYPES[dtype]
    constants = constants_of(as_law(law), torch_type, one_run) | ({"taps": 1} if one_tap else {})
    arguments = ("chunks", "pieces", "facts", "newest", "table")
    signature = {"source": pointer, "target": pointer}
    signature |= dict(zip(arguments, ("*i32", "*i64", "*i64", "*i64", "*fp64"), strict=True))
    signature |= {"taps": "i32"} | dict.fromkeys(("power", "log_high", "log_low", "scale"), "fp32")
    signature |= dict.fromkeys(constants, "constexpr")
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(7)}  # as torch allocates
    source = ASTSource(add_draws, signature, constexprs=constants, attrs=aligned)
    options = OPTIONS | {"enable_fp_fusion": fused}
    return triton.compile(source, target=GPUTarget("cuda", gpu, 32), options=options)


def instructions(ptx: str) -> Counter:
    """How often each instruction stands in the text."""
    return Counter(re.findall(r"^\s+(?:@!?%p\d+ )?([a-z][\w.]+)\s", ptx, re.M))


def dumped(cubin: bytes, what: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        return subprocess.run(
            [tool, what, file.name], capture_output=True, text=True, check=True
        ).stdout


def loops(sass: str, one_tap: bool) -> tuple[int, int]:
    """Instructions of the inner loop, and of the outer without it; with one tap there is none."""
    lines = [int(at, 16) for at in re.findall(r"/\*([0-9a-f]{4,5})\*/\s+[@!A-Z]", sass)]
    jumps = re.findall(
        r"/\*([0-9a-f]{4,5})\*/\s+(?:@!?U?P\d+ )?BRA(?:\.\w+)* (?:!?U?P\w+, )?(0x[0-9a-f]+)", sass
    )
    back = [(int(to, 16), int(at, 16)) for at, to in jumps if int(to, 16) < int(at, 16)]
    sizes = sorted(sum(begin <= line <= end for line in lines) for begin, end in back)
    if one_tap:
        return 0, sizes[-1]
    inner, outer = sizes[0], sizes[-1]
    assert len(sizes) >= 2
    return inner, outer - inner


def usage(cubin: bytes) -> dict[str, int]:
    """Registers of a thread, and its bytes of memory: where spills would go."""
    found = re.findall(r"(REG|STACK|LOCAL):(\d+)", dumped(cubin, "-res-usage"))
    return {name: int(number) for name, number in found}


def row(law: str, dtype: str, gpu: int, one_run: bool, one_tap: bool) -> dict:
    found = compiled(law, dtype, gpu, one_run, one_tap=one_tap)
    ptx, cubin = found.asm["ptx"], found.asm["cubin"]
    used, sass = usage(cubin), dumped(cubin, "-sass")
    inner, outer = loops(sass, one_tap)
    return {
        "law": law, "type": dtype, "gpu": f"sm_{gpu}", "one_run": one_run,
        "one_tap": one_tap, "registers": used["REG"], "local_bytes": used["LOCAL"] + used["STACK"],
        "spills": len(re.findall(r"\b(?:STL|LDL)\b", sass)),
        "fma": sum(n for name, n in instructions(ptx).items() if name.startswith("fma")),
        "per_draw": round(inner / PER_THREAD, 1), "per_element": round(outer / PER_THREAD, 1),
    }  # fmt: skip


def main() -> None:
    types = sys.argv[1:] or list(TYPES)
    rows = []
    print(f"{'law':14}{'type':10}{'gpu':8}{'runs':8}{'taps':6}{'registers':>10}{'spills':>8}{'fma':>5}"
          f"{'instructions a draw':>21}{'+ a parameter':>15}")  # fmt: skip
    for dtype in types:
        for law in LAWS:
            for gpu in GPUS:
                for one_run, one_tap in product((True, False), repeat=2):
                    rows.append(r := row(law, dtype, gpu, one_run, one_tap))
                    print(f"{law:14}{dtype:10}{r['gpu']:8}{'one' if one_run else 'several':8}"
                          f"{'one' if one_tap else 'any':6}{r['registers']:>10}"
                          f"{r['spills']:>8}{r['fma']:>5}{r['per_draw']:>21}"
                          f"{r['per_element']:>15}", flush=True)  # fmt: skip
    RESULTS.write_text(json.dumps({"triton": triton.__version__, "rows": rows}, indent=1) + "\n")
    print(f"\nwritten to {RESULTS.name}")


if __name__ == "__main__":
    main()
