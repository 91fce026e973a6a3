"""What `import antipgd.torch` brings along, and where it can be imported."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import antipgd

LOADED = "import sys, {}; print(*sorted(n for n in {names} if n in sys.modules))"
FIRST_STEP = (
    "import torch; w = torch.nn.Parameter(torch.ones(3)); o = torch.optim.SGD([w], lr=0.1); "
    "antipgd.torch.attach(o, sigma=0.1); o.step()"
)
HEAVY = ["numba", "llvmlite", "torch._dynamo", "torch._inductor", "sympy", "scipy", "pandas",
         "antipgd.paper", "antipgd.flatness", "antipgd.noise.inplace"]  # fmt: skip


def loaded(module, **environment):
    result = subprocess.run(
        [sys.executable, "-c", LOADED.format(module, names=HEAVY)],
        capture_output=True, text=True, check=True, env=os.environ | environment,
    )  # fmt: skip
    return set(result.stdout.split())


def test_it_loads_nothing_that_torch_does_not():
    assert loaded("antipgd.torch") <= loaded("torch")


def test_the_kernels_come_with_the_first_attach():
    assert "antipgd.noise.inplace" in loaded(f"antipgd.torch; {FIRST_STEP}")


def test_a_read_only_install_without_home(tmp_path):
    package = tmp_path / "installed" / "antipgd"
    shutil.copytree(Path(antipgd.__file__).parent, package)
    for path in [*package.rglob("*"), package, package.parent]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        loaded("antipgd.torch", PYTHONPATH=str(package.parent), HOME="/nonexistent",
               NUMBA_CACHE_DIR="", PYTHONDONTWRITEBYTECODE="1")  # fmt: skip
    finally:
        for path in [package.parent, package, *package.rglob("*")]:
            path.chmod(0o755)
