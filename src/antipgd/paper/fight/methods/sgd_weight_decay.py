"""SGD + weight decay: decoupled, w shrinks by η times the decay at each step (Loshchilov and
Hutter, 2019, arXiv 1711.05101)."""

GRADIENTS = 1
TUNES = "decay"
GRID = (0.001, 0.003, 0.01, 0.03, 0.1)


def step(bout, w):
    return bout.descend(w, bout.gradient(w)) - bout.lr * bout.value * w
