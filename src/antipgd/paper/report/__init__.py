"""The page: what the method is, what came out, every verdict, figure and number on one sheet.

One self-contained file of HTML that asks nothing of the network. It computes nothing: it shows the
claims and pictures it is given, and the same input gives the same bytes. What is long is folded,
and can be filtered without a script; the few lines of script unfold what a link leads to.
"""

from antipgd.paper.report.content import Erratum as Erratum
from antipgd.paper.report.content import Item as Item
from antipgd.paper.report.content import Row as Row
from antipgd.paper.report.markup import measured as measured
from antipgd.paper.report.markup import number as number
from antipgd.paper.report.page import page as page
