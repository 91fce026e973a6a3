"""The playground in a real browser: quiet, controllable by hand and keyboard, the same by link."""

import contextlib
import json
import os
from pathlib import Path

import pytest

from antipgd.paper import playground

PHONE, DESK = 380, 1280
ALL = "gd,pgd,anti,taps,hold,antithetic"
ROOT = Path(__file__).parents[2]
AXE = Path(os.environ.get("AXE", ROOT / ".venv/axe/package/axe.min.js"))
HOST = "document.getElementById('playground')"
STATE = f"() => {{ const p = {HOST}.playground; return {{ ...p.settings, clock: p.clock }}; }}"
WEIGHTS = f"() => {HOST}.playground.lanes.map((lane) => Array.from(lane.walk.w))"
PIXELS = "id => document.getElementById('playground').shadowRoot.getElementById(id).toDataURL()"


class Visit:
    """The playground's page with everything it said and asked for."""

    def __init__(
        self, chromium, folder, said="", width=DESK, scheme="light", motion=None, text=None
    ):
        path = folder / "playground.html"
        path.write_text(text or playground.page(), encoding="utf-8")
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion=motion
        )
        self.said, self.outside = [], []
        self.page = context.new_page()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.route("**/*", self._let_in)
        self.address = path.as_uri()
        self.page.goto(self.address + said)

    def _let_in(self, route, request):
        if request.url.startswith(("file:", "data:")):
            route.continue_()
        else:
            self.outside.append(request.url)
            route.abort()

    @property
    def state(self):
        return self.page.evaluate(STATE)

    def wait(self, condition):
        """Until a condition holds; asked from outside, for the page's policy forbids eval."""
        for _ in range(600):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(50)
        raise TimeoutError(condition)

    def settle(self):
        """Two frames, so that what was asked for is there."""
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )


@pytest.fixture
def visit(chromium, tmp_path):
    visits = []

    def opened(said="", **options):
        visits.append(Visit(chromium, tmp_path, said, **options))
        return visits[-1]

    yield opened
    for one in visits:
        assert one.said == []
        assert one.outside == []
        one.page.context.close()


@pytest.mark.parametrize("land", ["valley", "regression"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, PHONE, 700, DESK])
def test_it_runs_quietly_and_fits(visit, width, scheme, land):
    here = visit(f"#playground?land={land}&on={ALL}", width=width, scheme=scheme)
    here.wait(f"{HOST}.playground.clock > 20")
    assert here.page.evaluate(
        "() => document.scrollingElement.scrollWidth <= document.scrollingElement.clientWidth"
    )
    assert here.page.locator("#landscape").bounding_box()["width"] > 0.8 * min(width, 600)
    lost = here.page.evaluate(
        f"""() => [...{HOST}.shadowRoot.querySelectorAll('*')]
          .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML)"""
    )
    assert lost == []
    assert here.page.locator("#message").text_content() == ""


def test_light_and_dark_are_drawn_apart_and_change_at_once(visit):
    here = visit("#playground?seed=1", motion="reduce")
    here.settle()
    light = here.page.evaluate(PIXELS, "landscape")
    here.page.emulate_media(color_scheme="dark")
    here.settle()
    assert here.page.evaluate(PIXELS, "landscape") != light
    here.page.evaluate("document.body.dataset.mdColorScheme = 'default'")  # a site's own switch
    here.settle()
    assert here.page.evaluate(PIXELS, "landscape") == light


def test_who_wants_less_motion_starts_paused(visit):
    here = visit(motion="reduce")
    here.settle()
    assert here.state["clock"] == 0
    here.page.get_by_role("button", name="Run").click()
    here.wait(f"{HOST}.playground.clock > 20")


def test_pause_step_reset(visit):
    here = visit()
    here.wait(f"{HOST}.playground.clock > 20")
    here.page.get_by_role("button", name="Pause").click()
    here.settle()
    clock = here.state["clock"]
    here.page.wait_for_timeout(200)
    assert here.state["clock"] == clock
    here.page.get_by_role("button", name="Step").click()
    here.page.get_by_role("button", name="Step").click()
    here.settle()
    assert here.state["clock"] == clock + 2
    assert here.page.locator("#clock").text_content() == f"{clock + 2:,}"
    here.page.get_by_role("button", name="Reset").click()
    here.settle()
    assert here.state["clock"] == 0


@pytest.mark.parametrize(("name", "label"), [
    ("eta", "Learning rate η"), ("sigma", "Noise σ"), ("lambda", "λ of taps (1, −λ)"),
    ("d", "Dimensions d"),
])  # fmt: skip
def test_sliders_by_keyboard(visit, name, label):
    here = visit(motion="reduce")
    slider, before = here.page.get_by_label(label), here.state
    here.page.get_by_role("button", name="Step").click()
    slider.focus()
    here.page.keyboard.press("ArrowRight")
    after = here.state
    assert after[name] > before[name]
    assert {**after, name: before[name]} == before  # and it began anew
    assert here.page.locator(f"#{name}-value").text_content() == str(after[name])
    assert slider.get_attribute("aria-valuetext") == str(after[name])
    here.page.keyboard.press("End")
    assert here.state[name] == {"eta": 1, "sigma": 0.2, "lambda": 1, "d": 200}[name]


def test_the_barrier_says_when_a_step_is_unstable(visit):
    here = visit("#playground?eta=0.45&start=2,0", motion="reduce")
    barrier = here.page.locator("#barrier")
    assert barrier.text_content() == "ηh = 1.80 at the start"
    here.settle()
    calm = here.page.evaluate(PIXELS, "landscape")
    here.page.get_by_label("Learning rate η").focus()
    here.page.keyboard.press("ArrowRight")  # from the nearest stop, 0.4 or 0.5, on
    here.page.keyboard.press("ArrowRight")
    here.settle()
    assert here.state["eta"] >= 0.5
    assert barrier.text_content().startswith("unstable at the start: ηh = 2")
    assert here.page.evaluate(PIXELS, "landscape") != calm


def test_a_click_starts_there(visit):
    here = visit(motion="reduce")
    here.settle()
    box = here.page.locator("#landscape").bounding_box()
    frame = (box["width"] - 46 - 12, box["height"] - 12 - 40)  # the margins of landscape.js
    here.page.mouse.click(box["x"] + 46 + 0.5 * frame[0], box["y"] + 12 + 0.25 * frame[1])
    a, b = here.state["start"]
    assert a == pytest.approx(3.0, abs=0.03)
    assert b == pytest.approx(0.2, abs=0.01)
    assert float(here.page.get_by_label("start ‖u‖").input_value()) == pytest.approx(a, abs=0.01)
    here.settle()
    w = here.page.evaluate(WEIGHTS)[0]
    assert sum(one * one for one in w[:-1]) ** 0.5 == pytest.approx(a)
    assert w[-1] == b
    here.page.mouse.click(box["x"] + 3, box["y"] + 3)  # beside the picture
    assert here.state["start"] == [a, b]


def test_the_start_by_keyboard(visit):
    here = visit(motion="reduce")
    field = here.page.get_by_label("start v")
    field.fill("-0.1")
    field.press("Enter")
    assert here.state["start"] == [2, -0.1]


def test_what_a_field_refuses_it_names(visit):
    here = visit(motion="reduce")
    seed = here.page.get_by_label("seed")
    seed.fill("minus one")
    seed.press("Tab")
    message = here.page.get_by_role("status")
    assert message.text_content() == (
        "seed must be a whole number from 0 to 2⁶⁴ − 1; got minus one."
    )
    assert seed.get_attribute("aria-invalid") == "true"
    assert here.state["seed"] == "0"
    seed.fill("5")
    seed.press("Tab")
    assert here.state["seed"] == "5"
    assert message.text_content() == ""
    assert "seed=5" in here.page.locator("#call").text_content()


def test_a_method_that_joins_later_catches_up(visit):
    here = visit("#playground?on=anti")
    here.wait(f"{HOST}.playground.clock > 100")
    here.page.get_by_role("button", name="Pause").click()
    here.page.get_by_role("checkbox", name="antithetic").check()
    here.wait(f"!{HOST}.playground.behind()")
    steps = here.page.evaluate(f"{HOST}.playground.lanes.map((lane) => lane.step)")
    assert steps == [here.state["clock"]] * 2
    here.page.get_by_role("checkbox", name="Anti-PGD").uncheck()
    assert here.state["on"] == ["antithetic"]


@pytest.mark.parametrize("land", ["valley", "regression"])
def test_a_shared_link_shows_the_same(visit, land):
    here = visit(motion="reduce")
    here.page.locator(f"[value={land}]").check()
    here.page.get_by_label("Noise σ").focus()
    here.page.keyboard.press("ArrowLeft")
    here.page.get_by_role("checkbox", name="hold").check()
    here.page.get_by_label("seed").fill("18446744073709551615")
    here.page.get_by_label("seed").press("Tab")
    here.page.mouse.click(*middle(here.page.locator("#landscape").bounding_box()))
    here.page.get_by_role("button", name="Copy link").click()
    here.wait(f"{HOST}.shadowRoot.getElementById('message').textContent")
    link = here.page.evaluate("location.hash")
    other = visit(link, motion="reduce")
    assert other.state == here.state
    assert other.state["start"] is not None
    for one in (here, other):
        for _ in range(5):
            one.page.get_by_role("button", name="Step").click()
        one.settle()
    assert other.page.evaluate(WEIGHTS) == here.page.evaluate(WEIGHTS)


def middle(box):
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_a_bad_link_is_refused_by_name(visit):
    here = visit("#playground?eta=7&sigma=0.1&colour=red", motion="reduce")
    said = here.page.get_by_role("status").text_content()
    assert "eta=7" in said
    assert "a number from 0.01 to 1" in said
    assert "colour" in said
    assert (here.state["eta"], here.state["sigma"]) == (0.1, 0.1)


def test_its_style_and_the_page_s_do_not_meet(visit):
    loud = (
        "<style>table, canvas, label { display: none !important } * { color: red }</style></head>"
    )
    here = visit(text=playground.page().replace("</head>", loud), motion="reduce")
    assert here.page.locator("#landscape").is_visible()
    assert here.page.get_by_label("Learning rate η").is_visible()


def test_browsers_without_declarative_shadow_roots(visit):
    old = playground.page().replace('<template shadowrootmode="open">', "<template>")
    here = visit(text=old)
    here.wait(f"{HOST}.playground.clock > 5")


FOCUSED = f"() => {{ const e = {HOST}.shadowRoot.activeElement; return e && (e.id || e.name); }}"


def test_every_control_has_a_name_and_can_be_reached_by_keyboard(visit):
    here = visit(motion="reduce")
    reached = set()
    here.page.locator("[name=land]").first.focus()
    for _ in range(40):
        reached.add(here.page.evaluate(FOCUSED))
        here.page.keyboard.press("Tab")
    wanted = here.page.evaluate(
        f"""() => [...{HOST}.shadowRoot.querySelectorAll('button, input, select')]
          .map(e => e.id || e.name)"""
    )
    assert len(wanted) > 20
    assert set(wanted) <= reached
    for canvas in here.page.locator("canvas[role=img]").all():
        assert len(canvas.get_attribute("aria-label")) > 10


RUN_AXE = "() => axe.run(document, { resultTypes: ['violations'] })"


def violations(here):
    assert AXE.is_file(), f"no axe-core at {AXE}: `make test PAGE=1` gets it from npm"
    here.page.evaluate(AXE.read_text("utf-8"))
    found = here.page.evaluate(RUN_AXE)["violations"]
    return [(one["id"], one["impact"], json.dumps(one["nodes"])[:800]) for one in found]


@pytest.mark.parametrize("land", ["valley", "regression&eta=1"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_axe_finds_nothing(visit, width, scheme, land):
    here = visit(f"#playground?on={ALL}&wrong=1&land={land}", width=width, scheme=scheme)
    here.wait(f"{HOST}.playground.clock > 5")
    assert violations(here) == []


def test_axe_would_find_something(visit):
    text = playground.page().replace('<label for="eta">', '<label style="color: #999">')
    here = visit(text=text, motion="reduce")
    assert {"color-contrast", "label"} <= {one[0] for one in violations(here)}


FRAMES = """seconds => new Promise(done => {
  const times = [];
  const frame = now => {
    times.push(now);
    if (now - times[0] < 1000 * seconds) requestAnimationFrame(frame);
    else done(1000 * (times.length - 1) / (times.at(-1) - times[0]));
  };
  requestAnimationFrame(frame);
})"""


def descendants(process):
    """The processes below one, by /proc."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = {process}
    while more := {one for one, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def seconds_of_processors(processes):
    """User and system time so far."""
    ticks = 0
    for process in processes:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.parametrize("land", ["valley", "regression"])
def test_one_processor_does_thirty_frames_a_second(visit, land, capsys):
    """All six methods at d = 100, whole browser, software rendering. The rate itself is printed:
    on a busy machine it says how busy that is."""
    here = visit(f"#playground?land={land}&d=100&sigma=0.02&on={ALL}")
    here.wait(f"{HOST}.playground.clock > 1000")
    browser = descendants(os.getpid()) - {os.getpid()}
    before = seconds_of_processors(browser)
    rate = here.page.evaluate(FRAMES, 5)
    work = (seconds_of_processors(browser) - before) / (5 * rate)
    with capsys.disabled():
        print(f"\n{land}: {rate:.1f} frames a second, {1000 * work:.1f} ms of processors each")
    assert 0 < work < 1 / 30
