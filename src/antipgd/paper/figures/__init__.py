"""Pictures: the only room of the paper that knows matplotlib.

A figure is a row of panels, a panel a list of series: plain numbers that experiments hand over.
One colour per method everywhere, one type size, the place of measurement named, divergence counted
in the legend. Computes nothing that a claim would need.
"""

from matplotlib.figure import Figure as Figure  # experiments name it by this room

from antipgd.paper.figures.drawing import draw as draw
from antipgd.paper.figures.drawing import rows as rows
from antipgd.paper.figures.lines import method_name as method_name
from antipgd.paper.figures.lines import method_panels as method_panels
from antipgd.paper.figures.lines import method_series as method_series
from antipgd.paper.figures.lines import spread as spread
from antipgd.paper.figures.parts import COLOURS as COLOURS
from antipgd.paper.figures.parts import MEASURES as MEASURES
from antipgd.paper.figures.parts import NAMES as NAMES
from antipgd.paper.figures.parts import THEORY as THEORY
from antipgd.paper.figures.parts import Column as Column
from antipgd.paper.figures.parts import Panel as Panel
from antipgd.paper.figures.parts import Series as Series
from antipgd.paper.figures.rendering import rendered as rendered
