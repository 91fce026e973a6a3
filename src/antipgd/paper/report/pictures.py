"""Figures in the page: drawings that follow its colours, pixels on a white card."""

import base64
import re
import struct
from html import escape

from antipgd.paper.report.content import Item
from antipgd.paper.report.markup import text

_PNG_DPI, _SCREEN_DPI = 160, 96


def figure(item: Item, name: str, caption: str) -> str:
    """The picture of an experiment: an image, because ids of inlined drawings would collide."""
    found = _picture(item.svg, item.png)
    if found is None:
        return '<p class="rule">There is no figure.</p>'
    kind, source, (width, height) = found
    alt = f"{name}: {item.title.rstrip('.')}. Its claims follow in numbers."
    return (
        f'<figure style="--width: {width}px">\n<div class="card {kind}" tabindex="0" role="group" '
        f'aria-label="{escape(name)}"><img src="{source}" alt="{escape(alt)}" '
        f'width="{width}" height="{height}"></div>\n'
        f"<figcaption><b>{escape(name)}.</b> {text(caption)}</figcaption>\n</figure>"
    )


def _picture(svg: bytes | None, png: bytes | None) -> tuple[str, str, tuple[int, int]] | None:
    """Kind, address and size on a screen."""
    if svg is not None:
        return "drawing", _address(svg), _svg_size(svg)
    if png is not None:
        width, height = struct.unpack(">II", png[16:24])
        data = base64.b64encode(png).decode()
        size = _pixels(width, _PNG_DPI), _pixels(height, _PNG_DPI)
        return "pixels", f"data:image/png;base64,{data}", size
    return None


def _address(svg: bytes) -> str:
    """As text, which is a quarter less than base64."""
    for sign in (b"%", b"#", b'"', b"\n"):
        svg = svg.replace(sign, b"%%%02X" % sign[0])
    return "data:image/svg+xml," + escape(svg.decode(), quote=False)


def _svg_size(svg: bytes) -> tuple[int, int]:
    """From width and height in points, as matplotlib writes them."""
    tag = re.search(rb"<svg\b[^>]*>", svg)
    points = dict(re.findall(rb"\b(width|height)=[\"']([\d.]+)pt[\"']", tag[0] if tag else b""))
    if len(points) < 2:
        raise ValueError(f"an SVG figure needs its width and height in pt; got {svg[:80]!r}")
    return _pixels(float(points[b"width"]), 72), _pixels(float(points[b"height"]), 72)


def _pixels(length: float, dpi: int) -> int:
    return round(length * _SCREEN_DPI / dpi)
