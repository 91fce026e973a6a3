"""PGD: GD and independent noise in the weights, which piles up (Orvieto et al., 2022)."""

GRADIENTS = 1
ORDER = "full"
TUNES = "σ / rms of the start"
GRID = (0.0003, 0.001, 0.003, 0.01, 0.03)


def step(bout, w):
    w = bout.descend(w, bout.gradient(w))
    if bout.noisy:
        w = w + bout.value * bout.start_rms * bout.draw(bout.n)
    return w
