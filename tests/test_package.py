"""What importing costs, what a missing extra says, and what the wheel alone can do."""

import subprocess
import sys
from pathlib import Path

import pytest


def run(code):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )


def test_importing_loads_neither_torch_nor_numba():
    loaded = run("import sys, antipgd; print(*sys.modules)").stdout.split()
    assert "antipgd.noise.stream" in loaded
    assert not {"torch", "numba", "jax", "scipy"} & set(loaded)


def test_importing_the_kernels_compiles_nothing():
    code = """
from numba.core import event
with event.install_recorder("numba:compile") as recorder:
    import antipgd.noise.inplace
print(len(recorder.buffer))
"""
    assert run(code).stdout.strip() == "0"


def test_missing_numba_names_the_extra():
    code = "import sys; sys.modules['numba'] = None; import antipgd.noise.inplace"
    message = run(code).stderr.strip().splitlines()[-1]
    assert message.endswith("needs numba: pip install numba")


def test_missing_torch_names_the_extra():
    code = "import sys; sys.modules['torch'] = None; import antipgd; antipgd.torch"
    message = run(code).stderr.strip().splitlines()[-1]
    assert "antipgd.torch needs torch: pip install torch" in message
    assert message.endswith("pip install '.[torch]'")


@pytest.mark.slow
def test_the_wheel_alone_runs_the_readme(tmp_path):
    """Built, installed into an empty environment, used away from the repository."""
    root = Path(__file__).parents[1]

    def call(*command):
        subprocess.run([*map(str, command)], cwd=tmp_path, check=True, timeout=900)

    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    call(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, root)
    (wheel,) = tmp_path.glob("antipgd-*.whl")
    call(sys.executable, "-m", "venv", "empty")
    python = tmp_path / "empty" / "bin" / "python"
    constraints = ["--constraint", root / "constraints.txt"]
    call(python, "-m", "pip", "--quiet", "install", *constraints, f"{wheel}[torch,cpu,paper,optax]")
    (tmp_path / "README.md").write_text((root / "README.md").read_text())
    call(python, "-I", "-m", "doctest", "README.md")
    where = [python, "-I", "-c", "import antipgd; print(antipgd.__file__)"]
    location = subprocess.run(where, capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) in location
