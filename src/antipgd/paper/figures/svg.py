"""An SVG as matplotlib writes it, made small, and dark where its reader's page is dark.

Styles become classes, each once; coordinates keep a tenth of a point; pixels inside are packed
anew. An image follows `prefers-color-scheme` by rules of its own, so one file serves both: inks
are exchanged, and a colour too dark for the night is lightened, in its own hue. Attributes stand in
single quotes: so it goes into a page as it is.
"""

import base64
import colorsys
import io
import re
from collections.abc import Iterator
from xml.etree import ElementTree

import numpy as np
from PIL import Image  # which matplotlib brings

from antipgd.paper.figures.parts import THEORY
from antipgd.paper.figures.style import AXIS, GRID, INK, QUIET, SIZE

NIGHT = "#15171a"  # the page's ground
_AT_NIGHT = {INK: "#e4e4e0", THEORY: "#e4e4e0", AXIS: "#7d8288", GRID: "#2d3238", QUIET: "#a6a9ae",
             "#555555": "#c3c6ca", "#b0b0b0": "#6f757b"}  # fmt: skip
_VISIBLE = 4.5  # contrast of a line with its ground, more than WCAG asks of graphics
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_TOLERANCE = 0.08  # points: what is closer to a straight line than that is on it


def tidied(svg: bytes) -> bytes:
    """The same picture in fewer bytes, for both colour schemes."""
    ElementTree.register_namespace("", _SVG[1:-1])
    root = ElementTree.fromstring(svg)
    size = {key: root.get(key, "") for key in ("width", "height", "viewBox")}
    styles: dict[str, str] = {}
    names: dict[str, str] = {}
    parts = "".join(_written(child, styles, names) for child in root)
    head = " ".join(f"{key}='{value}'" for key, value in size.items())
    space = f"xmlns='{_SVG[1:-1]}'"
    return f"<svg {space} {head}><style>{_rules(styles)}</style>{parts}</svg>".encode()


def contrast(one: str, other: str) -> float:
    """Of two colours, as WCAG has it.

    >>> round(contrast("#ffffff", "#000000"), 1)
    21.0
    """
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def at_night(colour: str) -> str:
    """The colour on a dark ground: an ink has a twin, others are lightened until they are seen.

    >>> at_night("#1d1d1b"), at_night("#c27c00")
    ('#e4e4e0', '#c27c00')
    """
    if colour in _AT_NIGHT:
        return _AT_NIGHT[colour]
    hue, light, strength = colorsys.rgb_to_hls(*_channels(colour))
    while contrast(colour, NIGHT) < _VISIBLE:
        light += 0.01
        rgb = colorsys.hls_to_rgb(hue, light, strength)
        colour = "#" + "".join(f"{round(255 * part):02x}" for part in rgb)
    return colour


def _channels(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue


def _luminance(colour: str) -> float:
    parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in _channels(colour)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def _rules(styles: dict[str, str]) -> str:
    """Every style under its class, and again for the night where it has another colour then."""
    fonts = f"*{{stroke-linejoin:round}}text{{font:{SIZE}px system-ui,sans-serif;fill:{INK}}}"
    night = f"text{{fill:{at_night(INK)}}}image.k{{filter:invert(1)}}"
    for style, name in styles.items():
        fonts += f".{name}{{{style}}}"
        colours = [
            f"{key}:{at_night(colour)}"
            for key, colour in re.findall(r"([\w-]+):(#\w{6})", style)
            if at_night(colour) != colour
        ]
        night += f".{name}{{{';'.join(colours)}}}" if colours else ""
    return f"{fonts}@media screen and (prefers-color-scheme:dark){{{night}}}"


def _written(element: ElementTree.Element, styles: dict[str, str], names: dict[str, str]) -> str:
    """An element as text; groups that say nothing, metadata and styles of no element left out."""
    tag = element.tag.removeprefix(_SVG)
    if tag in ("metadata", "style"):
        return ""
    inner = "".join(_written(child, styles, names) for child in element)
    inner += _escaped((element.text or "").strip()) if tag in ("text", "tspan") else ""
    attributes = dict(_attributes(tag, element, styles, names))
    if tag in ("g", "defs") and not inner:
        return ""
    if tag == "g" and not attributes:
        return inner
    listed = "".join(f" {key}='{value}'" for key, value in attributes.items())
    return f"<{tag}{listed}>{inner}</{tag}>" if inner else f"<{tag}{listed}/>"


def _attributes(
    tag: str, element: ElementTree.Element, styles: dict[str, str], names: dict[str, str]
) -> Iterator[tuple[str, str]]:
    for key, value in element.items():
        if key == "style":
            style = _style(tag, value)
            if style:
                yield "class", styles.setdefault(style, f"s{len(styles)}")
        elif key == "d":
            yield "d", _path(value)
        elif key == "id":
            if tag not in ("g", "text", "image"):
                yield "id", names.setdefault(value, f"n{len(names)}")
        elif key == _LINK and value.startswith("data:"):
            grey, link = _repacked(value)
            if grey:
                yield "class", "k"
            yield "href", link
        elif key == _LINK:
            yield "href", "#" + names.setdefault(value[1:], f"n{len(names)}")
        elif key == "clip-path":
            yield key, f"url(#{names.setdefault(value[5:-1], f'n{len(names)}')})"
        else:
            yield key, _NUMBER.sub(lambda found: _short(float(found[0]), 2), value)


def _style(tag: str, style: str) -> str:
    """Without what is the same for all texts."""
    pairs = [pair.split(":", 1) for pair in style.split(";") if ":" in pair]
    kept = {key.strip(): value.strip() for key, value in pairs}
    if tag in ("text", "tspan"):
        kept.pop("font", None)
        if kept.get("fill") == INK:
            kept.pop("fill")
    if kept.get("text-anchor") == "start":
        kept.pop("text-anchor")
    return ";".join(f"{key}:{value}" for key, value in kept.items())


def _short(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:.0f}"
    return {"-0": "0", "": "0"}.get(text, text)


def _path(data: str) -> str:
    """Straight lines in tenths of a point without what nobody sees; marks keep two digits."""
    words = data.split()
    if len(words) < 24 or not set("CQHVSA").isdisjoint(words):
        short = (word if word.isalpha() else _short(float(word), 2) for word in words)
        return re.sub(r" ?([A-Za-z]) ?", r"\1", " ".join(short))
    found = ""
    for piece in re.findall(r"M[^Mz]*z?", data.replace("\n", " ")):
        numbers = [float(number) for number in re.findall(r"-?[\d.]+(?:e-?\d+)?", piece)]
        points = _thinned([*zip(numbers[::2], numbers[1::2], strict=True)])
        found += "M" + " ".join(f"{_short(x, 1)} {_short(y, 1)}" for x, y in points)
        found += "z" if piece.rstrip().endswith("z") else ""
    return found.replace(" -", "-")


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Ramer, Douglas and Peucker: no point left out is further from the line than `_TOLERANCE`."""
    keep, spans = {0, len(points) - 1}, [(0, len(points) - 1)]
    while spans:
        first, last = spans.pop()
        (ax, ay), (bx, by) = points[first], points[last]
        length = ((bx - ax) ** 2 + (by - ay) ** 2) ** 0.5
        furthest, where = _TOLERANCE, 0
        for i in range(first + 1, last):
            x, y = points[i]
            if length > 1e-9:
                away = abs((bx - ax) * (ay - y) - (ax - x) * (by - ay)) / length
            else:
                away = ((x - ax) ** 2 + (y - ay) ** 2) ** 0.5
            if away > furthest:
                furthest, where = away, i
        if where:
            keep.add(where)
            spans += [(first, where), (where, last)]
    return [points[i] for i in sorted(keep)]


def _repacked(link: str) -> tuple[bool, str]:
    """Pixels in a palette, and whether they are all grey: those are inverted at night."""
    image = Image.open(io.BytesIO(base64.b64decode(link.partition(",")[2]))).convert("RGBA")
    pixels = np.asarray(image, np.int64)
    seen = pixels[pixels[..., 3] > 0][:, :3]
    grey = bool(np.ptp(seen, axis=1).max(initial=0) <= 2)
    packed = io.BytesIO()
    image.quantize(48, method=Image.Quantize.FASTOCTREE).save(packed, "png", optimize=True)
    return grey, "data:image/png;base64," + base64.b64encode(packed.getvalue()).decode()


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
