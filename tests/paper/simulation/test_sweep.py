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
from antipgd.paper import PROBLEMS, Problem, plan_sweep, summary, sweep
from antipgd.paper.simulation.local import run_local
from antipgd.paper.simulation.sweep_figure import sweep_figure
from antipgd.paper.simulation.table import COLUMNS, summary_text

SMALL = (
    "sweep quadratic_regression --set d=12 --set n=6 --set nonzero=2 "
    "--method gd,pgd,anti,sgd,label "
    "--lr 0.1 --lr sgd=0.01 --sigma 0.04,0.05 --steps 300 --seeds 3 --points 6"
).split()


@pytest.mark.usefixtures("no_lines")
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
    assert rows.loc[9, "diverged"] == "3/3"
    assert rows.loc[0.01, "diverged"] == "0"
    assert rows.loc[9, "test w"] == "inf"
    assert "[" in rows.loc[0.01, "test w"]
    lines = [line.split()[:4] for line in capsys.readouterr().out.splitlines()]
    assert ["gd", "0.01", "3", "0"] in lines
    assert ["gd", "9", "3", "3/3"] in lines


def test_the_plan_and_its_cost(tmp_path, capsys):
    out = tmp_path / "not-made"
    assert main([*SMALL, "--out", str(out), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "24 runs of quadratic_regression: 3 gd, 6 pgd, 6 anti, 3 sgd, 6 label" in said
    assert "7,200 run-steps" in said
    assert " s on " in said
    assert "relaxations: at most " in said
    assert main([*SMALL, "--out", str(out), "--dry-run", "--no-relax"]) == 0
    assert "relaxations" not in capsys.readouterr().out
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
    place = f"{tmp_path}/fragile_problem.py:18"  # where it is raised
    said = f"failed: anti lr=0.1 sigma=9.0 seed=0 and 1 more: ValueError: too far out ({place})\n"
    assert said in printed.err
    assert printed.err.count("too far out") == 1
    assert main(["status", "--out", "out"]) == 0
    assert "failed        2" in (said := capsys.readouterr().out)
    assert said.count("too far out") == 1
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
        (["--steps", "many"], "--steps: 'many' is not a whole number"),
        (["--steps", "1.5"], "--steps: '1.5' is not a whole number"),
        (["--steps", "inf"], "--steps: 'inf' is not a whole number"),
        (["--seeds", "few"], r"--seeds takes a count \(10\), a list .* got 'few'"),
        (["--seeds", "4-2"], "--seeds takes a count .* got '4-2'"),
        (["--seeds", "1,5-2"], "--seeds takes a count .* got '1,5-2'"),
        (["--seeds", "-3"], "seeds must be a whole number >= 1; got -3"),
        (["--seeds", "0"], "seeds must be a whole number >= 1; got 0"),
        (["--points", "0"], "points must be a whole number >= 1; got 0"),
        (["--batch", "sgd=0"], "batch must be a whole number >= 1; got 0"),
        (["--taps=1,-1"], "taps are for method 'noise'"),
        (["--taps", "-1,1"], "taps are for method 'noise'"),
        (["--sigma", "antisgd=1"], "sigma is given for 'antisgd', which is not in"),
        (["--sigma", "gd=1"], "sigma is given for 'gd', which takes no sigma"),
        (["--sigma", "anti=1"], "sigma has no value for method 'pgd'; give --sigma"),
        (["--batch", "antisgd=1"], "batch is given for 'antisgd', which is not in"),
        (["--batch", "anti=1"], "batch is given for 'anti', which takes no batch"),
        (["--start", "300"], "start must be less than steps=300, .* got 300"),
        (["--leave", "0.5,2"], "quadratic_regression has no watched quantity"),
        (["sweep", "my/problems.py:Mine"], "drop .py and write my.problems:Mine"),
        (["--threads", "0"], "--threads must be at least 1; got 0"),
        (["--law", "cauchy"], "unknown law 'cauchy'"),
        (["--momentum", "1"], "momentum must be a finite number >= 0 and < 1; got 1.0"),
        (["--momentum", "much"], "--momentum: 'much' is not a number"),
        (["--momentum", "antisgd=0.5"], "momentum is given for 'antisgd', which is not in"),
        (["--nesterov"], "nesterov needs momentum > 0; got momentum=0.0"),
        (["--optimizer", "admm"], "unknown optimizer 'admm'; did you mean 'adam'"),
        (["--optimizer=adam", "--momentum=0.9"], "adam has betas of its own .* momentum=0.9"),
        (["--hold", "0"], "hold must be a whole number >= 1; got 0"),
        (
            ["--hold", "200", "--start", "201"],
            "no noise acts with hold=200 .* would come at step 401",
        ),
        (["--hold", "5", "--start", "2", "--stop", "5"], "step 6, the last step with noise is 5"),
        (["--hold", "2,x"], "--hold: 'x' is not a whole number"),
        (["--average", "301"], "average must be a whole number >= 1 and <= 300; got 301"),
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
    said = capsys.readouterr().err
    assert "must be a folder" in said
    assert "replaces" not in said
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "new" / "store").mkdir(parents=True)
    (tmp_path / "new" / "store" / "format.json").write_text('{"format": 99}')
    assert main([*SMALL, "--out", str(tmp_path / "new")]) == 2
    assert "has format 99" in capsys.readouterr().err


def test_sigma_must_be_given_where_it_is_needed():
    with pytest.raises(ValueError, match="sigma has no value for method 'anti'"):
        plan_sweep("widening_valley", method="anti", lr=0.1, steps=3, seeds=1)


def test_hold_is_the_same_for_all_methods():
    with pytest.raises(ValueError, match=r"hold is the same for all methods; got {'anti': 2}"):
        plan_sweep("widening_valley", method="anti", lr=0.1, sigma=0.1, steps=3, seeds=1,
                   hold={"anti": 2})  # fmt: skip


def test_every_run_is_planned_once():
    methods = ["gd", "gd", "anti"]
    runs = plan_sweep(
        "quadratic_regression", method=methods, lr=[0.1, 0.1], sigma=[1, 2], steps=3, seeds=2
    )
    assert len(runs) == 6


@pytest.mark.parametrize(
    ("method", "option", "message"),
    [
        (
            "gd,sgd",
            "--sigma 1",
            "sigma is for pgd, anti, antisgd, label, noise, sam, two_point; none is in",
        ),
        ("gd", "--law uniform", "law is for methods with noise; none is in"),
        ("gd", "--schedule cosine:0:9", "schedule is for methods with noise"),
        ("gd", "--stop 5", "stop is for methods with noise"),
        ("gd,label", "--sigma 1 --hold 2", "hold is for methods with noise on the weights; none"),
        ("label", "--sigma 1 --antithetic", "antithetic is for methods with noise on the weights"),
        ("gd", "--batch 4", "batch is for sgd, antisgd .* none is in"),
        ("noise", "--sigma 1 --batch 4", "for noise by name: noise=4"),
    ],
)
def test_options_without_any_effect_are_refused(method, option, message, tmp_path, capsys):
    words = f"sweep quadratic_regression --method {method} --lr 0.1 --steps 9 --seeds 1 {option}"
    assert main([*words.split(), "--out", str(tmp_path / "out")]) == 2
    assert pd.Series([said := capsys.readouterr().err]).str.contains(message).all(), said


def test_seeds_and_steps_may_be_written_in_several_ways(tmp_path):
    words = f"sweep widening_valley --set d=2 --method gd --lr 0.1 --no-relax --out {tmp_path}"
    for given, seeds in (("2", {0, 1}), ("3,4", {3, 4}), ("0-2,7", {0, 1, 2, 7}), ("5-5", {5})):
        assert main([*words.split(), "--steps", "1e1", "--seeds", given]) == 0
        table = pd.read_csv(tmp_path / "table.csv")
        assert set(table["seed"]) == seeds
        assert table["step"].max() == 10
    runs = plan_sweep("widening_valley", method="gd", lr=0.1, steps=3, seeds=[3, 4])
    assert [run.seed for run in runs] == [3, 4]


def test_taps_that_begin_with_a_minus(tmp_path):
    words = "sweep widening_valley --set d=2 --method noise --taps -1,1 --lr 0.1 --sigma 0.1 "
    assert main([*words.split(), *f"--steps 3 --seeds 1 --out {tmp_path}".split()]) == 0
    assert set(pd.read_csv(tmp_path / "table.csv")["taps"]) == {"-1,1"}


def test_python_says_where_settings_of_the_problem_go():
    with pytest.raises(TypeError, match=r"no setting 'd'; .* set=\{'d': 5\}"):
        sweep("widening_valley", method="gd", lr=0.1, steps=3, seeds=1, d=5)
    valley = PROBLEMS["widening_valley"](d=5)
    with pytest.raises(TypeError, match=r"give the class WideningValley, .* go into set="):
        sweep(valley, method="gd", lr=0.1, steps=3, seeds=1)


def test_the_list_explains_every_setting_and_what_is_watched(capsys):
    assert main(["list"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for name, cls in PROBLEMS.items():
        about = said.partition(f"{name} ")[2].partition("watche")[0]
        for field in cls.__dataclass_fields__:
            assert f" {field}: " in about, (name, field)
        watches = cls.watch is not Problem.watch
        after = said.partition(about)[2]
        assert after.startswith("watches " if watches else "watched"), name


def test_help_says_something_of_every_option(capsys):
    with pytest.raises(SystemExit):
        main(["sweep", "--help"])
    said = capsys.readouterr().out
    said = said[said.index("Options:") : said.index("\nExamples:")]
    options = [line.split()[0] for line in said.splitlines() if line.startswith("  --")]
    assert len(options) == 26
    for line, after in zip(said.splitlines()[1:-1], said.splitlines()[2:], strict=True):
        helped = len(line) > 24 and line[24] != " " and line[23] == " "
        assert helped or after.startswith(" " * 24), line
    assert "linear:BEGIN:END[:INITIAL:FINAL]" in "".join(said.split())
    assert "(default:results)" in "".join(said.split())


def test_optimizers_and_draws_from_the_command_line(tmp_path):
    words = (
        "sweep quadratic_regression --set d=6 --set n=4 --set nonzero=1 --method gd,anti --lr 0.05 "
    )
    words += "--sigma 0.05 --momentum 0.5,0.9 --momentum gd=0.3 --nesterov --hold 1,3 --antithetic "
    words += f"--steps 40 --average 10 --seeds 2 --no-relax --out {tmp_path}"
    assert main(words.split()) == 0
    table = pd.read_csv(tmp_path / "table.csv")
    ends = table[(table["place"] == "w") & (table["step"] == 40)]
    found = ends.groupby("method")[["momentum", "hold"]].apply(
        lambda g: sorted(set(map(tuple, g.to_numpy())))
    )
    assert found["gd"] == [(0.3, 1)]
    assert found["anti"] == [(0.5, 1), (0.5, 3), (0.9, 1), (0.9, 3)]
    assert set(ends["nesterov"]) == {True}
    assert set(ends.loc[ends["method"] == "anti", "antithetic"]) == {True}
    rows = summary(table)
    assert len(rows) == 5
    assert rows["train average"].str.contains(r"\[").all()
    printed = summary_text(rows)
    assert "momentum" in printed
    assert "optimizer" not in printed  # all have the usual one
    again = sweep(
        "quadratic_regression", set={"d": 6, "n": 4, "nonzero": 1}, method=["gd", "anti"], lr=0.05,
        sigma=0.05, momentum={"*": [0.5, 0.9], "gd": 0.3}, nesterov=True, hold=[1, 3],
        antithetic=True, steps=40, average=10, seeds=2, relax=False,
    )  # fmt: skip
    assert again.to_csv(index=False, lineterminator="\n") == (tmp_path / "table.csv").read_text()


def test_the_watched_quantity_and_its_average_are_in_the_tables(tmp_path, capsys):
    words = "sweep widening_valley --set d=5 --method gd,anti --lr 0.1 --sigma 0.1 --steps 300 "
    assert (
        main([*words.split(), *f"--average 200 --seeds 3 --no-relax --out {tmp_path}".split()]) == 0
    )
    printed = capsys.readouterr().out
    assert "watched average" in printed
    assert "average: at w, over the last 200 steps" in printed
    table = pd.read_csv(tmp_path / "table.csv").set_index(["method", "seed", "place", "step"])
    assert table.loc[("gd", 0, "w", 300), "watched"] == pytest.approx(1)
    assert table.loc[("gd", 0, "average", 300), "watched"] == pytest.approx(1)
    run = plan_sweep("widening_valley", set={"d": 5}, method="anti", lr=0.1, sigma=0.1, steps=300,
                     seeds=[2], average=200, relax=False)  # fmt: skip
    (record,) = run_local(run, 1)
    row = table.loc[("anti", 2, "average", 300)]
    assert tuple(row[["train_loss", "norm", "watched"]]) == pytest.approx(
        tuple(record.points[-1][i] for i in (2, 5, 6))
    )
    assert row[["test_loss", "trace"]].isna().all()
    shown = summary(table.reset_index()).set_index("method")
    mean = table.xs(("anti", "average"), level=("method", "place"))["watched"].mean()
    assert shown.loc["anti", "watched average"].startswith(f"{mean:.3g} [")


def test_a_run_that_diverged_has_no_average_but_an_infinite_one():
    table = sweep("quadratic_regression", set={"d": 12, "n": 6}, method="gd", lr=9.0, steps=50,
                  seeds=1, average=5)  # fmt: skip
    (row,) = table[table["place"] == "average"].to_dict("records")
    assert (row["step"], row["status"]) == (50, "diverged")
    assert np.isinf([row["train_loss"], row["norm"]]).all()
    assert np.isnan([row["watched"], row["test_loss"], row["trace"]]).all()
    assert not {"test average", "trace average"} & set(summary(table))


# -- what comes out ----------------------------------------------------------------------------

WILD = (
    "sweep quadratic_regression --set d=12 --set n=6 --set nonzero=2 --method gd,sgd,anti "
    "--lr 0.1,0.6,3 --sigma 0.05 --steps 500 --seeds 5"
).split()


def test_a_figure_of_runs_that_diverge_shows_the_others(tmp_path, capsys):
    assert main([*WILD, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "/5 " in said
    assert "arithmetic means, Student's 95 % intervals over seeds" in said
    table = pd.read_csv(tmp_path / "table.csv", dtype={"taps": str})
    lost = table.groupby(["method", "lr"])["status"].transform(lambda s: (s == "diverged").any())
    table.loc[lost & (table["step"] == 1), ["train_loss", "trace"]] = 1e308
    for rows in (table, table[lost]):
        figure = sweep_figure(rows, "x")
        assert "geometric means" in figure.get_suptitle()
        figure.savefig(io.BytesIO(), format="png")
        assert max(axes.get_ylim()[1] for axes in figure.axes) < 1e10
    calm = table[~lost & (table["place"] == "w")]
    bottom, top = sweep_figure(table, "x").axes[0].get_ylim()
    assert bottom < calm["train_loss"].min()
    assert calm["train_loss"].max() < top < 10 * calm["train_loss"].max()


def test_a_figure_of_nothing_positive_and_of_both_zero_and_infinity():
    table = sweep("widening_valley", set={"d": 2}, method="gd", lr=0.1, steps=9, seeds=2)
    assert (table["train_loss"] == 0).all()
    sweep_figure(table, "x").savefig(io.BytesIO())
    table.loc[table["seed"] == 1, "train_loss"] = np.inf
    figure = sweep_figure(table, "x")
    figure.savefig(io.BytesIO())
    assert np.isnan(figure.axes[0].lines[0].get_ydata()).all()


def test_the_summary_is_there_even_if_the_figure_fails(tmp_path, capsys, monkeypatch):
    def fail(*args, **kwargs):
        raise OverflowError("an axis")

    monkeypatch.setattr(sys.modules["antipgd.paper.simulation.folder"], "sweep_figure", fail)
    with pytest.raises(OverflowError):
        main([*SMALL, "--out", str(tmp_path)])
    assert "test w" in capsys.readouterr().out
    assert len(pd.read_csv(tmp_path / "table.csv"))


LEAVING = "sweep widening_valley --method pgd,anti,gd --lr 0.25 --sigma 0.03 --steps 5000 --seeds 3"


def test_exits_are_counted_and_marked_and_never_joined(tmp_path, capsys):
    assert main([*LEAVING.split(), "--leave", "0.25,4", "--out", str(tmp_path)]) == 0
    assert "left at" in capsys.readouterr().out
    table = pd.read_csv(tmp_path / "table.csv")
    rows = summary(table).set_index("method")
    ends = table[table["place"] == "w"].groupby(["method", "seed"])["step"].max()
    for method, side in (("pgd", "left high"), ("anti", "left low")):
        assert rows.loc[method, side] == 3
        assert rows.loc[method, "left at"].startswith(f"{ends[method].mean():.0f} [")
    assert rows.loc["gd", "left at"] == ""
    figure = sweep_figure(table, "x")
    assert "left low" in figure.get_suptitle()
    trace = figure.axes[-1]
    marks = [line for line in trace.lines if line.get_marker() in ("v", "^")]
    assert [line.get_marker() for line in marks] == ["^", "v"]
    assert [sorted(line.get_xdata()) for line in marks] == [
        sorted(ends["pgd"]),
        sorted(ends["anti"]),
    ]
    pgd, anti, _ = (line for line in trace.lines if line not in marks)
    assert max(pgd.get_xdata()) <= ends["pgd"].min()
    assert max(anti.get_xdata()) <= ends["anti"].min()


def test_a_start_outside_the_interval_is_refused(tmp_path, capsys):
    for interval in ("2,4", "0.1,0.5"):
        assert main([*LEAVING.split(), "--leave", interval, "--out", str(tmp_path / "out")]) == 2
        assert "starts with its watched quantity at 1, which is not" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_relaxations_that_do_not_converge_are_counted(tmp_path, capsys):
    words = "sweep widening_valley --set d=3 --set v=0.1 --method gd,anti --lr 1e-6 --sigma 0.1 "
    assert main([*words.split(), *f"--steps 5 --seeds 2 --out {tmp_path}".split()]) == 0
    said = capsys.readouterr().out
    for method in ("gd", "anti"):
        note = f"2 of 2 relaxations of {method} stopped at 100,000 steps before converging"
        assert note in said


def test_the_summary_fits_and_has_nothing_superfluous(tmp_path, capsys):
    assert main([*SMALL, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "<NA>" not in said
    assert "NaN" not in said
    table_lines = said.partition("\nat the last step")[0].splitlines()
    assert max(map(len, table_lines)) <= 120
    rows = summary(pd.read_csv(tmp_path / "table.csv")).set_index("method")
    assert (rows.loc[["gd", "sgd", "label"], "test z"] == "").all()
    assert (rows.loc["anti", "test z"] != "").all()
    only = sweep("widening_valley", set={"d": 2}, method="gd", lr=0.1, steps=9, seeds=2)
    assert "trace z" not in summary(only)
    assert summary_text(summary(only)).split()[:5] == ["method", "lr", "n", "diverged", "trace"]


def test_some_runs_of_a_setting_that_diverged_are_a_fraction():
    table = sweep("widening_valley", set={"d": 2}, method="gd", lr=0.1, steps=9, seeds=5)
    lost = table["seed"] < 3
    table.loc[lost, "status"] = "diverged"
    table.loc[lost, "trace"] = np.inf
    (row,) = summary(table).to_dict("records")
    assert row["diverged"] == "3/5"
    assert row["trace w"] == "inf"


@pytest.mark.usefixtures("no_lines")
def test_another_sweep_in_the_same_folder_is_said_to_be_replaced(tmp_path, capsys):
    assert main([*SMALL, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "24 of 24 runs done, 0 found stored and 24 run, in" in said.out
    assert main([*SMALL, "--out", str(tmp_path), "--seeds", "4"]) == 0
    said = capsys.readouterr()
    line = f"replaces the table of another sweep in {tmp_path}; its runs stay in the store\n"
    assert said.err == line
    assert "32 of 32 runs done, 24 found stored and 8 run, in" in said.out
    files = said.out.rpartition(": ")[2].strip().split(", ")
    assert files == [str(tmp_path / name) for name in ("table.csv", "figure.png", "figure.svg")]


def test_wrong_shapes_are_named_once_and_no_old_figure_stays(tmp_path, capsys, monkeypatch):
    wrong = OWN.replace("(W ** 2).sum(axis=1)", "(W ** 2).sum()").replace("Fragile", "Flat")
    (tmp_path / "flat_problem.py").write_text(wrong)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("out").mkdir()
    Path("out/figure.png").write_text("of another sweep")
    words = (
        "sweep flat_problem:Flat --method anti --lr 0.1 --sigma 0.1 --steps 5 --seeds 3 --out out"
    )
    assert main(words.split()) == 1
    said = capsys.readouterr()
    message = "Flat.loss must return shape (2,), one number per row; got ()\n"
    assert said.err.count(message) == 1
    assert "and 2 more: ValueError" in said.err
    assert said.out.endswith(": out/table.csv\n")
    assert not Path("out/figure.png").exists()
    assert main([*words.split(), "--dry-run", "--out", "elsewhere"]) == 1
    assert message in capsys.readouterr().err


# -- kill -9 -----------------------------------------------------------------------------------

LONGER = [*SMALL[:-6], "--steps", "20000", "--seeds", "12", "--points", "6", "--no-relax"]


def command(out):
    return [sys.executable, "-m", "antipgd", *LONGER, "--out", str(out)]


def test_kill_dash_9_at_a_random_moment_loses_nothing(tmp_path):
    killed_and_resumed(tmp_path, moments=1)


@pytest.mark.slow
def test_kill_dash_9_at_ten_random_moments_loses_nothing(tmp_path):
    killed_and_resumed(tmp_path, moments=10)


def assert_only_how_far(said):
    """What a busy machine may add to a log."""
    how_far = (b"runs: ", b"compiling antipgd.")
    assert all(line.startswith(how_far) for line in said.splitlines()), said


def stored(out):
    return len(list((out / "store" / "record").rglob("[!.]*.json")))


def killed_and_resumed(tmp_path, moments):
    """Killed as soon as so many records are there: in the midst of computing and writing."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    out = tmp_path / "killed"
    for enough in sorted(random.Random(0).sample(range(1, 88), moments)):
        process = subprocess.Popen([*command(out), "--threads", "1"], **quiet)
        while stored(out) < enough and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        _, said = process.communicate()
        assert process.returncode == -signal.SIGKILL, said
        assert enough <= stored(out) < 96
    finished = subprocess.run(command(out), check=True, **quiet)
    assert_only_how_far(finished.stderr)
    subprocess.run(command(tmp_path / "whole"), check=True, **quiet)
    whole, killed = ((tmp_path / name / "table.csv").read_bytes() for name in ("whole", "killed"))
    assert whole == killed
    table = pd.read_csv(io.BytesIO(killed))
    assert not table.duplicated(["method", "lr", "sigma", "seed", "step", "place"]).any()
    assert stored(out) == 96


def test_two_processes_on_one_store_do_not_harm_each_other(tmp_path):
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    both = [subprocess.Popen(command(tmp_path / "shared"), **quiet) for _ in range(2)]
    told = [process.communicate()[1] for process in both]
    for process, said in zip(both, told, strict=True):
        assert process.returncode == 0, said
        assert_only_how_far(said)
    assert main([*LONGER, "--out", str(tmp_path / "alone")]) == 0
    shared, alone = ((tmp_path / name / "table.csv").read_bytes() for name in ("shared", "alone"))
    assert shared == alone


def test_an_interrupted_sweep_says_how_to_go_on(tmp_path):
    code = (  # in a job in the background, Python ignores the signal unless it is told not to
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from antipgd.cli import main; raise SystemExit(main())"
    )
    words = command(tmp_path)[3:]  # after python -m antipgd
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words, "--steps", "3000000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        while not (tmp_path / "plan.json").exists():
            time.sleep(0.05)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert b"interrupted: " in said
    assert b"the same command goes on" in said


def test_the_commands_of_the_module_and_the_script_are_one():
    script = Path(sys.executable).parent / "antipgd"
    for start in ([str(script)], [sys.executable, "-m", "antipgd"]):
        result = subprocess.run([*start, "list"], capture_output=True, text=True, check=True)
        assert "widening_valley  d=100 D=1.0 v=0.0" in result.stdout
    assert os.access(script, os.X_OK)


def test_a_run_that_diverges_has_no_measure_that_its_problem_has_not():
    result = sweep("widening_valley", set={"d": 2}, method=["pgd", "gd"], lr=0.1, sigma=9.0,
                   steps=300, seeds=2, points=5)  # fmt: skip
    lost = result[(result["status"] == "diverged") & (result["step"] == 300)]
    assert len(lost)
    assert np.isinf(lost["trace"]).all()
    assert result["test_loss"].isna().all()
    assert "test w" not in summary(result)
    titles = [axes.get_title("left") for axes in sweep_figure(result, "valley").axes]
    assert titles == ["training loss at w", "trace of the Hessian at w"]
