"""What importing costs, and what a missing extra says."""

import subprocess
import sys


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
