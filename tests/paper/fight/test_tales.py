"""Tales are right, come again, and cost what their choices cost."""

import math
import re

import pytest

from antipgd.paper.fight.problems.tales import ALPHABET, FIRST, SECOND, Teller, tell

LONG = [tell(FIRST, 3, f"test/{i}", 3000)[0] for i in range(3)]


def test_the_same_seed_tells_the_same_and_parts_differ():
    assert tell(FIRST, 0, "train/0", 129) == tell(FIRST, 0, "train/0", 129)
    assert len({tell(FIRST, seed, part, 129)[0] for seed in (0, 1) for part in "ab"}) == 4


@pytest.mark.parametrize("grammar", [FIRST, SECOND])
def test_texts_have_their_length_and_alphabet(grammar):
    text, nats = tell(grammar, 0, "x", 500)
    assert len(text) == 500
    assert set(text) <= set(ALPHABET)
    assert 0.3 < nats / 500 < 0.7


def test_sums_are_right_and_differences_in_the_second():
    sums = [s for text in LONG for s in re.findall(r"(\d)\+(\d)=(\d+)\. ", text)]
    assert len(sums) > 10
    assert all(int(a) + int(b) == int(c) for a, b, c in sums)
    less = re.findall(r"(\d)-(\d)=(\d)\. ", tell(SECOND, 3, "x", 3000)[0])
    assert less
    assert all(int(a) - int(b) == int(c) for a, b, c in less)


def test_brackets_close_what_was_opened():
    rows = [r for text in LONG for r in re.findall(r"(?<=\. )([\[\](){}]+)(?=\. )", text)]
    assert len(rows) > 10
    for row in rows:
        left = row
        while (shorter := re.sub(r"\(\)|\[\]|\{\}", "", left)) != left:
            left = shorter
        assert left == "", row


def test_names_are_those_of_what_they_are():
    checked = 0
    for text in LONG:
        for tale in text.split("\n")[1:-1]:
            people = dict(re.findall(r"(\w+) is a (\w+)\. ", tale))
            for noun, name in re.findall(r"(?<=\. )the (\w+) is (\w+)\. ", tale):
                assert people[name] == noun
                checked += 1
    assert checked > 10


def test_verbs_agree_over_a_clause():
    nouns, verbs = "|".join(FIRST.nouns), "|".join(FIRST.verbs)
    subject, seen = rf"the (?:{nouns})(s?)", "(?:see|hear|fear|like)(s?)"
    pattern = rf"{subject} that {subject} {seen} (?:{verbs})(s?)\b"
    found = [m for text in LONG for m in re.findall(pattern, text)]
    assert len(found) > 10
    assert all((a == "s") != (d == "s") and (b == "s") != (c == "s") for a, b, c, d in found)
    assert any(a != b for a, b, *_ in found)


def test_the_floor_is_what_the_choices_cost():
    """Two names of four letters and what they are: nothing else is chosen up to there."""
    text = Teller(FIRST, 0, "x", 200).text
    end = [found.end() for found in re.finditer(r" is a \w+\. ", text)][1]
    _, nats = tell(FIRST, 0, "x", end)
    assert nats == pytest.approx(math.log(10 * 5 * 10 * 5 * 8) + math.log(9 * 5 * 10 * 5 * 7))
