"""Anti-PGD, hold 2: every draw stays for two steps; without momentum that regularises the trace
itself at any learning rate."""

GRADIENTS = 1
ORDER = "full"
TUNES = "σ / rms of the start"
GRID = (0.03, 0.1, 0.2, 0.4, 0.8)


def step(bout, w):
    sigma = bout.value * bout.start_rms * bout.noisy
    return bout.descend(w, bout.gradient(w + sigma * bout.draw((bout.n + 1) // 2)))
