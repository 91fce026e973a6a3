"""The page in a real browser: Debian's chromium, headless, driven by Playwright.

Collected only by `make test PAGE=1`; then a missing browser is a failure.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Request, Route, sync_playwright

from antipgd.paper import figures
from antipgd.paper.claims import FAILS, HOLDS, UNDECIDED, Claim
from antipgd.paper.report import Item, Row, page

LONG = "a_name_of_a_claim_that_goes_on_and_on_without_any_space_and_has_no_end_in_sight_" * 2
WORD = "Rindfleischetikettierungsüberwachungsaufgabenübertragungsgesetz" * 2
PHONE, TABLET, DESK = 380, 800, 1280


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
             some_claims("regression", (HOLDS, HOLDS, HOLDS)), svg, png),
        Item("valley_exit", "The widening valley: PGD leaves through the sharp end.", about,
             some_claims("valley_exit", (HOLDS, FAILS)), figures.rendered(one, "svg"), None),
        Item("always_best", f"Pixels and a long word: {WORD}", WORD,
             some_claims("always_best", (FAILS, UNDECIDED, HOLDS), LONG), None, png),
        Item("drawing", "A section without figure or claims", "", [], None, None),
    ]  # fmt: skip
    rows = [
        Row("regression", "fig:front_experiments (1st), fig:square_tuning_*",
            "Anti-PGD beats GD, PGD and SGD in test loss and trace; robust over 3 η × 3 σ",
            HOLDS, ["regression", "always_best"]),
        Row("valley_exit", "thm:main_tube, fig:tube_verification",
            "PGD leaves the valley through D/α, Anti-PGD through αD", FAILS, ["valley_exit"]),
        Row("label_noise", "§subsec:Connection_with_label_noise",
            "Label noise depends on model and data, Anti-PGD does not", UNDECIDED, ["always_best"]),
        Row("cifar", "fig:front_experiments (3rd)", "ResNet18: flatter and better than PGD and GD",
            "not run", ["network_elsewhere"]),
        Row(LONG, LONG, WORD, HOLDS, ["always_best"]),
    ]  # fmt: skip
    return page(
        items,
        rows=rows,
        notes=["`--seeds 3`: fewer seeds than planned (10), so intervals are wider.", WORD],
        provenance={"version": "0.1.0", "commit": "6e42d11" * 6, "machine": WORD},
        command="antipgd paper --seeds 3 --out /a/very/long/path/that/goes/on/" + LONG,
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium, "the page needs Debian's chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium)
        yield found
        found.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(some_page(), encoding="utf-8")
    return file


class Visit:
    """A page with everything it said and asked for."""

    def __init__(self, browser: Browser, path: Path, width: int, scheme: str) -> None:
        self.said: list[str] = []
        self.outside: list[str] = []
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        self.page: Page = context.new_page()
        self.page.on("console", lambda message: self.said.append(f"{message.type} {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error {error}"))
        self.page.on("requestfailed", lambda request: self.said.append(f"failed {request.url}"))
        self.page.route("**/*", self._let_in)
        self.page.goto(path.as_uri())

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
    assert visit.page.title() == "Anticorrelated noise, executable"
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


def test_all_figures_are_visible(visit: Visit) -> None:
    images = visit.page.locator("img").all()
    assert len(images) == 3
    for image in images:
        assert image.evaluate("image => image.complete && image.naturalWidth > 0")
        assert image.is_visible()
        box = image.bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) > 100
        assert image.get_attribute("alt")


def test_nothing_scrolls_sideways(visit: Visit) -> None:
    assert fits(visit.page)
    # What is cut off at the right, other than inside a figure's own scrolling card.
    lost = visit.page.evaluate("""() => [...document.querySelectorAll('main *')]
        .filter(e => !e.closest('.card') && !e.closest('thead'))
        .filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
        .map(e => e.outerHTML.slice(0, 120))""")
    assert lost == []


def test_every_link_resolves(desk: Visit) -> None:
    links = desk.page.locator("a").all()
    assert len(links) > 10
    for link in links:
        target = link.get_attribute("href") or ""
        assert target.startswith("#")
        link.click()
        assert desk.page.evaluate("() => document.querySelector(':target') !== null"), target
        assert desk.page.evaluate("() => decodeURIComponent(location.hash)") == target


def test_a_row_leads_to_its_figure(desk: Visit) -> None:
    desk.page.get_by_role("rowheader", name="valley_exit").get_by_role("link").first.click()
    assert desk.page.locator("#experiment-valley_exit img").is_visible()
    top = desk.page.locator("#experiment-valley_exit").bounding_box()
    assert top is not None
    assert 0 <= top["y"] < 900


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


def test_text_stands_out(visit: Visit) -> None:
    assert visit.page.evaluate(CONTRAST) == []


def test_light_and_dark_differ(browser: Browser, path: Path) -> None:
    grounds = {}
    for scheme in ("light", "dark"):
        visit = Visit(browser, path, DESK, scheme)
        grounds[scheme] = visit.page.evaluate(
            "() => getComputedStyle(document.body).backgroundColor"
        )
        card = visit.page.locator(".card").first
        assert card.evaluate("e => getComputedStyle(e).backgroundColor") == "rgb(255, 255, 255)"
        visit.page.context.close()
    assert grounds["light"] != grounds["dark"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_prints(browser: Browser, path: Path, scheme: str) -> None:
    visit = Visit(browser, path, DESK, scheme)
    visit.page.emulate_media(media="print")
    ground = visit.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)"
    pdf = visit.page.pdf(format="A4")
    assert pdf.startswith(b"%PDF-")
    assert len(pdf) > 20_000
    assert visit.said == []
    visit.page.context.close()
