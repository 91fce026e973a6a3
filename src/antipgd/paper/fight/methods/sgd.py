"""SGD, shuffled: mini-batches, every example once an epoch."""

GRADIENTS = 1
TUNES = "rate"
GRID = (0.125, 0.25, 0.5, 1.0, 2.0)


def step(bout, w):
    return bout.descend(w, bout.gradient(w))
