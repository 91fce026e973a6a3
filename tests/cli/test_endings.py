"""However a command ends: a line that says so, an exit code, and no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from antipgd import cli
from antipgd.cli import main
from antipgd.paper import reproduce as paper
from antipgd.paper.simulation import folder, table

LONG = "a" * 300
RUNS = "--method gd --lr 0.1 --steps 2 --seeds 2 --no-relax"
HEAVY = {"numba", "scipy", "pandas", "matplotlib", "torch", "sklearn"}


def python(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments], stderr=subprocess.PIPE, text=True, **options
    )


# -- interrupted -------------------------------------------------------------------------------


def interrupt(*arguments, **settings):
    raise KeyboardInterrupt


@pytest.mark.usefixtures("no_lines")
@pytest.mark.parametrize("place", [(folder, "sweep_figure"), (table, "summary"), (cli, "_parser")])
def test_an_interruption_outside_the_runs_is_said_and_loses_nothing(
    place, tmp_path, capsys, monkeypatch
):
    words = [*f"sweep widening_valley --set d=2 {RUNS} --out".split(), str(tmp_path)]
    whole = getattr(*place)
    monkeypatch.setattr(*place, interrupt)
    assert main(words) == 130
    assert capsys.readouterr().err == "interrupted; the same command goes on\n"
    monkeypatch.setattr(*place, whole)
    assert main(words) == 0
    found = 0 if place[0] is cli else 2
    assert f"{found} found stored" in capsys.readouterr().out


@pytest.mark.usefixtures("no_lines")
def test_an_interruption_while_claims_are_judged(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(paper.Desk, "judge", interrupt)
    assert main(["paper", "--only", "moments", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "interrupted; the same command goes on\n"
    assert not (tmp_path / "report.html").exists()


def test_an_interruption_while_something_is_imported(tmp_path):
    (tmp_path / "stopper.py").write_text(  # in a job in the background Python ignores the signal
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
    )
    words = ["sweep", "stopper:Stopper", *RUNS.split()]
    result = python("-m", "antipgd", *words, cwd=tmp_path)
    assert result.returncode == 130
    assert result.stderr == "interrupted; the same command goes on\n"


# -- nowhere to write, nowhere to be -------------------------------------------------------------


def test_nobody_reads_the_output():
    read, write = os.pipe()
    os.close(read)
    result = python("-m", "antipgd", "list", stdout=write)
    os.close(write)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_under_the_output():
    with open("/dev/full", "w") as full:
        result = python("-m", "antipgd", "list", stdout=full)
    assert result.returncode == 1
    assert result.stderr == "antipgd: standard output: No space left on device\n"


def test_in_a_folder_that_was_deleted(tmp_path):
    code = (
        "import os, sys; os.rmdir(os.getcwd()); from antipgd.cli import main; "
        "sys.exit(main(['list']) or main(['status']))"
    )
    (tmp_path / "gone").mkdir()
    result = python("-c", code, cwd=tmp_path / "gone", stdout=subprocess.PIPE)
    assert result.returncode == 2
    assert result.stdout.startswith("problems, with their settings:")
    assert result.stderr == "antipgd: results is not a folder with results\n"


# -- mistakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "status --out LONG", "report --out LONG", "paper --only LONG",
        "paper --only cifar --out LONG", "paper --only cifar --dry-run --out LONG",
        f"sweep LONG {RUNS}", f"sweep LONG:Class {RUNS}", f"sweep os:LONG {RUNS}",
        f"sweep widening_valley {RUNS} --out LONG", f"sweep widening_valley {RUNS} --set LONG=1",
        "records small --out LONG", "records LONG", "data LONG", "data cifar10 --from LONG",
        "tune --scale smoke --out LONG", "LONG", "list --LONG",
    ],
)  # fmt: skip
def test_names_of_300_characters(words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words.replace("LONG", LONG).split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("antipgd: ")
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("there", [False, True])
def test_a_report_of_nothing_is_refused(there, tmp_path, capsys):
    out = tmp_path / "out"
    if there:
        out.mkdir()
    assert main(["report", "--out", str(out)]) == 2
    why = "has no store: nothing has been run there" if there else "is not a folder with results"
    assert capsys.readouterr().err == f"antipgd: {out} {why}\n"
    assert list(tmp_path.rglob("*")) == ([out] if there else [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("sweep widening_valley --sigam 3", "--sigam; did you mean '--sigma'?"),
        ("sweep widening_valley --metod=anti", "--metod; did you mean '--method'?"),
        ("paper --retyr", "--retyr; did you mean '--retry'?"),
        ("records small --figurse x", "--figurse; did you mean '--figures'?"),
    ],
)
def test_a_misspelt_option_is_named_with_the_nearest(words, message, capsys):
    assert main(words.split()) == 2
    assert f"unrecognized arguments: {message} accepted: " in capsys.readouterr().err


# -- help --------------------------------------------------------------------------------------


def test_the_package_is_a_command():
    result = python("-m", "antipgd", "--version", stdout=subprocess.PIPE)
    assert (result.returncode, result.stdout) == (0, f"{cli.__version__}\n")


def test_the_list_needs_nothing_large_no_home_and_no_cache():
    code = (
        "import sys; from antipgd.cli import main; code = main(['list']); "
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    bare = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"} | {"HOME": "/nowhere"}
    result = python("-c", code, stdout=subprocess.PIPE, env=bare)
    assert result.returncode == 0
    assert not HEAVY & set(result.stderr.split())


def test_the_page_is_made_without_torch():
    code = "import sys, antipgd.paper.reproduce; print(*sys.modules, file=sys.stderr)"
    loaded = python("-c", code).stderr.split()
    assert "antipgd.paper.verdicts" in loaded
    assert "torch" not in loaded


@pytest.mark.parametrize("package", ["matplotlib", "numba", "pandas", "scipy", "threadpoolctl"])
@pytest.mark.parametrize("command", [f"sweep widening_valley {RUNS}", "paper --dry-run"])
def test_a_missing_package_is_named_with_its_extra(package, command, tmp_path):
    code = (
        "import sys; sys.modules[sys.argv.pop(1)] = None\n"
        "from antipgd.cli import main; sys.exit(main())"
    )
    done = python("-c", code, package, *command.split(), "--out", str(tmp_path / "out"))
    assert done.returncode == 2, done.stderr
    assert f"needs {package}: pip install {package}" in done.stderr
    assert "pip install '.[paper]'" in done.stderr
    assert not (tmp_path / "out").exists()
    assert done.stderr.count("\n") == 1
