"""GD: all examples at each step, or as many as are affordable; no noise."""

GRADIENTS = 1
ORDER = "full"
TUNES = "rate"
GRID = (0.25, 0.5, 1.0, 2.0, 4.0)


def step(bout, w):
    return bout.descend(w, bout.gradient(w))
