"""Anti-PGD, antithetic: every second draw is minus the one before."""

GRADIENTS = 1
ORDER = "full"
TUNES = "σ / rms of the start"
GRID = (0.03, 0.1, 0.2, 0.4, 0.8)


def step(bout, w):
    sigma = bout.value * bout.start_rms * bout.noisy * (1 if bout.n % 2 else -1)
    return bout.descend(w, bout.gradient(w + sigma * bout.draw((bout.n + 1) // 2)))
