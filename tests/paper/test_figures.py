"""How figures look, and what is left of a drawing when it is made small."""

import io
import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from matplotlib.text import Text
from PIL import Image

from antipgd.paper import figures
from antipgd.paper.figures import svg
from antipgd.paper.figures.drawing import WIDEST, _balanced
from antipgd.paper.figures.style import SIZE
from antipgd.paper.figures.ticks import _logarithmic, said
from antipgd.paper.methods import METHODS

DAY = "#fcfcfa"  # the page's ground; NIGHT is its twin


def some_panels(count: int, points: int = 50) -> list[figures.Panel]:
    steps = np.arange(points)
    series = [
        figures.Series(steps, 10.0 / (1 + steps), "GD", figures.COLOURS["gd"]),
        figures.Series(steps, 3.0 / (1 + steps), "Anti-PGD", figures.COLOURS["anti"],
                       low=2.0 / (1 + steps), high=4.0 / (1 + steps)),
    ]  # fmt: skip
    return [figures.Panel(f"panel {i}", series) for i in range(count)]


@pytest.mark.parametrize(
    ("panels", "columns", "grid", "spare"),
    [(1, 3, 1, 0), (2, 3, 2, 0), (3, 3, 3, 0), (4, 3, 2, 0), (5, 3, 3, 1), (6, 3, 3, 0),
     (7, 3, 2, 1), (8, 3, 3, 1), (4, 2, 2, 0)],
)  # fmt: skip
def test_no_cell_is_empty(panels, columns, grid, spare):
    """A grid with a cell too many has the legend in it, others have it below."""
    figure = figures.draw(some_panels(panels), columns)
    assert len(figure.axes) == panels + spare
    assert figure.axes[0].get_gridspec().ncols == grid
    assert bool(figure.legends) != bool(spare)
    for axes in figure.axes[panels:]:
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["GD", "Anti-PGD"]


@pytest.mark.parametrize("panels", [1, 2, 3, 5])
def test_all_figures_have_one_type_size_and_no_more_than_the_pages_width(panels):
    figure = figures.draw(some_panels(panels), title="a title", width=6.0)
    figure.canvas.draw()
    shown = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert len(shown) > 10
    assert {text.get_fontsize() for text in shown} == {SIZE}
    assert figure.get_figwidth() <= WIDEST
    assert panels == 1 or figure.get_figwidth() == WIDEST


def test_a_list_of_rows_has_the_same_width_and_type_size():
    columns = [figures.Column("gain", [(0.1, 0.0, 0.2, "#1f6fb4"), "no value"], 0.0)]
    figure = figures.rows(["one", "two"], columns, {"holds": "#1f6fb4"})
    shown = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert {text.get_fontsize() for text in shown} == {SIZE}
    assert figure.get_figwidth() == WIDEST


def test_a_long_title_has_lines_of_about_one_length():
    title = "moderate η=0.1, training loss at w"
    assert _balanced(title, 33) == "moderate η=0.1,\ntraining loss at w"
    assert _balanced("short", 33) == "short"


@given(st.floats(-12, 12), st.floats(0.01, 20))
@example(6.0, 0.01171875)  # 1,005,000 is not 1×10⁶
def test_a_logarithmic_axis_has_a_few_ticks_in_its_range(exponent, decades):
    low = 10.0**exponent
    high = low * 10.0**decades
    ticks = _logarithmic(low, high)
    assert all(low * 0.999 <= at <= high * 1.001 for at in ticks)
    assert ticks == sorted(set(ticks))
    assert 1 <= len(ticks) <= 12
    assert len({said(at) for at in ticks}) == len(ticks)


def test_ticks_are_said_as_numbers_are():
    assert [said(at) for at in _logarithmic(0.8, 300)] == ["1", "10", "100"]
    assert [said(at) for at in _logarithmic(0.5, 6)] == ["0.5", "1", "2", "5"]
    assert not any("10⁰" in said(at) for at in _logarithmic(0.1, 9))
    assert [said(10.0**e, powers=True) for e in (-8, -2, 0, 2, 5)] == [
        "10⁻⁸", "0.01", "1", "100", "10⁵",
    ]  # fmt: skip


def drawn(kind: str = "svg") -> bytes:
    return figures.rendered(figures.draw(some_panels(3, 400)), kind)


def raw() -> bytes:
    buffer = io.BytesIO()
    figures.draw(some_panels(3, 400)).savefig(buffer, format="svg")
    return buffer.getvalue()


def test_a_drawing_is_a_fraction_of_what_it_was_and_has_no_ground():
    small = drawn()
    assert len(small) < len(raw()) / 3
    assert ElementTree.fromstring(small).tag == "{http://www.w3.org/2000/svg}svg"
    assert b"#ffffff" not in small
    assert b"<text" in small
    assert "GD" in small.decode()
    assert small == drawn()


def test_every_reference_inside_a_drawing_resolves():
    text = drawn().decode()
    ids = re.findall(r"id='(\w+)'", text)
    asked = re.findall(r"url\(#(\w+)\)|href='#(\w+)'", text)
    assert asked
    assert {one or other for one, other in asked} <= set(ids)
    assert len(ids) == len(set(ids))
    classes = set(re.findall(r"class='(\w+)'", text))
    assert classes <= set(re.findall(r"\.(\w+)\{", text))


def test_a_drawing_has_a_dark_twin_in_the_same_bytes():
    text = drawn().decode()
    day, night = text.split("@media screen and (prefers-color-scheme:dark)")
    assert f"fill:{svg.INK}" in day
    assert "fill:#e4e4e0" in night.partition("</style>")[0]
    assert figures.COLOURS["anti"] in day
    assert svg.at_night(figures.COLOURS["anti"]) in night


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_seen_on_both_grounds(name):
    colour = METHODS[name].colour
    assert svg.contrast(colour, DAY) >= 3
    assert svg.contrast(svg.at_night(colour), svg.NIGHT) >= 3


def test_no_two_methods_look_alike_at_night():
    assert len({svg.at_night(method.colour) for method in METHODS.values()}) == len(METHODS)


LENGTH = st.integers(0, 100_000).map(lambda thousandths: thousandths / 1000)
POINT = st.tuples(LENGTH, LENGTH)


@given(st.lists(POINT, min_size=2, max_size=60))
def test_no_point_left_out_is_far_from_the_line(points):
    kept = svg._thinned(points)
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    place = 0
    for one in points:
        if place + 1 < len(kept) and one == kept[place + 1]:
            place += 1
        ends = np.array(kept[max(place - 1, 0) : place + 2])
        away = min(distance(np.array(one), a, b) for a, b in pairwise(ends))
        assert away <= svg._TOLERANCE + 1e-9


def distance(point, a, b):
    """From the infinite line through two points, or from the point that they are."""
    along = b - a
    if not along.any():
        return np.linalg.norm(point - a)
    return abs(along[0] * (a - point)[1] - along[1] * (a - point)[0]) / np.linalg.norm(along)


def test_a_straight_line_is_two_points_and_a_curve_keeps_its_shape():
    line = "M " + " L ".join(f"{x / 10} {x / 5}" for x in range(200))
    assert svg._path(line) == "M0 0 19.9 39.8"
    curve = "M " + " L ".join(f"{x} {(x / 20) ** 2}" for x in range(200))
    assert 5 < len(svg._path(curve).split()) // 2 < 60


def test_pixels_in_a_drawing_are_packed_and_grey_ones_turned_at_night():
    x, y = np.meshgrid(np.linspace(-1, 1, 40), np.linspace(-1, 1, 40))
    panel = figures.Panel("", [figures.Series([0.0], [0.0], "start", dash="", marker="s")], "", "",
                          "linear", "linear", (x, y, 0.1 + x**2 + y**2))  # fmt: skip
    text = figures.rendered(figures.draw([panel]), "svg").decode()
    assert "<image" in text
    assert "class='k'" in text
    assert len(text) < 60_000


def test_pixels_have_a_white_ground():
    image = Image.open(io.BytesIO(drawn("png"))).convert("RGBA")
    assert image.getpixel((0, 0)) == (255, 255, 255, 255)
