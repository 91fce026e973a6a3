import itertools
import re
from html.parser import HTMLParser

import pytest

from antipgd.paper import figures
from antipgd.paper.claims import FAILS, HOLDS, LEVEL, UNDECIDED, Claim
from antipgd.paper.report import Item, Row, measured, number, page

EVIL = '<script src="https://example.org/x.js">alert("&")</script>'


def a_claim(**changes: object) -> Claim:
    fields = {
        "id": "regression.loss_gd", "statement": "lower than GD", "reference": "fig:page1",
        "tested": "at w", "verdict": HOLDS, "value": 0.0015, "low": 0.0012, "high": 0.0019, "n": 10,
    }  # fmt: skip
    return Claim(**{**fields, **changes})  # type: ignore[arg-type]


def a_figure(kind: str) -> bytes:
    panel = figures.Panel("", [figures.Series([1, 2], [3, 4], "GD")])
    return figures.rendered(figures.draw([panel]), kind)


@pytest.fixture(scope="module")
def svg() -> bytes:
    return a_figure("svg")


@pytest.fixture(scope="module")
def png() -> bytes:
    return a_figure("png")


def a_page(items: list[Item], rows: list[Row] | None = None, **changes: object) -> str:
    given = {"notes": ["three seeds"], "provenance": {"commit": "abc"}, "command": "antipgd paper"}
    return page(items, rows=rows or [], **{**given, **changes})  # type: ignore[arg-type]


@pytest.fixture
def full(svg: bytes, png: bytes) -> str:
    verdicts = (HOLDS, FAILS, UNDECIDED)
    claims = [a_claim(id=f"regression.{verdict}", verdict=verdict) for verdict in verdicts]
    items = [
        Item("regression", "Quadratic regression.", "One.\n\nTwo `w`.", claims, svg, png),
        Item("two words & more", "Only pixels", "", [], None, png),
        Item("bare", "Nothing", "", [], None, None),
    ]
    rows = [
        Row("regression", "fig:page1", "it is better", FAILS, ["regression", "two words & more"]),
        Row("cifar", "fig:3", "a network", "not run", ["network"]),
    ]
    return a_page(items, rows)


class Tree(HTMLParser):
    """What a page consists of; complains about tags that do not match."""

    VOID = ("meta", "link", "img", "wbr", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)

    def all(self, attribute: str) -> list[str]:
        return [attrs[attribute] for _, attrs in self.tags if attribute in attrs]


def test_nothing_in_a_text_becomes_markup(svg: bytes) -> None:
    claim = a_claim(id=EVIL, statement=EVIL, reference=EVIL, tested=EVIL, verdict=HOLDS)
    item = Item(EVIL, EVIL, EVIL, [claim], svg, None)
    row = Row(EVIL, EVIL, EVIL, EVIL, [EVIL])
    text = a_page([item], [row], notes=[EVIL], provenance={EVIL: EVIL}, command=EVIL)
    tree = Tree(text)
    assert "<script" not in text
    assert not any(name == "script" for name, _ in tree.tags)
    # id, claim, label, verdict and its count; note; contents; section: title, about, caption, four
    # of the claim, command to rerun; provenance: command, key, value
    assert tree.text.count(EVIL) == 18
    assert "Figure 1: " + EVIL in tree.all("alt")[0]


def test_every_link_has_its_target_and_every_id_is_unique(full: str) -> None:
    tree = Tree(full)
    ids, links = tree.all("id"), [link for link in tree.all("href") if link != "data:,"]
    assert len(ids) == len(set(ids))
    assert not any(re.search(r"\s", name) for name in ids)
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert all(link.startswith("#") for link in links)
    assert {"#experiment-regression", "#provenance", "#verdicts"} <= set(links)


def test_a_row_without_its_experiment_is_not_a_link(full: str) -> None:
    assert "#experiment-network" not in full


def test_nothing_comes_from_outside(full: str) -> None:
    tree = Tree(full)
    assert all(source.startswith("data:image/") for source in tree.all("src"))
    assert not re.search(r"https?:|url\(|@import|<script|<iframe|\bsrcset=", full)
    assert "default-src 'none'" in full


def test_the_page_says_its_language_and_schemes(full: str) -> None:
    assert full.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert '<meta name="color-scheme" content="light dark">' in full
    assert "prefers-color-scheme: dark" in full
    assert "@media print" in full


def test_verdicts_come_first_in_words_and_symbols(full: str) -> None:
    tree = Tree(full)
    assert full.index('id="verdicts"') < full.index('id="contents"') < full.index("<img")
    for shown in ("✓ holds", "✗ fails", "? undecided", "– not run"):
        assert shown in tree.text
    counts = re.search(r'<ul class="counts">.*?</ul>', full)
    assert counts is not None
    assert Tree(counts[0]).text == "2 rows✗ fails 1– not run 1"


def test_headings_do_not_skip_a_level(full: str) -> None:
    levels = [int(tag[1]) for tag, _ in Tree(full).tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert set(levels[1:]) == {2, 3}
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_a_section_shows_text_numbers_and_how_to_rerun(full: str) -> None:
    text = Tree(full).text
    assert "0.0015 [0.0012, 0.0019]" in text
    assert "<p>One.</p>\n<p>Two <code>w</code>.</p>" in full
    assert "antipgd paper --only regression" in text
    assert "three seeds" in text
    assert "abc" in text


def test_a_claim_says_whose_it_is_and_what_would_decide_it() -> None:
    claims = [
        a_claim(id="regression.test_gd", verdict=UNDECIDED, needed=1234),
        a_claim(id="label_noise.test"),
        a_claim(id="smoothing.forms"),
    ]
    text = Tree(a_page([Item("a", "A", "", claims, None, None)])).text
    assert "101,234 would decide" in text  # n is 10
    assert text.count("would decide") == 1
    assert text.count("fig:page1 (ours)") == 1
    assert text.count("fig:page1 (a check of the machine)") == 1


def test_figures_are_drawings_unless_there_are_only_pixels(full: str) -> None:
    sources = Tree(full).all("src")
    assert [source.split(";")[0] for source in sources] == ["data:image/svg+xml", "data:image/png"]
    widths = [int(width) for width in Tree(full).all("width")]
    assert widths[0] == pytest.approx(3.4 * 96, abs=1)
    assert widths[1] == pytest.approx(3.4 * 96, abs=1)


def test_an_enormous_drawing_gives_way_to_pixels(svg: bytes, png: bytes) -> None:
    enormous = svg + b"<!--" + b" " * 2_000_000 + b"-->"
    with_both = a_page([Item("a", "A", "", [], enormous, png)])
    without_pixels = a_page([Item("a", "A", "", [], enormous, None)])
    assert Tree(with_both).all("src")[0].startswith("data:image/png")
    assert Tree(without_pixels).all("src")[0].startswith("data:image/svg+xml")


def test_a_drawing_without_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"width and height in pt; got b'<svg>'"):
        a_page([Item("a", "A", "", [], b"<svg>", None)])


def test_the_same_input_gives_the_same_bytes(full: str, svg: bytes) -> None:
    item = Item("regression", "T", "", [a_claim()], svg, None)
    assert a_page([item]).encode() == a_page([item]).encode()
    assert a_figure("svg") == svg


def test_an_empty_page_is_a_page() -> None:
    tree = Tree(a_page([], notes=[], provenance={}))
    assert "Verdicts" in tree.text


def test_kinds_of_claims_are_counted_apart_and_the_paper_is_quoted(full: str) -> None:
    rows = [
        Row("a", "fig:1", "it is better", HOLDS, [], "paper", "it is “better” & flat"),
        Row("b", "fig:1", "it is worse", FAILS, [], "paper"),
        Row("c", "eq:1", "two and two", HOLDS, [], "machine"),
        Row("d", "", "ours", LEVEL, [], "ours"),
    ]
    text = a_page([], rows)
    counts = [Tree(found).text for found in re.findall(r'<ul class="counts">.*?</ul>', text)]
    assert counts == ["2 rows✓ holds 1✗ fails 1", "1 rows= level 1", "1 rows✓ holds 1"]
    titles = re.findall(r"<h3[^>]*>(.*?)</h3>", text)
    assert titles == ["Claims of the paper", "Additions of ours", "Checks of the machine"]
    assert "<q>it is “better” &amp; flat</q>" in text
    assert "what the paper says" not in text[text.index("Additions of ours") :]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"), (1.0, "1"), (0.12345, "0.123"), (-0.5, "−0.5"), (999.6, "1,000"),
        (123456.0, "123,000"), (999_999.0, "1×10⁶"), (1.234e-5, "1.23×10⁻⁵"),
        (-6.02e23, "−6.02×10²³"), (0.0001, "0.0001"), (float("nan"), "n/a"),
        (float("-inf"), "−∞"),
    ],
)  # fmt: skip
def test_three_significant_digits(value: float, shown: str) -> None:
    assert number(value) == shown


def test_a_value_without_interval_stands_alone() -> None:
    assert measured(a_claim(low=float("nan"), high=float("nan"))) == "0.0015"
