"""The page in a real browser: Debian's chromium, headless, driven by Playwright.

Collected only by `make test PAGE=1`; then a missing browser is a failure.
"""

import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, Request, Route

from antipgd.paper import figures
from antipgd.paper.claims import FAILS, HOLDS, NOT_AT_MINIMUM, UNDECIDED, Claim
from antipgd.paper.coverage import decided
from antipgd.paper.errata import SLIPS
from antipgd.paper.exhibits import row_of
from antipgd.paper.experiments import OF_PAPER, about, chapter_of, load, title_of
from antipgd.paper.references import PAPER
from antipgd.paper.report import Erratum, Item, Row, page

LONG = "a_name_of_a_claim_that_goes_on_and_on_without_any_space_and_has_no_end_in_sight_" * 2
WORD = "Rindfleischetikettierungsüberwachungsaufgabenübertragungsgesetz" * 2
AXE = Path(os.environ.get("AXE", Path(__file__).parents[2] / ".venv/axe/package/axe.min.js"))
PHONE, TABLET, DESK = 380, 800, 1280
SCREENS, HEIGHT = 15, 900  # what a reader has to scroll before unfolding anything


def some_figure(panels: int) -> figures.Figure:
    steps = np.arange(1, 200)
    series = [
        figures.Series(
            steps, 10 / steps**power, figures.NAMES[method], figures.COLOURS[method],
            low=5 / steps**power, high=20 / steps**power,
        )
        for method, power in (("gd", 0.1), ("sgd", 0.5), ("pgd", 0.2), ("anti", 1.0))
    ]  # fmt: skip
    return figures.draw([figures.Panel(f"panel {i}", series) for i in range(panels)])


def some_claims(name: str, verdicts: tuple[str, ...], long: str = "") -> list[Claim]:
    return [
        Claim(
            f"{name}.part_{part}{long}", f"Anti-PGD ends with a lower trace than GD {long}",
            "fig:front_experiments (1st column)", f"trace at w, step 20,000; ratio {long}",
            verdict, *interval, 10,
        )
        for part, (verdict, interval) in enumerate(zip(
            verdicts, [(0.0015, 0.0012, 0.0019), (1.2e-9, -3.4e-9, 1e12), (1.0, 0.69, 1.0)],
            strict=False,
        ))
    ]  # fmt: skip


def some_page() -> str:
    three, one = some_figure(3), some_figure(1)
    svg, png = figures.rendered(three, "svg"), figures.rendered(three, "png")
    about = (
        "40 examples, 100 dimensions, ten non-zero targets; η = 0.1, σ = 0.05, SGD with batch 1 "
        "and η = 0.01;\n20,000 steps. Ten seeds, each with data of its own, shared by the methods."
        "\n\nMeasured at `w`; where a run diverged, the legend counts it."
    )
    items = [
        Item("regression", "Quadratic regression: Anti-PGD finds the flat, sparse minimum.", about,
             some_claims("regression", (HOLDS, HOLDS, HOLDS)), svg, png, "Losses, trace. n = 10.",
             "Small problems"),
        Item("valley_exit", "The widening valley: PGD leaves through the sharp end.", about,
             some_claims("valley_exit", (HOLDS, FAILS)), figures.rendered(one, "svg"), None, "‖u‖",
             "Small problems"),
        Item("always_best", f"Pixels and a long word: {WORD}", WORD,
             some_claims("always_best", (FAILS, UNDECIDED, HOLDS), LONG), None, png, WORD,
             "Networks", True),
        Item("drawing", "A section without figure or claims", "", [], None, None, "", "Networks"),
    ]  # fmt: skip
    rows = [
        Row("regression", "fig:front_experiments (1st), fig:square_tuning_*",
            "Anti-PGD beats GD, PGD and SGD in test loss and trace; robust over 3 η × 3 σ",
            HOLDS, ["regression", "always_best"], "paper", "always the best test accuracy",
            "regression: best in test loss and trace", 3, 3),
        Row("valley_exit", "thm:main_tube, fig:tube_verification",
            "PGD leaves the valley through D/α, Anti-PGD through αD", FAILS, ["valley_exit"]),
        Row("label_noise", "§subsec:Connection_with_label_noise",
            "Label noise depends on model and data, Anti-PGD does not", UNDECIDED, ["always_best"]),
        Row("cifar", "fig:front_experiments (3rd)", "ResNet18: flatter and better than PGD and GD",
            NOT_AT_MINIMUM, ["network_elsewhere"]),
        Row(LONG, LONG, WORD, HOLDS, ["always_best"], "ours", "", LONG),
    ]  # fmt: skip
    return page(
        items,
        rows=rows,
        notes=["`--seeds 3`: fewer seeds than planned (10), so intervals are wider.", WORD],
        provenance={"version": "0.1.0", "commit": "6e42d11" * 6, "machine": WORD},
        command="antipgd paper --seeds 3 --out /a/very/long/path/that/goes/on/" + LONG,
        errata=[Erratum("fig:page1", WORD, "w_0 = σ^2", "by reading")],
        said=["Gained in 2 of 27 settings."],
        playground='<div id="playground">no</div>'
        "<script>document.getElementById('playground').textContent = 'plays'</script>",
    )


def whole_page() -> str:
    """All rows and experiments there are, each with a few claims and the same figure."""
    svg = figures.rendered(some_figure(3), "svg")
    items = [
        Item(name, title_of(name), about(name), some_claims(name, (HOLDS, UNDECIDED, FAILS)), svg,
             None, load(name).SHOWS.format(seeds=10), chapter_of(name))
        for name in OF_PAPER
    ]  # fmt: skip
    rows = [row_of(one) for one in decided([], OF_PAPER)]
    slips = [Erratum(slip.where, slip.printed, slip.right, "by reading") for slip in SLIPS]
    said = load("when_it_helps").summary(load_made_up())
    return page(items, rows=rows, notes=[], provenance={}, command="antipgd paper", errata=slips,
                said=[said])  # fmt: skip


def load_made_up() -> list[Claim]:
    """A gain and a flatness of every cell of the map, all of them gained."""
    cells = load("when_it_helps").CELLS
    return [
        Claim(f"when_it_helps.{kind}_{cell.name}", "", "", "", HOLDS, 0.5, 0.1, 0.9, 12)
        for cell in cells[:6]
        for kind in ("gain", "flatter")
    ]


@pytest.fixture(scope="module")
def browser(chromium: Browser) -> Browser:
    return chromium


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(some_page(), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("whole") / "report.html"
    file.write_text(whole_page(), encoding="utf-8")
    return file


class Visit:
    """A page with everything it said and asked for."""

    def __init__(self, browser: Browser, path: Path, width: int, scheme: str, to: str = "") -> None:
        self.said: list[str] = []
        self.outside: list[str] = []
        context = browser.new_context(
            viewport={"width": width, "height": HEIGHT},
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        self.page: Page = context.new_page()
        self.page.on("console", lambda message: self.said.append(f"{message.type} {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error {error}"))
        self.page.on("requestfailed", lambda request: self.said.append(f"failed {request.url}"))
        self.page.route("**/*", self._let_in)
        self.page.goto(path.as_uri() + to)

    def _let_in(self, route: Route, request: Request) -> None:
        if request.url.startswith(("file:", "data:")):
            route.continue_()
        else:
            self.outside.append(request.url)
            route.abort()


@pytest.fixture(
    params=[(PHONE, "light"), (PHONE, "dark"), (TABLET, "light"), (DESK, "light"), (DESK, "dark")],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def visit(request: pytest.FixtureRequest, browser: Browser, path: Path) -> Iterator[Visit]:
    found = Visit(browser, path, *request.param)
    yield found
    found.page.context.close()


@pytest.fixture
def desk(browser: Browser, path: Path) -> Iterator[Visit]:
    found = Visit(browser, path, DESK, "light")
    yield found
    found.page.context.close()


def test_the_page_is_quiet_and_asks_nobody(visit: Visit) -> None:
    assert visit.page.title() == "Anticorrelated noise, the paper run anew"
    assert visit.said == []
    assert visit.outside == []


def test_this_test_would_hear_and_see(browser: Browser, path: Path, tmp_path: Path) -> None:
    leaky = tmp_path / "leaky.html"
    text = path.read_text(encoding="utf-8").replace("img-src data:;", "img-src *;")
    leaky.write_text(
        text.replace(
            "</main>",
            '<img src="http://example.invalid/x.png" alt="">'
            '<div style="width: 3000px">wide</div></main>',
        ),
        encoding="utf-8",
    )
    visit = Visit(browser, leaky, PHONE, "light")
    assert visit.outside == ["http://example.invalid/x.png"]
    assert visit.said
    assert not fits(visit.page)
    visit.page.context.close()


def fits(page: Page) -> bool:
    return page.evaluate(
        "() => document.scrollingElement.scrollWidth <= document.scrollingElement.clientWidth"
    )


def unfold(page: Page) -> None:
    page.evaluate("() => document.querySelectorAll('details').forEach(one => one.open = true)")


def test_scripts_run_where_their_digest_is_known(desk: Visit) -> None:
    assert desk.page.locator("#playground").inner_text() == "plays"


def test_a_script_without_digest_does_not_run(browser: Browser, path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.html"
    text = path.read_text(encoding="utf-8").replace("'plays'", "'cheats'")
    other.write_text(text, encoding="utf-8")
    visit = Visit(browser, other, DESK, "light")
    assert visit.page.locator("#playground").inner_text() == "no"
    assert any("Content Security Policy" in message for message in visit.said)
    visit.page.context.close()


def test_all_figures_are_visible(visit: Visit) -> None:
    unfold(visit.page)
    images = visit.page.locator("img").all()
    assert len(images) == 4
    for image in images:
        assert image.evaluate("image => image.complete && image.naturalWidth > 0")
        assert image.is_visible()
        box = image.bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) > 100
        assert image.get_attribute("alt")


@pytest.mark.parametrize("unfolded", [False, True])
def test_nothing_scrolls_sideways(visit: Visit, unfolded: bool) -> None:
    if unfolded:
        unfold(visit.page)
    assert fits(visit.page)
    # What is cut off at the right, other than inside a figure's own scrolling card.
    lost = visit.page.evaluate("""() => [...document.querySelectorAll('main *')]
        .filter(e => !e.closest('.card') && !e.closest('thead') && e.checkVisibility())
        .filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
        .map(e => e.outerHTML.slice(0, 120))""")
    assert lost == []


def test_no_badge_leaves_its_cell(visit: Visit) -> None:
    unfold(visit.page)
    lost = visit.page.evaluate("""() => [...document.querySelectorAll('td .badge')].filter(e =>
        e.getBoundingClientRect().right > e.closest('td').getBoundingClientRect().right + 1)
        .map(e => e.textContent)""")
    assert lost == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_more_than_fifteen_screens_before_unfolding(
    browser: Browser, whole: Path, scheme: str
) -> None:
    visit = Visit(browser, whole, DESK, scheme)
    tall = visit.page.evaluate("() => document.scrollingElement.scrollHeight")
    assert tall <= SCREENS * HEIGHT
    assert visit.page.locator(".experiment").count() == len(OF_PAPER)
    unfold(visit.page)
    assert visit.page.evaluate("() => document.scrollingElement.scrollHeight") > 2 * tall
    visit.page.context.close()


def test_the_first_screen_has_method_formula_and_picture(browser: Browser, whole: Path) -> None:
    visit = Visit(browser, whole, DESK, "light")
    for place in (".lead", ".formula", "header pre", "header figure img"):
        box = visit.page.locator(place).bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < HEIGHT, place
    visit.page.context.close()


def test_no_label_of_latex_is_shown(browser: Browser, whole: Path) -> None:
    visit = Visit(browser, whole, DESK, "light")
    unfold(visit.page)
    text = visit.page.locator("body").inner_text()
    assert [label for label in ("fig:", "thm:", "sec:", "eq:", "§") if label in text] == []
    visit.page.context.close()


def test_every_link_resolves(desk: Visit) -> None:
    targets = desk.page.eval_on_selector_all("a", "all => all.map(a => a.getAttribute('href'))")
    assert len(targets) > 10
    assert targets.count(PAPER) == 1
    for target in {*targets} - {PAPER}:
        assert target.startswith("#")
        desk.page.evaluate("to => { location.hash = to }", target)
        assert desk.page.evaluate("() => document.querySelector(':target') !== null"), target
        assert desk.page.evaluate("() => decodeURIComponent(location.hash)") == target


def in_view(page: Page, place: str) -> bool:
    page.wait_for_function("place => document.querySelector(place).checkVisibility()", arg=place)
    box = page.locator(place).bounding_box()
    return box is not None and 0 <= box["y"] < HEIGHT


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("experiment-valley_exit", "#experiment-valley_exit img"),
        ("claim-valley_exit.part_1", "#claim-valley_exit\\.part_1"),
        ("errata", "#errata table"),
    ],
)
def test_an_address_opens_what_it_leads_to(
    browser: Browser, path: Path, target: str, shown: str
) -> None:
    folded = Visit(browser, path, DESK, "light")
    assert not folded.page.locator(shown).is_visible()
    folded.page.evaluate("to => { location.hash = to }", target)
    assert in_view(folded.page, shown)
    folded.page.context.close()
    visit = Visit(browser, path, DESK, "light", f"#{target}")
    assert in_view(visit.page, shown)
    visit.page.context.close()


def test_a_row_leads_to_its_figure(desk: Visit) -> None:
    desk.page.locator("#row-valley_exit summary").click()
    desk.page.locator("#row-valley_exit a").first.click()
    assert in_view(desk.page, "#experiment-valley_exit img")
    desk.page.locator("#experiment-valley_exit summary").first.click()  # folded by its reader
    assert not desk.page.locator("#experiment-valley_exit img").is_visible()
    desk.page.locator("#row-valley_exit a").first.click()  # the same address again
    assert in_view(desk.page, "#experiment-valley_exit img")


def seen(page: Page, places: str) -> list[str]:
    return page.eval_on_selector_all(
        places, "all => all.filter(e => e.checkVisibility()).map(e => e.id)"
    )


@pytest.mark.parametrize(
    ("shown", "rows", "experiments"),
    [
        ("all", ["regression", "valley_exit", "label_noise", "cifar", LONG],
         ["regression", "valley_exit", "always_best", "drawing"]),
        ("fails", ["valley_exit"], ["valley_exit", "always_best"]),
        ("undecided", ["label_noise", "cifar"], ["always_best"]),
        ("network", ["regression", "label_noise", LONG], ["always_best"]),
    ],
)  # fmt: skip
def test_the_filter_shows_what_it_says(
    desk: Visit, shown: str, rows: Sequence[str], experiments: Sequence[str]
) -> None:
    desk.page.locator(f"#show-{shown}").check()
    assert seen(desk.page, "[id^=row-]") == [f"row-{name}" for name in rows]
    assert seen(desk.page, ".experiment") == [f"experiment-{name}" for name in experiments]
    unfold(desk.page)
    kinds = desk.page.eval_on_selector_all(
        ".claims tr[id] .badge",
        "all => all.filter(e => e.checkVisibility()).map(e => e.classList[1])",
    )
    assert kinds
    assert shown not in ("fails", "undecided") or set(kinds) == {shown}


def test_an_address_is_shown_whatever_the_filter_hides(desk: Visit) -> None:
    desk.page.locator("#show-fails").check()
    assert not desk.page.locator("#experiment-regression").is_visible()
    desk.page.evaluate("() => { location.hash = 'experiment-regression' }")
    assert in_view(desk.page, "#experiment-regression img")


def test_the_page_can_be_used_by_keys_alone(desk: Visit) -> None:
    reached = []
    for _ in range(60):
        desk.page.keyboard.press("Tab")
        reached.append(
            desk.page.evaluate(
                "() => { const e = document.activeElement; return e.id || e.getAttribute('href')"
                " || e.closest('[id]')?.id + ' ' + e.tagName }"
            )
        )
        if reached[-1] == "experiment-regression SUMMARY":
            break
    assert {"#verdicts", "show-all", "row-valley_exit SUMMARY"} <= {*reached}
    desk.page.keyboard.press("Enter")
    assert desk.page.locator("#experiment-regression img").is_visible()
    desk.page.locator("#show-all").focus()
    desk.page.keyboard.press("ArrowRight")
    assert desk.page.locator("#show-fails").is_checked()


@pytest.mark.parametrize(("width", "beside"), [(DESK, True), (TABLET, False), (PHONE, False)])
def test_contents_stay_in_view_or_are_folded(
    browser: Browser, path: Path, width: int, beside: bool
) -> None:
    visit = Visit(browser, path, width, "light")
    assert visit.page.locator("aside nav").is_visible() == beside
    assert visit.page.locator("details.contents").is_visible() != beside
    visit.page.evaluate("() => scrollTo(0, document.scrollingElement.scrollHeight)")
    if beside:
        box = visit.page.locator("aside nav").bounding_box()
        assert box is not None
        assert box["y"] == pytest.approx(0, abs=1)
    visit.page.context.close()


CONTRAST = """() => {
  const channel = c => (c /= 255) <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => .2126*channel(r) + .7152*channel(g) + .0722*channel(b);
  const ground = e => {
    for (; e; e = e.parentElement) {
      const c = parts(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll('main *')]
    .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
    .map(e => {
      const [a, b] = [parts(getComputedStyle(e).color), ground(e)].map(luminance);
      return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.outerHTML.slice(0, 80)];
    })
    .filter(([ratio]) => ratio < 4.5);
}"""


@pytest.mark.parametrize("unfolded", [False, True])
def test_text_stands_out(visit: Visit, unfolded: bool) -> None:
    if unfolded:
        unfold(visit.page)
    assert visit.page.evaluate(CONTRAST) == []


@pytest.mark.parametrize("unfolded", [False, True])
def test_axe_finds_nothing(visit: Visit, unfolded: bool) -> None:
    if unfolded:
        unfold(visit.page)
    assert AXE.is_file(), f"no axe-core at {AXE}: `make test PAGE=1` gets it from npm"
    visit.page.evaluate(AXE.read_text("utf-8"))
    found = visit.page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
    assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == []


def brightness(page: Page, place: str) -> float:
    """The mean of a screenshot's pixels, 0 to 255."""
    found = Image.open(io.BytesIO(page.locator(place).first.screenshot())).convert("L")
    return float(np.asarray(found).mean())


def test_light_and_dark_differ_and_so_do_drawings(browser: Browser, path: Path) -> None:
    grounds, drawings = {}, {}
    for scheme in ("light", "dark"):
        visit = Visit(browser, path, DESK, scheme)
        grounds[scheme] = visit.page.evaluate(
            "() => getComputedStyle(document.body).backgroundColor"
        )
        drawings[scheme] = brightness(visit.page, "header img")
        visit.page.context.close()
    assert grounds["light"] != grounds["dark"]
    assert drawings["light"] > 220
    assert drawings["dark"] < 70


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_prints(browser: Browser, path: Path, scheme: str) -> None:
    visit = Visit(browser, path, DESK, scheme)
    visit.page.emulate_media(media="print")
    ground = visit.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)"
    assert brightness(visit.page, "header img") > 220
    pdf = visit.page.pdf(format="A4")
    assert pdf.startswith(b"%PDF-")
    assert len(pdf) > 20_000
    assert visit.said == []
    visit.page.context.close()


def test_everything_is_unfolded_on_paper(desk: Visit) -> None:
    folded = "() => document.querySelectorAll('details:not([open])').length"
    before = desk.page.evaluate(folded)
    desk.page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    assert desk.page.evaluate(folded) == 0
    desk.page.emulate_media(media="print")
    for title in desk.page.locator("h4").all():
        box = title.bounding_box()
        assert box is not None
        assert box["width"] > 300
    desk.page.emulate_media(media="screen")
    desk.page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert desk.page.evaluate(folded) == before > 5
