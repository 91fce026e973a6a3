import base64
import hashlib
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from antipgd.paper import figures
from antipgd.paper.claims import FAILS, HOLDS, LEVEL, UNDECIDED, Claim
from antipgd.paper.coverage import NOT_JUDGED
from antipgd.paper.references import PAPER
from antipgd.paper.report import Erratum, Item, Row, measured, number, page
from antipgd.paper.report.markup import text as marked_up
from antipgd.paper.report.opening import CODE

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
        Item("regression", "Quadratic regression.", "One.\n\nTwo `w`, as in `bare`.", claims, svg,
             png, "Losses. Ten seeds.", "Small ones"),
        Item("two words & more", "Only pixels", "", [], None, png, "", "Small ones"),
        Item("bare", "Nothing", "", [a_claim(id="bare.a")], None, None, "", "Networks", True),
    ]  # fmt: skip
    rows = [
        Row("regression", "fig:page1", "it is better", FAILS, ["regression", "two words & more"],
            quote="we found “better” & flat", title="best of all", held=2, parts=3),
        Row("cifar", "fig:front_experiments (3rd)", "a network", "not run", ["network"]),
    ]  # fmt: skip
    slips = [Erratum("§sec:exp", "w_0 = σ^2", "see `bare`", "4.00e-04 by enumeration")]
    return a_page(items, rows, errata=slips)


class Tree(HTMLParser):
    """What a page consists of; complains about tags that do not match."""

    VOID = ("meta", "link", "img", "wbr", "br", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.inside: dict[str, list[str]] = {"style": [], "script": []}
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
        if self.open:
            self.inside.get(self.open[-1], self.words).append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)

    def all(self, attribute: str) -> list[str]:
        return [attrs[attribute] for _, attrs in self.tags if attribute in attrs]


def test_nothing_in_a_text_becomes_markup(svg: bytes) -> None:
    given: list[str] = []

    def evil(name: str) -> str:
        given.append(f"{EVIL}{name}")
        return given[-1]

    claim = a_claim(id=EVIL, statement=evil("says"), reference=evil("ref"), tested=evil("tested"))
    item = Item(evil("name"), evil("title"), evil("about"), [claim], svg, None,
                evil("caption"), evil("chapter"))  # fmt: skip
    row = Row(EVIL, evil("place"), evil("claim"), evil("verdict"), [item.name], "paper",
              evil("quote"), evil("line"))  # fmt: skip
    text = a_page([item], [row], notes=[evil("note")], provenance={evil("key"): evil("value")},
                  command=evil("command"), errata=[Erratum(*map(evil, "abcd"))],
                  said=[evil("said")])  # fmt: skip
    tree = Tree(text)
    assert text.count("<script") == sum(name == "script" for name, _ in tree.tags) == 1
    assert [words for words in given if words not in tree.text] == []
    assert item.title in tree.all("alt")[0]


def test_every_link_has_its_target_and_every_id_is_unique(full: str) -> None:
    tree = Tree(full)
    ids, links = tree.all("id"), [link for link in tree.all("href") if link != "data:,"]
    assert len(ids) == len(set(ids))
    assert not any(re.search(r"\s", name) for name in ids)
    assert links.count(PAPER) == 1
    inside = [link for link in links if link != PAPER]
    assert {link.removeprefix("#") for link in inside} <= set(ids)
    assert all(link.startswith("#") for link in inside)
    assert {"#experiment-regression", "#provenance", "#verdicts", "#chapter-Networks"} <= set(links)
    assert {"claim-regression.holds", "row-cifar", "kind-paper"} <= set(ids)


def test_a_row_without_its_experiment_is_not_a_link(full: str) -> None:
    assert "#experiment-network" not in full
    assert "Its experiment is not on this page." in full


def test_the_name_of_an_experiment_is_a_link_to_its_section(full: str) -> None:
    assert 'as in <a href="#experiment-bare">section 3</a>' in full
    assert 'see <a href="#experiment-bare">section 3</a>' in full


def test_nothing_comes_from_outside(full: str) -> None:
    tree = Tree(full)
    assert all(source.startswith("data:image/") for source in tree.all("src"))
    assert not re.search(r"https?:|url\(|@import", "".join(tree.inside["style"]))
    assert not re.search(r"https?:|import|fetch|eval", "".join(tree.inside["script"]))
    assert not {"iframe", "object", "embed", "form"} & {name for name, _ in tree.tags}
    assert tree.all("srcset") == []


def digest(script: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() + "'"


def test_only_scripts_named_by_their_digest_may_run() -> None:
    fragment = '<div id="playground"></div>\n<script>let a = 1;\n</script>\n<script>b()</script>'
    tree = Tree(a_page([], playground=fragment))
    (policy,) = [attrs["content"] for _, attrs in tree.tags if "http-equiv" in attrs]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert set(rules["script-src"].split()) == {digest(one) for one in tree.inside["script"]}
    assert len(tree.inside["script"]) == 3
    assert digest("let a = 1;\n") in rules["script-src"]


def test_there_is_a_place_for_a_playground() -> None:
    without, within = a_page([]), a_page([], playground="<div>Play</div>")
    assert "Playground" not in Tree(without).text
    assert "Play" in Tree(within).text
    assert within.index('id="method"') < within.index("<div>Play</div>")
    assert within.index("<div>Play</div>") < within.index('id="verdicts"')
    assert within.count('href="#try"') == 2  # in both contents


def test_the_page_says_its_language_and_schemes(full: str) -> None:
    assert full.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert '<meta name="color-scheme" content="light dark">' in full
    assert "prefers-color-scheme: dark" in full
    assert "@media print" in full


def test_it_opens_with_the_method_and_one_picture(full: str) -> None:
    names = ("method", "outcome", "verdicts", "experiments", "errata", "provenance")
    order = [full.index(f'id="{name}"') for name in names]
    assert order == sorted(order)
    opening = Tree(full[full.index('<header id="method">') : full.index('<section id="outcome">')])
    assert "w ← w − η∇L(w) + (ξn+1 − ξn)" in opening.text
    assert len(opening.all("src")) == 1
    assert "Losses. Ten seeds." in opening.text


def test_the_line_of_code_is_one_that_the_readme_runs() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    assert f">>> {CODE} " in readme


def test_verdicts_in_words_and_symbols(full: str) -> None:
    tree = Tree(full)
    for shown in ("✓ holds", "✗ fails", "? undecided", "– not run"):
        assert shown in tree.text
    counts = re.search(r'<ul class="counts">.*?</ul>', full)
    assert counts is not None
    assert Tree(counts[0]).text == "2 rows✗ fails 1– not run 1"


def test_rows_are_in_words(full: str) -> None:
    text = Tree(full).text
    assert "Best of all" in text
    assert "2 of 3 parts hold. Figures and numbers: section 1, section 2." in text
    assert "Figure 2, third column" in text
    assert not re.search(r"\b(fig|thm|sec|eq|def|app|cor|prop|lemma|subsec):", text, re.I)


def test_headings_do_not_skip_a_level(full: str) -> None:
    levels = [int(tag[1]) for tag, _ in Tree(full).tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert set(levels[1:]) == {2, 3, 4}
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_a_section_shows_text_numbers_and_how_to_rerun(full: str) -> None:
    text = Tree(full).text
    assert "0.0015 [0.0012, 0.0019]" in text
    assert "<p>One.</p>\n<p>Two <code>w</code>, as in" in full
    assert "antipgd paper --only regression" in text
    assert "three seeds" in text
    assert "abc" in text
    assert "Figure 1. Losses. Ten seeds." in text


def test_formulas_have_indices_and_powers() -> None:
    assert marked_up("ξ_{n+1} − ξ_n") == "ξ<sub>n+1</sub> − ξ<sub>n</sub>"
    assert marked_up("w_0 = σ^2") == "w<sub>0</sub> = σ<sup>2</sup>"
    assert marked_up("ρz_k + 2σε_k") == "ρz<sub>k</sub> + 2σε<sub>k</sub>"
    assert marked_up("4.00e-04, 1e-14") == "4.00×10<sup>−4</sup>, 10<sup>−14</sup>"
    assert marked_up("no_formula, `a_b^2`") == "no_formula, <code>a_b^2</code>"


def test_claims_that_were_tested_alike_share_what_was_tested() -> None:
    claims = [a_claim(id=f"regression.{i}", tested="at w" if i % 2 else "at z") for i in range(6)]
    text = Tree(a_page([Item("a", "A", "", claims, None, None)])).text
    assert text.count("at w; n = 10") == text.count("at z; n = 10") == 1
    assert text.count("Lower than GD") == 6
    other_n = [*claims, a_claim(id="regression.more", tested="at w", n=9)]
    assert "at w; n = 9" in Tree(a_page([Item("a", "A", "", other_n, None, None)])).text


def test_what_can_be_filtered_says_by_what(full: str) -> None:
    kinds = {attrs["id"]: set(attrs["class"].split()) for _, attrs in Tree(full).tags
             if "id" in attrs and "one" in attrs.get("class", "").split()}  # fmt: skip
    assert {"has-fails", "has-undecided"} <= kinds["experiment-regression"]
    assert "has-network" not in kinds["experiment-regression"]
    assert "has-network" in kinds["experiment-bare"]
    assert "has-fails" not in kinds["experiment-bare"]
    assert "has-fails" in kinds["row-regression"]
    assert "has-fails" in kinds["claim-regression.fails"]
    assert "has-fails" not in kinds["claim-regression.holds"]


def test_a_claim_says_whose_it_is_and_what_would_decide_it() -> None:
    claims = [
        a_claim(id="regression.test_gd", verdict=UNDECIDED, needed=1234),
        a_claim(id="label_noise.test"),
        a_claim(id="smoothing.forms"),
    ]
    text = Tree(a_page([Item("a", "A", "", claims, None, None)])).text
    assert text.count("n = 1,234 would decide") == 1
    assert text.count("Figure 1 (ours)") == 1
    assert text.count("Figure 1 (a check of the machine)") == 1


def test_figures_are_drawings_unless_there_are_only_pixels(full: str) -> None:
    sources = Tree(full).all("src")
    kinds = [re.split("[;,]", source)[0] for source in sources]
    assert kinds == ["data:image/svg+xml", "data:image/svg+xml", "data:image/png"]
    widths = [int(width) for width in Tree(full).all("width")]
    assert widths[1] == pytest.approx(widths[2], abs=1)


def test_a_drawing_survives_its_way_into_the_page(svg: bytes) -> None:
    text = a_page([Item("a", "A", "", [], svg + b"<!-- 100 % & #1 -->", None)])
    source = Tree(text).all("src")[0]
    assert unquote(source.partition(",")[2]).encode() == svg + b"<!-- 100 % & #1 -->"


def test_a_drawing_without_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"width and height in pt; got b'<svg>'"):
        a_page([Item("a", "A", "", [], b"<svg>", None)])


def test_the_same_input_gives_the_same_bytes(svg: bytes) -> None:
    item = Item("regression", "T", "", [a_claim()], svg, None)
    assert a_page([item]).encode() == a_page([item]).encode()
    assert a_figure("svg") == svg


def test_an_empty_page_is_a_page() -> None:
    tree = Tree(a_page([], notes=[], provenance={}))
    assert "Verdicts" in tree.text
    assert "What came out" not in tree.text


def test_kinds_of_claims_are_counted_apart_and_the_paper_is_quoted() -> None:
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
    assert text.count("in the paper's words") == 1


def test_kinds_of_which_nothing_was_judged_come_last_and_are_folded() -> None:
    rows = [
        Row("a", "fig:1", "it is better", NOT_JUDGED, [], "paper"),
        Row("b", "eq:1", "two and two", HOLDS, [], "machine"),
        Row("c", "eq:2", "three and three", NOT_JUDGED, [], "machine"),
    ]
    text = a_page([], rows)
    titles = re.findall(r"<h3[^>]*>(.*?)</h3>", text)
    assert titles == ["Checks of the machine", "Claims of the paper"]
    assert "#outcome" not in text  # there is no sentence to lead to
    contents = text.partition("</nav>")[0]
    assert contents.index("#kind-machine") < contents.index("#kind-paper")
    folded = re.findall(r"<summary>(None of its .*?)</summary>(.*?)</table>", text, re.DOTALL)
    assert [words for words, _ in folded] == ["None of its 1 rows is judged here"]
    assert "it is better" in folded[0][1].lower()


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
