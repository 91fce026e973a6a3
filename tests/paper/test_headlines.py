"""The sentences at the top are true of whatever verdicts there are."""

import pytest

from antipgd.paper.claims import FAILS, HOLDS, LEVEL, NOT_AT_MINIMUM, UNDECIDED
from antipgd.paper.coverage import NOT_JUDGED, paper_claims
from antipgd.paper.errata import BY_READING as ERRATA_BY_READING
from antipgd.paper.report import Erratum, Row
from antipgd.paper.report.headlines import BY_READING, FORMULAS, PROBLEMS, headlines

VERBS = {HOLDS: "holds", FAILS: "fails", UNDECIDED: "is undecided", LEVEL: "is level",
         NOT_AT_MINIMUM: "was not at a minimum"}  # fmt: skip


def a_row(id, verdict, kind="paper", held=3, parts=7):
    return Row(id, "", "", verdict, [], kind, held=held, parts=parts)


def test_the_claims_of_the_paper_are_counted_and_no_others():
    verdicts = [HOLDS] * 3 + [FAILS] * 2 + [UNDECIDED, NOT_JUDGED]
    rows = [a_row(f"r{i}", verdict) for i, verdict in enumerate(verdicts)]
    rows += [a_row("o", FAILS, "ours"), a_row("m", HOLDS, "machine")]
    assert headlines(rows) == {
        "The paper's claims": "Of 7 claims of the paper 6 were judged here: 3 hold, 1 is undecided "
        "and 2 fail."
    }


def test_one_verdict_of_all():
    said = headlines([a_row("a", HOLDS), a_row("b", HOLDS)])
    assert said["The paper's claims"] == "Of 2 claims of the paper, 2 hold."


def test_questions_are_counted_where_they_were_asked():
    rows = [a_row("a", HOLDS, "question"), a_row("b", FAILS, "question"),
            a_row("c", NOT_JUDGED, "question")]  # fmt: skip
    assert headlines(rows) == {
        "Its conclusion's questions": "Of 2 statements that answer them, 1 holds and 1 fails."
    }
    assert headlines(rows[2:]) == {}


@pytest.mark.parametrize("verdict", VERBS)
def test_the_small_problems_say_their_verdict_and_how_many_parts_hold(verdict):
    rows = [a_row("regression", verdict, held=5, parts=6), a_row("sensing", HOLDS, held=9, parts=9)]
    said = headlines(rows)["Small problems"]
    assert f": on quadratic regression this {VERBS[verdict]} (5 of 6 comparisons);" in said
    assert said.endswith("on matrix sensing this holds (9 of 9 comparisons).")


@pytest.mark.parametrize("verdict", VERBS)
def test_the_law_at_real_rates_says_its_verdict(verdict):
    said = headlines([a_row("finite_rate", verdict, "ours", 70, 75)])
    assert [*said] == ["Learning rates"]
    assert said["Learning rates"].endswith(
        f"and momentum: this law, which is ours, {VERBS[verdict]} (70 of 75 comparisons)."
    )


def test_theory_and_slips():
    rows = [a_row("smoothing", HOLDS), a_row("variations", FAILS)]
    slips = [Erratum("a", "b", "c", BY_READING), Erratum("a", "b", "c", "0.5 measured")]
    assert headlines(rows, slips)["Theory"] == (
        "Of 2 claims of its theory, 1 holds and 1 fails; "
        "we found 2 slips in it, 1 of them confirmed by a computation, the others by reading."
    )
    assert headlines([], slips[:1])["Theory"] == "We found 1 slip in it, by reading."
    assert headlines([], slips[1:])["Theory"] == "We found 1 slip in it, by a computation."


def test_networks_say_what_their_experiments_say():
    assert headlines([], said=["Gained in 2.", ""])["Networks"].strip() == "Gained in 2."


@pytest.mark.parametrize("verdict", [NOT_JUDGED, "something else"])
def test_nothing_is_said_of_what_was_not_judged(verdict):
    rows = [a_row(name, verdict) for name in ("regression", "sensing", "finite_rate", "smoothing")]
    assert headlines(rows) == {}


def test_the_rows_that_sentences_are_made_from_exist():
    kinds = {row.id: row.kind for row in paper_claims()}
    assert all(kinds[name] == "paper" for name in (*PROBLEMS, *FORMULAS))
    assert kinds["finite_rate"] == "ours"
    assert BY_READING == ERRATA_BY_READING
