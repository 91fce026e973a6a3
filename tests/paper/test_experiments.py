"""The paper's experiments: complete, consistent, and restored when something is missing."""

import json
import re
from collections import Counter

import pytest

from antipgd.cli import main
from antipgd.paper.claims import SEVERITY
from antipgd.paper.coverage import KINDS, paper_claims, paper_figures
from antipgd.paper.experiments import EXPERIMENTS, GROUPS, about, choose, is_scaled, load, title_of
from antipgd.paper.progress import Progress
from antipgd.paper.simulation import cost

SMALL = ["--only", "anticorrelation,label_noise", "--seeds", "2"]


def test_every_panel_of_the_paper_names_one_experiment_or_says_why_not():
    figures = paper_figures()
    assert len(figures) == 17
    assert len([figure for figure in figures if figure.label.startswith("fig:")]) == 14
    panels = [panel for figure in figures for panel in figure.panels]
    assert len(panels) == 46
    assert set(panels) <= {*EXPERIMENTS, "drawing"}
    served = {panel for panel in panels if panel in EXPERIMENTS}
    assert {
        "two_minima",
        "regression",
        "sensing",
        "valley_paths",
        "valley_exit",
        "anti_sgd",
    } <= served


def test_every_experiment_decides_a_claim_of_the_paper():
    rows = paper_claims()
    assert len({row.id for row in rows}) == len(rows)
    decided = {name for row in rows for name in row.experiments}
    assert decided == set(EXPERIMENTS)


def test_every_row_says_whose_claim_it_is():
    rows = paper_claims()
    assert {row.kind for row in rows} == KINDS.keys()
    assert len({row.title for row in rows}) == len(rows)
    for row in rows:
        assert row.title
        assert row.says.endswith(".")
        assert row.quote or row.kind != "paper", row.id
        assert not re.search(r"[\\$~{}]", row.quote), row.id  # words, not LaTeX


def test_what_can_hardly_fail_is_no_claim_of_the_paper():
    machine = {p for row in paper_claims() if row.kind == "machine" for p in row.parts}
    assert {
        "anticorrelation.*", "smoothing.forms", "beats_sgd.*_early", "moments.pgd_*",
        "moments.anti_*", "cond_variance.corrected_*", "cond_variance.pgd_*", "variations.lemma",
    } <= machine  # fmt: skip


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if not is_scaled(name)])
def test_an_experiment_is_a_plan_with_a_claim(name):
    module = load(name)
    tuning = getattr(module, "TUNING", ())  # seeds of their own, the same whatever is judged
    runs = [run for run in module.runs(2) if run.seed not in tuning]
    assert module.SEEDS >= 1
    assert title_of(name)
    assert len(about(name)) > 100
    assert len({run.seed for run in runs}) in (0, 2)
    planned = [run for run in module.runs(module.SEEDS) if run.seed not in tuning]
    if runs:
        assert len(planned) / len(runs) == module.SEEDS / 2
    per_seed = Counter(run.seed for run in planned)
    assert len(set(per_seed.values())) <= 1  # every seed has the same runs, so seeds can be paired


def test_choosing_experiments():
    assert choose(["regression", "anticorrelation"]) == ["anticorrelation", "regression"]
    assert choose(["questions", "regression"]) == ["regression", *GROUPS["questions"]]
    assert not {*choose(None)} & {*GROUPS["questions"]}  # no part of the paper's twelve minutes
    assert len(choose(None)) + len(GROUPS["questions"]) == len(EXPERIMENTS)
    with pytest.raises(
        ValueError, match="unknown experiment 'regresion'; did you mean 'regression'"
    ):
        choose(["regresion"])


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    assert main(["paper", *SMALL, "--out", str(folder)]) == 0
    return folder


def test_the_command_ends_with_verdicts_and_the_page(out, capsys):
    assert main(["paper", *SMALL, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"anticorrelation +holds +15 of +15 parts hold", said)
    assert "checks of the machine: 1, in 15 parts; 1 holds" in said
    assert "additions of ours: 1, in 4 parts; " in said
    assert "claims of the paper" not in said  # none is judged here
    assert "    “The name Anti-PGD comes from the fact that consecutive perturbations" in said
    assert "made with 2 seeds instead of the number fixed" in said
    assert said.strip().endswith(f"the page: {out / 'report.html'}")
    assert "not judged here: smoothing" in said


def test_claims_are_a_list_of_plain_values(out):
    claims = json.loads((out / "claims.json").read_text())
    assert len(claims) == 19
    for claim in claims:
        assert {
            "id",
            "statement",
            "reference",
            "verdict",
            "value",
            "low",
            "high",
            "n",
            "p",
            "needed",
        } <= claim.keys()
        assert claim["verdict"] in SEVERITY
        assert claim["low"] <= claim["value"] <= claim["high"]
        assert claim["id"].partition(".")[0] in ("anticorrelation", "label_noise")


def test_the_verdicts_are_written_as_markdown(out):
    text = (out / "verdicts.md").read_text()
    assert "| injections anticorrelated by ½, nothing else | holds | 15 of 15 |  |" in text
    assert "| label noise of matched strength is Anti-PGD | " in text
    assert text.startswith("6 small training runs, 19 statements judged:")


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "record" not in path.parts
    }


def test_whatever_is_deleted_is_restored_exactly(out, monkeypatch):
    before = contents(out)
    records = {path: path.read_bytes() for path in (out / "store" / "record").rglob("*.json")}
    assert {"report.html", "claims.json", "verdicts.md"} <= {str(path) for path in before}
    victim, content = next(iter(records.items()))
    victim.unlink()
    for path in (
        "report.html",
        "verdicts.md",
        "claims.json",
        "figures/label_noise.png",
        "figures/label_noise.svg",
    ):
        (out / path).unlink()
    (out / "figures" / "anticorrelation.png").write_bytes(b"broken")
    assert main(["paper", *SMALL, "--out", str(out)]) == 0
    assert contents(out) == before
    assert victim.read_bytes().split(b"\n")[2] == content.split(b"\n")[2]
    others = {path: path.read_bytes() for path in records if path != victim}
    assert all(records[path] == now for path, now in others.items())


def test_nothing_is_made_again(out, monkeypatch):
    from antipgd.paper import verdicts
    from antipgd.paper.simulation import sweep

    def refuse(*arguments, **keywords):
        raise AssertionError("made again")

    monkeypatch.setattr(sweep, "run_local", refuse)
    monkeypatch.setattr(verdicts, "rendered", refuse)
    assert main(["paper", *SMALL, "--out", str(out)]) == 0


def test_the_plan(out, capsys):
    assert main(["paper", *SMALL, "--out", str(out), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"label_noise +6 runs, +0 to do", said)


def test_the_plan_says_minutes_and_what_it_times(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cost, "_seconds_per_step", lambda block: 1.0)
    told = []
    monkeypatch.setattr(Progress, "finish", lambda bar, name="": told.append((bar.stage, name)))
    assert main(["paper", *SMALL, "--out", str(tmp_path), "--threads", "2", "--dry-run"]) == 0
    assert re.search(r"small ones: about [\d.]+ (min|h) on 2 threads", capsys.readouterr().out)
    assert ("compiling and timing", "quadratic_regression") in told


def test_the_page_from_what_is_stored(out, tmp_path, capsys):
    assert main(["report", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "regression: not judged, 40 of 40 runs missing" in said
    assert re.search(r"anticorrelation +holds", said)
    assert main(["status", "--out", str(out)]) == 0
    assert "done          6" in capsys.readouterr().out
    assert main(["paper", *SMALL, "--out", str(out)]) == 0


def test_mistakes(tmp_path, capsys):
    assert main(["paper", "--only", "regresion", "--out", str(tmp_path / "a")]) == 2
    assert "did you mean 'regression'" in capsys.readouterr().err
    assert main(["paper", "--seeds", "1", "--out", str(tmp_path / "a")]) == 2
    assert "seeds must be" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
