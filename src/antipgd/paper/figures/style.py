"""How every figure looks: one type size, quiet axes. `svg.py` knows what these become at night."""

INK, AXIS, GRID, QUIET = "#1d1d1b", "#8a8a85", "#e4e4e0", "#6f6f69"
SIZE = 9
STYLE = {
    "font.size": SIZE,
    "font.family": "DejaVu Sans",
    "axes.titlesize": SIZE,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": SIZE,
    "xtick.labelsize": SIZE,
    "ytick.labelsize": SIZE,
    "legend.fontsize": SIZE,
    "figure.titlesize": SIZE,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.edgecolor": AXIS,
    "xtick.color": AXIS,
    "ytick.color": AXIS,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "antipgd",
}
