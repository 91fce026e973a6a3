"""Anti-PGD: GD and noise that is taken back a step later (Orvieto et al., 2022, arXiv 2202.02831);
here w is what is left without it, and the gradient is taken at w + σξ."""

GRADIENTS = 1
ORDER = "full"
TUNES = "σ / rms of the start"
GRID = (0.03, 0.1, 0.2, 0.4, 0.8)


def step(bout, w):
    sigma = bout.value * bout.start_rms * bout.noisy
    return bout.descend(w, bout.gradient(w + sigma * bout.draw(bout.n)))
