"""The wheel with one extra alone, in an empty environment away from the clone, runs its pages.

What a page needs beyond its extra it says itself (`pip install equinox`), and that is installed.
The wheel is built here, or is the file that WHEEL names: `make release-check`.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = "README.md"
# What each extra must be enough for: whole pages of docs, and sections of README that go together.
PAGES = {
    "": [("docs/theory.md",), ("docs/idea.md",)],
    "numba": [("docs/idea.md",)],
    "torch": [
        (README, "The one line"),
        ("docs/forms.md",),
        ("docs/in-weights.md",),
        ("docs/settings.md",),
    ],
    "optax": [(README, "In JAX"), ("docs/optax.md",)],
    "flatness": [
        (README, "The one line", "What it does"),
        ("docs/flatness.md",),
        ("docs/index.md",),
    ],
    "paper": [("docs/sweep.md",), ("docs/own-problem.md",)],
    "network": [("docs/data.md",)],
    # Their pages are run elsewhere (tests/hosts, tests/engines): installed and imported here.
    "gpu": [],
    "lightning": [],
    "transformers": [],
    "ray": [],
    "slurm": [],
}
CODE = {
    "": "import antipgd.noise, antipgd.theory, antipgd.estimate",
    "numba": "import doctest, antipgd.noise.inplace as m; assert doctest.testmod(m) == (0, 4)",
    "torch": "from antipgd.torch.adding import compiled_targets; assert compiled_targets()",
    "optax": "import antipgd.optax",
    "flatness": "from antipgd.torch.adding import compiled_targets; assert compiled_targets()",
    "paper": "from antipgd.cli import main; assert main(['paper', '--dry-run']) == 0",
    "network": "from antipgd.cli import main; assert main('train --data digits --method anti"
    " --sigma .04 --batch 100 --epochs 1 --out trained'.split()) == 0",
    "gpu": "from antipgd.torch.gpu.choosing import launching; assert launching()",
    "lightning": "import antipgd.trainers.lightning",
    "transformers": "import accelerate, antipgd.trainers.transformers",
    "ray": "import ray, antipgd.paper.engines.on_ray",
    "slurm": "import submitit, antipgd.paper.engines.on_slurm",
}


def sections(text):
    """The parts of a page below each heading, up to the next one of any depth."""
    found = re.split(r"^#+ (.+)\n", text, flags=re.M)
    return dict(zip(found[1::2], found[2::2], strict=True))


def examples(page, *titles):
    text = (ROOT / page).read_text("utf-8")
    return "\n\n".join(sections(text)[title] for title in titles) if titles else text


def also_needed(text):
    """Packages that the text says to install by their own name."""
    return re.findall(r"`pip install (\w+)`", text)


def test_every_extra_is_installed_alone():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert PAGES.keys() == CODE.keys() == {"", *project["optional-dependencies"]}


def test_every_page_with_examples_is_run_with_an_extra():
    run = {part[0] for parts in PAGES.values() for part in parts}
    pages = [README, *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
    assert run == {page for page in pages if ">>> " in (ROOT / page).read_text("utf-8")}
    named = {title for parts in PAGES.values() for page, *titles in parts for title in titles}
    written = sections((ROOT / README).read_text("utf-8"))
    assert named == {title for title, text in written.items() if ">>> " in text}


def test_what_a_page_needs_beside_its_extra():
    assert also_needed(examples("docs/optax.md")) == ["equinox"]
    assert also_needed("`pip install '.[optax]'`") == []


def call(*command, where):
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=where, env=kept, timeout=1800, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    if "WHEEL" in os.environ:
        return Path(os.environ["WHEEL"]).resolve(strict=True)
    folder = tmp_path_factory.mktemp("wheel")
    build = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder]
    call(sys.executable, *build, ROOT, where=folder)
    (built,) = folder.glob("antipgd-*.whl")
    return built


def environment(folder, wheel, extra, *more):
    """A Python that has the wheel with this extra and nothing else."""
    call(sys.executable, "-m", "venv", "empty", where=folder)
    python = folder / "empty" / "bin" / "python"
    what = f"{wheel}[{extra}]" if extra else wheel
    constraints = ["--constraint", ROOT / "constraints.txt"]
    call(python, "-m", "pip", "--quiet", "install", *constraints, what, *more, where=folder)
    where = call(python, "-I", "-c", "import antipgd; print(antipgd.__file__)", where=folder)
    assert str(folder) in where
    call(python, "-m", "pip", "check", where=folder)
    return python


@pytest.mark.slow
@pytest.mark.parametrize("extra", PAGES)
def test_an_extra_is_enough_for_its_pages(extra, wheel, tmp_path):
    texts = [examples(*part) for part in PAGES[extra]]
    more = also_needed("".join(texts))
    python = environment(tmp_path, wheel, extra, *more)
    call(python, "-I", "-c", CODE[extra], where=tmp_path)
    for i, text in enumerate(texts):
        (tmp_path / f"page_{i}.md").write_text(text, "utf-8")
        call(python, "-I", "-m", "doctest", f"page_{i}.md", where=tmp_path)


@pytest.mark.slow
def test_all_of_them_run_the_readme(wheel, tmp_path):
    python = environment(tmp_path, wheel, "network,optax")
    (tmp_path / README).write_text(examples(README), "utf-8")
    call(python, "-I", "-m", "doctest", README, where=tmp_path)


@pytest.mark.slow
def test_flatness_without_its_extra_says_what_to_install(wheel, tmp_path):
    python = environment(tmp_path, wheel, "torch")
    code = "try:\n    from antipgd import flatness\nexcept ImportError as error:\n    print(error)"
    said = call(python, "-I", "-c", code, where=tmp_path)
    assert said.startswith("antipgd.flatness needs scipy: pip install scipy, or")
