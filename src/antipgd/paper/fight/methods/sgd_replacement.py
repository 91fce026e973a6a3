"""SGD, with replacement: mini-batches that are drawn anew at every step."""

GRADIENTS = 1
ORDER = "replacement"
TUNES = "rate"
GRID = (0.125, 0.25, 0.5, 1.0, 2.0)


def step(bout, w):
    return bout.descend(w, bout.gradient(w))
