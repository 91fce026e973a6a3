"""The kernel compiled for GPUs that are not here: no fused multiply-add, a correctly rounded √.

In a process of its own, because these tests' Triton interprets. A fused multiply-add would draw
other bits; that these tests would see one is shown by asking for it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CODE = """
import json, sys
import gpu_kernel
found = []
for case in json.loads(sys.argv[1]):  # law, type, gpu, one_run, fused, and maybe one_tap
    asm = gpu_kernel.compiled(*case).asm
    spills = gpu_kernel.dumped(asm["cubin"], "-sass").count("STL")
    found.append([gpu_kernel.instructions(asm["ptx"]), gpu_kernel.usage(asm["cubin"]), spills])
print(json.dumps(found))
"""
LAWS = ("gaussian", "rademacher", "uniform", "laplace", "student-t:5")
GPUS = (80, 90, 100)
SPILT = {("student-t:5", "float64", 90, False, False): (0, 8, 2)}  # the one case that spills


def compiled(cases, cache):
    """Instructions of the PTX, what the machine code uses, and its spills, of each case."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks")])}
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(cases)], env=env | {"TRITON_CACHE_DIR": str(cache)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(cases, cache):
    for case, (ptx, usage, spills) in zip(cases, compiled(cases, cache), strict=True):
        names = [name for name in ptx if "f32" in name or "f64" in name]
        fused = [name for name in names if name.startswith(("fma", "mad"))]
        assert not fused, case
        assert not [name for name in names if "ftz" in name or "approx" in name], case
        assert sum(ptx[name] for name in names if name.startswith("mul.rn.f")) > 0, case
        roots = [name for name in names if name.startswith("sqrt")]
        assert roots == (["sqrt.rn.f32"] if case[0] in ("gaussian", "student-t:5") else []), case
        most = SPILT.get(case, (0, 0, 0))  # bytes, bytes, instructions
        assert (usage["LOCAL"], usage["STACK"], spills) <= most, case
        assert 0 < usage["REG"] <= 168, case  # three programs on a processor


def test_no_fused_multiply_add_and_nothing_spilt(tmp_path):
    cases = [(law, "float32", gpu, True, False) for law in LAWS for gpu in GPUS]
    check([*cases, ("gaussian", "float32", 90, True, False, True)], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("one_tap", [True, False])
@pytest.mark.parametrize("one_run", [True, False])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "float32"])
def test_of_every_type_and_layout(dtype, one_run, one_tap, tmp_path):
    cases = [(law, dtype, gpu, one_run, False) for law in LAWS for gpu in GPUS]
    check([(*case, True) for case in cases] if one_tap else cases, tmp_path)


@pytest.mark.slow
def test_a_fused_multiply_add_would_be_seen(tmp_path):
    cases = [(law, "float32", gpu, True, True) for law in ("gaussian", "laplace") for gpu in GPUS]
    for case, (ptx, _, _) in zip(cases, compiled(cases, tmp_path), strict=True):
        assert sum(n for name, n in ptx.items() if name.startswith("fma")) > 10, case


def test_a_launch_forbids_it():
    from antipgd.torch.gpu.launching import OPTIONS

    assert OPTIONS["enable_fp_fusion"] is False
