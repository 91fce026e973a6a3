"""Compiled code where nothing can be kept on disk, and where a file that it is made of changes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from numba import njit

import antipgd
from antipgd.compiling import jit_with


@pytest.fixture
def package(tmp_path):
    """A copy of the package, and how to run Python on it."""
    source = Path(antipgd.__file__).parent
    copy = tmp_path / "lib" / "antipgd"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "records"))

    def run(code, **settings):
        environment = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "HOME")}
        environment |= {"PYTHONPATH": str(copy.parent), "PYTHONDONTWRITEBYTECODE": "1"} | settings
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    return copy, run


NOWHERE = """
import numpy as np
import antipgd
from antipgd.noise import kernels
from antipgd.paper.simulation.problems import kernels as problems
from antipgd.paper.simulation import lanes
from antipgd.noise.stream import key_indices
words, out = np.empty(4 * kernels._BLOCKS, np.int32), np.empty(7, np.int64)
kernels.draw_indices(np.uint64(5), 3, 40, words, out)
assert (out == key_indices(5, 3, 7, 40)).all()
problems._square(2, np.array([2.0, 3.0]), squares := np.empty(2))
assert squares.tolist() == [4, 9]
assert lanes.any_of(np.ones(8, bool))
print(antipgd.__file__)
"""


def test_without_a_writable_folder_kernels_compile_in_memory_and_say_so(package):
    """A folder's __pycache__ that is a file, and a home below a device: not even root can write."""
    copy, run = package
    for folder in {copy, *(path.parent for path in copy.rglob("*.py"))}:
        (folder / "__pycache__").write_text("")
    home = "/dev/null/home"
    done = run(NOWHERE, HOME=home, XDG_CACHE_HOME=home)
    assert done.stdout.strip() == str(copy / "__init__.py"), done.stderr
    (said,) = [line for line in done.stderr.splitlines() if "NUMBA_CACHE_DIR" in line]
    assert "compiled in memory" in said


CHANGED = """
import numpy as np
from antipgd.noise import kernels
from antipgd.paper.simulation import lanes
words, xi = np.full(4 * kernels._BLOCKS, 2**30, np.int32), np.empty(4, np.float32)
kernels._fill_uniform(1, words, xi)
out = np.empty(8)
law = (kernels.UNIFORM, 4, *np.zeros(4, np.float32))
work = words, np.empty(16, np.int32), np.empty(64, np.float32)
lanes.draw_into(np.uint64(5), 1, law, np.ones(1), *work, out)
hits = [sum(f.stats.cache_hits.values()) for f in (kernels._fill_uniform, lanes.draw_into)]
print(xi[0], out[0], *hits)
"""


def test_the_cache_notices_changes_in_other_files(package, tmp_path):
    copy, run = package
    settings = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path)}

    def drawn():
        done = run(CHANGED, **settings)
        assert done.returncode == 0, done.stderr
        *values, own, others = map(float, done.stdout.split())
        return values, own, others

    before, *hits = drawn()
    assert hits == [0, 0]
    assert drawn() == (before, 1, 1)  # kept
    path = copy / "noise" / "transforms.py"
    text = path.read_text()
    assert "single(math.sqrt(3)) * 2.0**-31" in text
    path.write_text(text.replace("single(math.sqrt(3)) * 2.0**-31", "single(2.0) * 2.0**-31"))
    after, *hits = drawn()
    assert hits == [0, 0]
    for old, new in zip(before, after, strict=True):
        assert new == pytest.approx(old * 2 / 3**0.5)


TOLD = """
import numpy as np
from antipgd.noise import kernels
words, out = np.empty(4 * kernels._BLOCKS, np.int32), np.empty(7, np.int64)
kernels.draw_indices(np.uint64(5), 3, 40, words, out)
kernels.draw_indices(np.uint64(5), 3, 40, words, out.astype(np.int32))
"""


def test_whoever_waits_for_the_compiler_is_told_so_once(package, tmp_path):
    _, run = package
    settings = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    first, second = run(TOLD, **settings), run(TOLD, **settings)
    said = "compiling antipgd.noise.kernels for this machine (once; up to a minute)\n"
    assert (first.returncode, first.stderr) == (0, said)
    assert (second.returncode, second.stderr) == (0, "")  # what was kept is only read


def test_what_others_compile_is_theirs(caplog):
    @njit
    def double(x):
        return 2 * x

    assert double(3) == 6
    assert caplog.text == ""


def test_sources_that_cannot_be_read_do_not_stand_in_the_way():
    module = ModuleType("frozen")
    module.__file__ = "/nowhere/frozen.py"

    def double(x):
        return 2 * x

    assert jit_with(module)(double)(3) == 6


def test_a_problem_is_known_without_numba(package):
    _, run = package
    code = "import sys, antipgd.paper.simulation.problems; print('numba' in sys.modules)"
    done = run(code)
    assert done.stdout.strip() == "False", done.stderr
