"""The verdicts in Markdown: three kinds, counted apart, and the documents have what was printed."""

import re
from pathlib import Path

import pytest

from antipgd.paper.claims import FAILS, HOLDS, LEVEL, UNDECIDED, Claim
from antipgd.paper.coverage import KINDS, NOT_JUDGED, Decided, PaperClaim, decided, judged_together
from antipgd.paper.coverage import paper_claims as rows_of_the_paper
from antipgd.paper.experiments import EXPERIMENTS, load
from antipgd.paper.files import FilesUsageError
from antipgd.paper.results import Results
from antipgd.paper.verdict_table import MARKS, as_markdown, in_short, put_into, tally

ROOT = Path(__file__).parents[2]
VERDICTS, README = ROOT / "docs" / "verdicts.md", ROOT / "README.md"
QUESTIONS = ROOT / "docs" / "questions.md"
BEGIN, END = MARKS["all"]


def a_row(kind, *verdicts, title="it | is so"):
    parts = [
        Claim(f"e.part{i}", "says", "fig", "at w", verdict, -1.5, -2.0, 1e-5, 10, 0.01)
        for i, verdict in enumerate(verdicts)
    ]
    worst = max(verdicts, key=[HOLDS, LEVEL, UNDECIDED, FAILS, NOT_JUDGED].index)
    return Decided(PaperClaim("e", "", "", (), kind, title), worst, parts)


def test_each_kind_has_its_table_and_its_counts():
    rows = [
        a_row("paper", HOLDS, HOLDS), a_row("paper", FAILS, HOLDS, UNDECIDED, FAILS, FAILS),
        a_row("ours", LEVEL), a_row("machine", HOLDS),
    ]  # fmt: skip
    lines = as_markdown(rows, 11_792).splitlines()
    assert lines[0] == "11,792 small training runs, 9 statements judged:"
    heads = [line.split(" | ")[0] for line in lines if " | verdict " in line]
    assert heads == [
        "| claims of the paper: 2, in 7 parts; 1 holds, 1 fails",
        "| additions of ours: 1, in 1 parts; 1 level",
        "| checks of the machine: 1, in 1 parts; 1 holds",
    ]
    assert "| it \\| is so | holds | 2 of 2 |  |" in lines
    (failing,) = [line for line in lines if line.startswith("| it \\| is so | fails")]
    assert "| 1 of 5 | fails: `part0` −1.5 [−2, 1e−05]; fails: `part3`" in failing
    assert failing.endswith("; and 1 more |")
    assert "`part2`" not in failing  # undecided parts come after those that fail


def test_tallies_leave_out_what_there_is_none_of():
    assert tally([a_row("paper", HOLDS), a_row("ours", HOLDS, LEVEL)]) == "1 holds, 1 level"
    assert tally([a_row("paper", HOLDS)] * 2 + [a_row("paper", FAILS)]) == "2 hold, 1 fails"
    assert tally([]) == ""


def test_a_table_goes_between_the_marks():
    document = f"before\n{BEGIN}\nold\nold\n{END}\nafter\n"
    once = put_into(document, "new\n")
    assert once == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    assert put_into(once, "new\n") == once
    with pytest.raises(FilesUsageError, match="must have the lines"):
        put_into("no marks\n", "new\n")


def test_a_row_is_judged_when_all_its_experiments_are():
    claims = [Claim("sensing_tuned.pgd", "", "", "", HOLDS, 0, 0, 0, 9, 0.01)]
    found = {one.row.id: one for one in decided(claims, ["sensing_tuned"])}
    assert found["tuned_pgd"].verdict == NOT_JUDGED
    found = {one.row.id: one for one in decided(claims, ["sensing_tuned", "always_best"])}
    assert (found["tuned_pgd"].verdict, found["tuned_pgd"].held) == (HOLDS, 1)


def shown_table(page=VERDICTS):
    return page.read_text("utf-8").partition(f"{BEGIN}\n")[2].partition(f"{END}\n")[0]


def test_the_short_form_has_the_counts_and_what_is_said():
    rows = [a_row("paper", HOLDS, HOLDS), a_row("paper", FAILS), a_row("machine", HOLDS)]
    said = ["It gained.", "| a | b |\n|---|---|\n| c | 2 |"]
    assert in_short(as_markdown(rows, 1_200, said)) == (
        "It gained.\n\n| a | b |\n|---|---|\n| c | 2 |\n\n"
        "Claims of the paper: 2, in 3 parts; 1 holds, 1 fails; from 1,200 small training runs "
        "([each with its interval](docs/verdicts.md)).\n"
    )
    begin, end = MARKS["short"]
    document = f"a\n{begin}\n{end}\nb\n"
    put = put_into(document, as_markdown(rows, 1_200))
    assert put == f"a\n{begin}\n{in_short(as_markdown(rows, 1_200))}{end}\nb\n"


def test_readme_has_the_short_form_of_the_table_that_is_shown():
    assert put_into(README.read_text("utf-8"), shown_table()) == README.read_text("utf-8")
    assert "Small networks, " in README.read_text("utf-8")


@pytest.mark.parametrize(
    ("page", "kinds"), [(VERDICTS, ("paper", "ours", "machine")), (QUESTIONS, ("question",))]
)
def test_the_page_of_verdicts_has_every_row_in_its_order(page, kinds):
    """If it fails: make paper, then
    python -m antipgd.paper.verdict_table results docs/verdicts.md README.md; make questions"""
    table = shown_table(page)
    lines = [line for line in table.splitlines()
             if re.match(r"\| .* \| .* \|( \d|  \|)", line)]  # fmt: skip
    titles = [row.title for kind in kinds for row in rows_of_the_paper() if row.kind == kind]
    assert [line[2:].partition(" | ")[0].replace("\\|", "|") for line in lines] == titles
    for kind in kinds:
        (head,) = [line for line in table.splitlines() if line.startswith(f"| {KINDS[kind]}")]
        own = {row.title for row in rows_of_the_paper() if row.kind == kind}
        shown = [line for line, title in zip(lines, titles, strict=True) if title in own]
        found = [re.search(r"\| \d+ of (\d+) \|", line) for line in shown]
        parts = [int(one[1]) if one else 0 for one in found]  # none of rows that are not judged
        assert f": {len(shown)}, in {sum(parts)} parts; " in head


def test_the_page_of_verdicts_shows_what_is_judged_without_a_run():
    """The rows that need no run are judged here and must be there word for word."""
    alone = [name for name in EXPERIMENTS if "scale" not in load(name).runs.__code__.co_varnames
             and not load(name).runs(2)]  # fmt: skip
    claims = [claim for name in alone for claim in load(name).claims(Results([]))]
    rows = decided(judged_together(claims, rows_of_the_paper()), alone)
    judged = [one for one in rows if one.verdict != NOT_JUDGED]
    assert len(judged) >= 12
    for line in as_markdown(judged, 0).splitlines():
        if re.search(r"\| \d+ of \d+ \|", line):
            assert line in shown_table().splitlines()
