"""One's own function over a grid: every call once, resumed, told of; means with intervals."""

import importlib
import json
import math
import re
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

from antipgd.cli import main
from antipgd.estimate import Estimate
from antipgd.paper import try_function
from antipgd.paper.record import record_from
from antipgd.paper.trials.running import record_of, try_one
from antipgd.paper.trials.spec import (
    Trial,
    find_function,
    loaded,
    name_for,
    plan_trials,
    source_of,
)
from antipgd.paper.trials.table import summary

HERE = Path(__file__).parent
GRID = "--sigma 0,0.5 --lr 0.1 --set width=1,3 --seeds 2 --threads 2"


@pytest.fixture
def functions(tmp_path, monkeypatch):
    """A copy of the module in a folder of its own, where the command is given."""
    shutil.copy(HERE / "trial_functions.py", tmp_path / "mine.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    yield "mine"
    sys.modules.pop("mine", None)


def run(capsys, words):
    code = main(words.split())
    said = capsys.readouterr()
    return code, said.out, said.err


def calls(out="trials"):
    return sum(len(path.read_text()) for path in Path(out, "checkpoints").rglob("calls"))


def test_every_combination_is_called_once_and_found_again(functions, capsys):
    code, out, _ = run(capsys, f"try mine:train {GRID}")
    assert code == 0
    assert "8 of 8 trials done, 0 found stored and 8 run" in out
    assert calls() == 8
    table = pd.read_csv("trials/table.csv")
    assert len(table) == 8
    wanted = table["sigma"] + 10 * table["lr"] + 100 * table["width"] + table["seed"]
    assert table["loss"].tolist() == pytest.approx(wanted.tolist())
    code, out, _ = run(capsys, f"try mine:train {GRID} --lr 0.2")
    assert "16 of 16 trials done, 8 found stored and 8 run" in out
    assert calls() == 16
    assert run(capsys, "status --out trials")[1].split()[:2] == ["done", "16"]


def test_the_means_are_those_over_seeds(functions, capsys):
    _, out, _ = run(capsys, f"try mine:train {GRID}")
    summary = pd.read_csv("trials/summary.csv")
    assert summary[["sigma", "width"]].values.tolist() == [[0, 1], [0, 3], [0.5, 1], [0.5, 3]]
    for _, row in summary.iterrows():
        base = row["sigma"] + 1 + 100 * row["width"]
        wanted = Estimate.of([base, base + 1])
        assert row["loss mean"] == pytest.approx(wanted.mean)
        assert [row["loss low"], row["loss high"]] == pytest.approx(wanted.interval())
        assert row["loss n"] == 2
    assert re.search(r"0\.0 +0\.1 +1 +101\.5 \[95\.15, 107\.9\], n=2 +0\.5 \[0\.5, 0\.5\]", out)
    assert "Student's 95 % intervals over seeds" in out


def test_a_changed_file_is_said_and_all_is_run_anew(functions, capsys):
    run(capsys, f"try mine:train {GRID}")
    code, _, said = run(capsys, f"try mine:train {GRID}")
    assert (code, said) == (0, "")
    with open("mine.py", "a") as file:
        file.write("# another\n")
    del sys.modules["mine"]
    code, out, said = run(capsys, f"try mine:train {GRID}")
    assert "the file of mine:train has changed since the last time: 8 of 8 trials are run" in said
    assert "0 found stored and 8 run" in out
    assert calls() == 16


def rewrite(text):
    Path("mine.py").write_text(text)
    sys.modules.pop("mine", None)


def test_the_notice_says_what_is_really_missing(functions, capsys):
    """An earlier version whose calls are stored needs none; another function hides nothing."""
    first, words = Path("mine.py").read_text(), "try mine:anything --seeds 2 --threads 1"
    run(capsys, words)
    rewrite(first + "# another\n")
    assert "2 of 2 trials are run anew" in run(capsys, words)[2]
    rewrite(first)
    code, out, said = run(capsys, words)
    assert (code, said) == (0, "")
    assert "2 found stored and 0 run" in out
    rewrite(first + "# a third\n")
    assert run(capsys, "try mine:decorated --seeds 1 --threads 1")[2] == ""
    assert "2 of 2 trials are run anew" in run(capsys, words)[2]
    rewrite(first)
    assert "1 of 3 trials are run anew" in run(capsys, words.replace("2", "3", 1))[2]
    Path("trials/sources.json").write_text("[")
    assert run(capsys, words)[0] == 0


def test_the_order_of_settings_is_no_other_plan(functions, capsys):
    run(capsys, "try mine:anything --set b=2 --set a=1 --seeds 1 --threads 1")
    out = run(capsys, "try mine:anything --set a=1 --set b=2 --seeds 1 --threads 1")[1]
    assert "1 found stored and 0 run" in out


def test_what_a_process_has_imported_is_what_it_runs(functions):
    """Its file may change meanwhile: that is seen, and never stored under the other's digest."""
    rewrite("def value(seed): return {'x': 1.0}\n")
    old = plan_trials("mine:value", seeds=1)[0].source
    held = sys.modules["mine"].value
    Path("mine.py").write_text("def value(seed): return {'x': 2.0}  # another\n")
    assert loaded("mine:value", old)(0) == {"x": 1.0}
    new = plan_trials(held, seeds=1)[0].source
    assert new != old
    assert loaded("mine:value", new)(0) == {"x": 2.0}
    assert plan_trials(held, seeds=1)[0].source == new  # it has been replaced by what it is now
    assert loaded("mine:value", old) is None


def test_a_module_that_was_there_before_is_loaded_anew(functions):
    rewrite("def another(seed): return {'x': 1.0}\n")
    importlib.import_module("mine")
    Path("mine.py").write_text("def another(seed): return {'x': 2.0}  # another\n")
    (trial,) = plan_trials("mine:another", seeds=1)
    (record,) = try_one(trial, tell=None, device="cpu", root=None)
    assert record.points == ((1, "x", 2.0),)


EDITED = """
import os
def edit(seed, folder):
    with open(__file__, "a") as file:
        file.write("# another\\n")
    if seed == {dies}:
        os._exit(0)
    return {{"x": seed}}
"""


def test_a_file_that_is_saved_meanwhile_changes_nothing(functions, capsys):
    rewrite(EDITED.format(dies=-1))
    code, out, said = run(capsys, "try mine:edit --seeds 4 --threads 1")
    assert (code, said) == (0, "")
    assert "4 of 4 trials done, 0 found stored and 4 run" in out


def test_a_worker_that_meets_another_file_ends_the_command(functions, capsys):
    """The first dies in its second call: its successor imports what the file is by then."""
    rewrite(EDITED.format(dies=1))
    code, _, said = run(capsys, "try mine:edit --seeds 4 --threads 1")
    assert code == 2
    assert "the file of mine:edit is not the one that the command began with" in said
    assert len(list(Path("trials/store").rglob("record/*/*.json"))) == 1
    (failure,) = Path("trials/store").rglob("failure/*/*.json")
    assert "exit code 0 (was sys.exit or os._exit called?)" in failure.read_text()


@pytest.fixture
def package(functions, tmp_path, monkeypatch):
    """A package whose function is written in another of its files than the one that is named."""
    folder = tmp_path / "pkg"
    folder.mkdir()
    (folder / "__init__.py").write_text("from .core import train, partly, Object, called\n")
    (folder / "core.py").write_text(
        "from functools import partial, wraps\n"
        "def inner(seed): return {'x': 1.0}\n"
        "train = wraps(inner)(lambda **given: inner(**given))\n"
        "partly = partial(train, seed=0)\n"
        "class Object:\n"
        "    def __call__(self, seed): return {'x': 1.0}\n"
        "called = Object()\n"
    )
    yield folder
    for name in ("pkg", "pkg.core"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["train", "partly", "Object", "called"])
@pytest.mark.parametrize("file", ["__init__.py", "core.py"])
def test_both_files_count_the_one_named_and_the_one_written(package, name, file):
    before = source_of(f"pkg:{name}")
    assert source_of(f"pkg:{name}") == before
    with (package / file).open("a") as opened:
        opened.write("# another\n")
    assert source_of(f"pkg:{name}") != before


def test_what_goes_wrong_is_said_and_the_others_go_on(functions, capsys):
    words = "try mine:misbehave --sigma 0,1,2,3,4,5,6,7,8 --seeds 2 --threads 2"
    code, out, said = run(capsys, words)
    assert code == 1
    assert "2 of 18 trials done" in out
    assert "1.5 [-4.853, 7.853], n=2" in out
    assert "2, n=1" in out  # of a number that one seed alone returned
    for text in (
        "sigma=1.0 seed=0 and 1 more: RuntimeError: no luck",
        "sigma=2.0 seed=0 and 1 more: ValueError: loss must be a finite number; got nan",
        "sigma=3.0 seed=0 and 1 more: TypeError: mine:misbehave must return a dictionary of num",
        "sigma=4.0 seed=0 and 1 more: the process was ended by SIGKILL",
        "sigma=5.0 seed=0 and 1 more: ValueError: mine:misbehave returned 'sigma', which is no",
        "sigma=6.0 seed=0 and 1 more: ValueError: loss must be a finite number; got 'low'",
        "sigma=7.0 seed=0 and 1 more: RuntimeError: mine:misbehave called sys.exit(0)",
        "sigma=8.0 seed=0 and 1 more: ValueError: loss must be a finite number; got array([0., 0.",
        "16 trials failed; --retry tries them again",
    ):
        assert text in said
    again = run(capsys, words)
    assert "18 found stored and 0 run" in again[1]
    retried = run(capsys, f"{words} --retry")
    assert "2 found stored and 16 run" in retried[1]


def test_a_function_that_takes_anything_is_given_all_and_one_thread(functions, capsys, monkeypatch):
    for name in ("OMP", "OPENBLAS", "MKL"):
        monkeypatch.setenv(f"{name}_NUM_THREADS", "2")
    run(capsys, "try mine:anything --sigma 1 --set a=x,true --seeds 1 --threads 1")
    table = pd.read_csv("trials/table.csv")
    assert table["count"].tolist() == [3, 3]
    assert table["threads"].tolist() == [1, 1]
    assert table["pools"].tolist() == [1, 1]
    assert table["a"].tolist() == ["x", "True"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("mine:trian --seeds 1", "cannot find 'mine:trian': module 'mine' has no attribute"),
        ("mine --seeds 1", "a function is named module:function; got 'mine'"),
        ("leaving:f --seeds 1", "cannot find 'leaving:f': leaving calls sys.exit(0) when it is"),
        ("mine:anything --set a=1,nan --seeds 1", "a must be a finite number; got nan"),
        ("no_such:f --seeds 1", "cannot find 'no_such:f': No module named 'no_such'"),
        ("mine:number --seeds 1", "'mine:number' is no function: 3"),
        ("mine:train --lr 1 --seeds 1", "mine:train needs 'sigma', and no value is given for it"),
        ("mine:misbehave --sigma 1 --lr 1 --seeds 1", "mine:misbehave takes no 'lr'; accepted"),
        ("mine:train --sigma 1 --lr 1 --set widht=1 --seeds 1", "did you mean 'width'?"),
        ("mine:train --sigma 1 --lr 1 --set folder=x --seeds 1", "'folder' is given to each"),
        ("mine:train --sigma 1 --lr 1 --set lr=1 --seeds 1", "'lr' cannot be a setting of its"),
        ("mine:train --sigma -1 --lr 1 --seeds 1", "sigma must be a finite number >= 0; got -1.0"),
        ("mine:train --sigma x --lr 1 --seeds 1", "--sigma: 'x' is not a number"),
        ("mine:train --sigma 1 --lr 1 --seeds 0", "seeds must be a whole number >= 1; got 0"),
        ("mine:train --sigma 1 --lr 1 --seeds 1 --set width", "--set takes NAME=VALUE,..."),
    ],
)
def test_what_is_refused_before_anything_runs(words, message, functions, capsys):
    Path("leaving.py").write_text("import sys\nsys.exit(0)\n")
    code, _, said = run(capsys, f"try {words}")
    assert code == 2
    assert message in said
    assert not Path("trials").exists()


def test_in_python_it_returns_the_means(functions, tmp_path):
    settings = {"sigma": 0.5, "lr": [0.1], "seeds": [3], "set": {"width": 1}, "threads": 1}
    means = try_function("mine:train", out="own", show_progress=False, **settings)
    assert means["loss mean"].tolist() == [0.5 + 1 + 100 + 3]
    assert math.isnan(means["loss low"][0])
    assert means["accuracy n"].tolist() == [1]
    with pytest.warns(UserWarning, match="2 of 2 trials failed; the first: .*sigma=1.0 seed=0"):
        assert not len(try_function("mine:misbehave", sigma=1, seeds=2, show_progress=False))


def test_a_function_is_named_so_that_other_processes_find_it():
    assert name_for(find_function) == "antipgd.paper.trials.spec:find_function"
    with pytest.raises(ValueError, match="must be a function of a module"):
        name_for(lambda: None)


def test_a_function_that_its_name_does_not_find_is_refused(functions):
    """`functools.wraps` gives a decorated function the name of the one within."""
    mine = importlib.import_module("mine")
    assert name_for(mine.decorated) == "mine:decorated"
    with pytest.raises(ValueError, match="calls itself mine:anything, but that is another"):
        name_for(mine.doubled)
    assert plan_trials("mine:doubled", seeds=1)[0].function == "mine:doubled"


def test_a_trial_is_what_its_canonical_text_says():
    trial = Trial("m:f", "abc", (("sigma", 0.5), ("flag", True), ("seed", 3)))
    assert Trial.from_plain(json.loads(trial.canonical())) == trial
    assert (trial.seed, trial.settings) == (3, (("sigma", 0.5), ("flag", True)))
    other = Trial("m:f", "abd", trial.arguments)
    assert other.name != trial.name


def test_equal_numbers_are_one_value_and_truth_is_another(functions):
    values = [1, 1.0, True, 0.0, -0.0, False, "1"]
    trials = plan_trials("mine:anything", sigma=[-0.0, 0, 0.0], set={"a": values}, seeds=3)
    assert json.dumps([t.settings for t in trials[::3]]) == json.dumps(
        [[["sigma", 0.0], ["a", a]] for a in (1, True, 0.0, False, "1")]
    )
    means = summary([record_of(trial, {"loss": trial.seed}) for trial in trials])
    assert means["loss n"].tolist() == [3] * 5
    assert [*map(type, means["a"])] == [int, bool, float, bool, str]


def test_a_record_comes_back_from_its_text():
    trial = Trial("m:f", "abc", (("seed", 0),))
    record = record_of(trial, {"loss": 0.1, "steps": 3})
    assert record.points == ((1, "loss", 0.1), (1, "steps", 3.0))
    assert record_from(json.loads(record.to_json()), Trial.from_plain) == record


def test_plans_have_each_call_once(functions):
    trials = plan_trials("mine:train", seeds=2, sigma=[0.1, 0.1], lr=1, set={"width": [1, 2]})
    assert len(trials) == 4
    assert {trial.source for trial in trials} == {source_of("mine:train")}
