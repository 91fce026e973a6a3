"""Two-point noise: the mean of the gradients at w + σξ and w − σξ (Zhang et al., 2024, "noise
stability optimization", arXiv 2306.08553)."""

GRADIENTS = 2
TUNES = "σ / rms of the start"
GRID = (0.03, 0.1, 0.2, 0.4, 0.8)


def step(bout, w):
    xi = bout.value * bout.start_rms * bout.noisy * bout.draw(bout.n)
    return bout.descend(w, (bout.gradient(w + xi) + bout.gradient(w - xi)) / 2)
