"""A figure as a file: the same figure gives the same bytes."""

import io

import matplotlib as mpl
from matplotlib.figure import Figure

from antipgd.paper.figures.style import STYLE
from antipgd.paper.figures.svg import tidied

_DPI = {"png": 160, "svg": 110}  # of an SVG only what is pixels in it


def rendered(figure: Figure, kind: str) -> bytes:
    """A PNG on white, or an SVG on the ground of its page, in the reader's colour scheme."""
    buffer = io.BytesIO()
    dates = {"Date": None} if kind == "svg" else {"Software": None}
    ground = "none" if kind == "svg" else "white"
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format=kind, dpi=_DPI[kind], metadata=dates, facecolor=ground)
    return tidied(buffer.getvalue()) if kind == "svg" else buffer.getvalue()
