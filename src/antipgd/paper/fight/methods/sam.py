"""SAM: the gradient where the loss is largest nearby (Foret et al., 2021, arXiv 2010.01412)."""

GRADIENTS = 2
TUNES = "radius / norm of the start"
GRID = (0.001, 0.003, 0.01, 0.03, 0.1)


def step(bout, w):
    g = bout.gradient(w)
    radius = bout.value * bout.start_norm
    return bout.descend(w, bout.gradient(w + radius * g / (g.norm() + 1e-12)))
