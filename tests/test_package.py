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


def test_without_numba_torch_draws_the_same_and_says_what_would_be_faster():
    code = """
import logging
logging.basicConfig(level=logging.INFO, format="%(message)s")
import torch, antipgd
w = torch.nn.Parameter(torch.ones(7))
w.grad = torch.zeros(7)
optimizer = torch.optim.SGD([w], lr=0.1)
antipgd.torch.attach(optimizer, sigma=0.5, seed=3)
optimizer.step()
print(w.tolist())
"""
    without = run("import sys; sys.modules['numba'] = None\n" + code)
    assert without.stdout == run(code).stdout != ""
    assert "plain torch" in without.stderr
    assert "antipgd.noise.kernels needs numba: pip install numba\n" in without.stderr
