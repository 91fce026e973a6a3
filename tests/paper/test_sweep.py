"""The sweep as a user meets it: commands, tables, interruptions."""

import io
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from antipgd.cli import main
from antipgd.paper import plan_sweep, summary, sweep
from antipgd.paper.table import COLUMNS

SMALL = (
    "sweep quadratic_regression --set d=12 --set n=6 --set nonzero=2 "
    "--method gd,pgd,anti,sgd,label "
    "--lr 0.1 --lr sgd=0.01 --sigma 0.04,0.05 --steps 300 --seeds 3 --points 6"
).split()


def test_a_sweep_from_the_command_line(tmp_path, capsys):
    out = tmp_path / "out"
    assert main([*SMALL, "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""  # quiet when this is not a terminal
    assert "24 of 24 runs" in printed.out
    assert "diverged" in printed.out
    table = pd.read_csv(out / "table.csv")
    assert tuple(table.columns) == COLUMNS
    assert not table.duplicated(["method", "lr", "sigma", "seed", "step", "place"]).any()
    assert set(table["step"]) == {0, 1, 3, 10, 31, 96, 300}
    at_end = table[(table["step"] == 300) & (table["place"] == "w")]
    assert at_end.groupby("method").size().to_dict() == {
        "gd": 3, "pgd": 6, "anti": 6, "sgd": 3, "label": 6,
    }  # fmt: skip
    assert set(table.loc[table["method"] == "sgd", "lr"]) == {0.01}
    assert set(table.loc[table["method"] == "sgd", "batch"]) == {1}
    assert table.loc[table["method"] == "gd", "batch"].isna().all()
    assert set(table.loc[table["method"] == "anti", "taps"]) == {"1,-1"}
    assert set(table.loc[table["method"] == "pgd", "place"]) == {"w", "relaxed"}
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (out / "figure.svg").read_bytes()
    before = (out / "table.csv").read_bytes()
    assert main([*SMALL, "--out", str(out)]) == 0
    assert (out / "table.csv").read_bytes() == before


def test_the_same_table_from_python(tmp_path):
    main([*SMALL, "--out", str(tmp_path)])
    table = sweep(
        "quadratic_regression",
        set={"d": 12, "n": 6, "nonzero": 2},
        method=["gd", "pgd", "anti", "sgd", "label"],
        lr={"*": 0.1, "sgd": 0.01},
        sigma=[0.04, 0.05],
        steps=300,
        seeds=3,
        points=6,
    )
    text = table.to_csv(index=False, lineterminator="\n")
    assert text == (tmp_path / "table.csv").read_text()


def test_taps_laws_and_batches(tmp_path):
    settings = "--set d=5 --set n=4 --set nonzero=1 --steps 9 --seeds 1 --no-relax"
    methods = "--method noise,antisgd,anti --taps=1,-0.9 --taps=1 --law rademacher,student-t:5"
    numbers = "--lr 0.01 --lr noise=0.02,0.03 --sigma 0.1 --batch antisgd=2,3"
    arguments = f"sweep quadratic_regression {settings} {methods} {numbers}".split()
    code = main([*arguments, "--out", str(tmp_path)])
    assert code == 0
    table = pd.read_csv(tmp_path / "table.csv", dtype={"taps": str})
    ends = table[(table["step"] == 9) & (table["place"] == "w")]
    assert ends.groupby("method").size().to_dict() == {"anti": 2, "antisgd": 4, "noise": 8}
    assert set(ends["law"]) == {"rademacher", "student-t:5"}
    assert set(ends.loc[ends["method"] == "noise", "taps"]) == {"1,-0.9", "1"}
    assert set(ends.loc[ends["method"] == "antisgd", "batch"]) == {2, 3}
    assert "relaxed" not in set(table["place"])


def test_divergence_is_counted_and_never_averaged_away(tmp_path, capsys):
    arguments = "sweep quadratic_regression --set d=12 --set n=6 --method gd --lr 0.01,9".split()
    arguments += f"--steps 100 --seeds 3 --points 4 --out {tmp_path}".split()
    assert main(arguments) == 0
    table = pd.read_csv(tmp_path / "table.csv")
    lost = table[table["lr"] == 9]
    assert (lost["status"] == "diverged").all()
    assert lost["diverged_at"].between(1, 100).all()
    after = lost[lost["step"] >= lost["diverged_at"]]
    assert np.isinf(after["train_loss"]).all()
    assert {"w", "z", "relaxed"} == set(after["place"])
    assert (table.loc[table["lr"] == 0.01, "status"] == "ok").all()
    rows = summary(table).set_index("lr")
    assert rows.loc[9, "diverged"] == rows.loc[9, "n"] == 3
    assert rows.loc[9, "test w"] == "inf"
    assert "[" in rows.loc[0.01, "test w"]
    assert "3" in capsys.readouterr().out


def test_the_plan_and_its_cost(tmp_path, capsys):
    out = tmp_path / "not-made"
    assert main([*SMALL, "--out", str(out), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "24 runs of quadratic_regression: 3 gd, 6 pgd, 6 anti, 3 sgd, 6 label" in said
    assert "7,200 run-steps" in said
    assert " s on " in said
    assert not out.exists()


def test_status(tmp_path, capsys):
    main([*SMALL, "--out", str(tmp_path)])
    victim = next((tmp_path / "store" / "record").rglob("*.json"))
    victim.unlink()
    capsys.readouterr()
    assert main(["status", "--out", str(tmp_path)]) == 0
    assert "done         23" in (said := capsys.readouterr().out)
    assert "missing       1" in said


OWN = """
from dataclasses import dataclass
import numpy as np
from antipgd.paper import Problem

@dataclass(frozen=True)
class Fragile(Problem):
    limit: float = 3.0

    def start(self, rng):
        return np.ones(3)

    def loss(self, W, data):
        return (W ** 2).sum(axis=1)

    def gradient(self, W, data, rows=None, label_shift=None):
        if abs(W).max() > self.limit:
            raise ValueError("too far out")
        return 2 * W
"""


def test_runs_that_fail_give_exit_code_1_and_are_retried_on_request(tmp_path, capsys, monkeypatch):
    (tmp_path / "fragile_problem.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    arguments = "sweep fragile_problem:Fragile --method anti --lr 0.1 --sigma 0.1,9".split()
    arguments += "--steps 50 --seeds 2 --out out".split()
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert "2 of 4 runs" in printed.out
    assert "failed: anti seed 0: ValueError: too far out" in printed.err
    assert main(["status", "--out", "out"]) == 0
    assert "failed        2" in capsys.readouterr().out
    sys.modules["fragile_problem"].Fragile.gradient = lambda *args: 2 * args[1]
    assert main(arguments) == 1  # not tried again by itself
    assert main([*arguments, "--retry"]) == 0
    assert len(pd.read_csv("out/table.csv").groupby(["sigma", "seed"])) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["sweep", "quadratic_regresion"], "did you mean 'quadratic_regression'"),
        (["--method", "annti"], "unknown method 'annti'; did you mean 'anti'"),
        (["--set", "nonzeros=3"], "unknown setting 'nonzeros' .* did you mean 'nonzero'"),
        (["--set", "d"], "--set takes NAME=VALUE; got 'd'"),
        (["--sigma", "-1"], "sigma must be a finite number >= 0 .* got -1.0"),
        (["--lr", "0"], "lr must be a finite number > 0; got 0.0"),
        (["--lr", "fast"], "--lr: 'fast' is not a number"),
        (["--lr", "sdg=0.1"], "unknown method 'sdg' in lr; did you mean 'sgd'"),
        (["--steps", "0"], "steps must be a whole number >= 1; got 0"),
        (["--steps", "many"], "invalid int value: 'many'"),
        (["--seeds", "0"], "seeds must be a whole number >= 1; got 0"),
        (["--points", "0"], "points must be a whole number >= 1; got 0"),
        (["--batch", "sgd=0"], "batch must be a whole number >= 1; got 0"),
        (["--taps=1,-1"], "taps are for method 'noise'"),
        (["--threads", "0"], "--threads must be at least 1; got 0"),
        (["--law", "cauchy"], "unknown law 'cauchy'"),
        (["--unknown"], "unrecognized arguments: --unknown"),
    ],
)
def test_mistakes_in_a_command(change, message, tmp_path, capsys):
    arguments = [*SMALL, "--out", str(tmp_path / "out")]
    if change[0] == "sweep":
        arguments[:2] = change
    else:
        if change[0] in arguments and change[0] != "--set" and "sdg" not in change[-1]:
            at = arguments.index(change[0])
            del arguments[at : at + 2]
        arguments += change
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert pd.Series([said]).str.contains(message).all(), said
    assert not (tmp_path / "out").exists()


def test_a_file_as_out_and_a_newer_store_are_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert main([*SMALL, "--out", str(tmp_path / "file")]) == 2
    assert "must be a folder" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "new" / "store").mkdir(parents=True)
    (tmp_path / "new" / "store" / "format.json").write_text('{"format": 99}')
    assert main([*SMALL, "--out", str(tmp_path / "new")]) == 2
    assert "has format 99" in capsys.readouterr().err


def test_sigma_must_be_given_where_it_is_needed():
    with pytest.raises(ValueError, match="sigma has no value for method 'anti'"):
        plan_sweep("widening_valley", method="anti", lr=0.1, steps=3, seeds=1)


def test_every_run_is_planned_once():
    runs = plan_sweep(
        "quadratic_regression", method=["gd", "gd"], lr=[0.1, 0.1], sigma=[1, 2], steps=3, seeds=2
    )
    assert len(runs) == 2


# -- kill -9 -----------------------------------------------------------------------------------

LONGER = [*SMALL[:-6], "--steps", "3000", "--seeds", "12", "--points", "6"]


def command(out):
    return [sys.executable, "-m", "antipgd.cli", *LONGER, "--out", str(out)]


def test_kill_dash_9_at_a_random_moment_loses_nothing(tmp_path):
    killed_and_resumed(tmp_path, moments=1)


@pytest.mark.slow
def test_kill_dash_9_at_ten_random_moments_loses_nothing(tmp_path):
    killed_and_resumed(tmp_path, moments=10)


def killed_and_resumed(tmp_path, moments):
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    began = time.monotonic()
    subprocess.run(command(tmp_path / "whole"), check=True, **quiet)
    took = time.monotonic() - began
    rng = random.Random(0)
    for _ in range(moments):
        process = subprocess.Popen(command(tmp_path / "killed"), **quiet)
        time.sleep(rng.uniform(0.2, 1.0) * took)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    finished = subprocess.run(command(tmp_path / "killed"), check=True, **quiet)
    assert finished.stderr == b""
    whole, killed = ((tmp_path / name / "table.csv").read_bytes() for name in ("whole", "killed"))
    assert whole == killed
    table = pd.read_csv(io.BytesIO(killed))
    assert not table.duplicated(["method", "lr", "sigma", "seed", "step", "place"]).any()
    records = list((tmp_path / "killed" / "store" / "record").rglob("[!.]*.json"))
    assert len(records) == len({path.name for path in records}) == 96


def test_two_processes_on_one_store_do_not_harm_each_other(tmp_path):
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    both = [subprocess.Popen(command(tmp_path / "shared"), **quiet) for _ in range(2)]
    for process in both:
        _, said = process.communicate()
        assert process.returncode == 0, said
        assert said == b""
    assert main([*LONGER, "--out", str(tmp_path / "alone")]) == 0
    shared, alone = ((tmp_path / name / "table.csv").read_bytes() for name in ("shared", "alone"))
    assert shared == alone


def test_an_interrupted_sweep_says_how_to_go_on(tmp_path):
    process = subprocess.Popen(
        [*command(tmp_path), "--steps", "3000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while not (tmp_path / "plan.json").exists():
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert b"interrupted: " in said
    assert b"the same command goes on" in said


def test_the_commands_of_the_module_and_the_script_are_one():
    script = Path(sys.executable).parent / "antipgd"
    for start in ([str(script)], [sys.executable, "-m", "antipgd.cli"]):
        result = subprocess.run([*start, "list"], capture_output=True, text=True, check=True)
        assert "widening_valley  d=100 D=1.0 v=0.0" in result.stdout
    assert os.access(script, os.X_OK)
