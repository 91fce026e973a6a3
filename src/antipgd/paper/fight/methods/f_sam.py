"""F-SAM: SAM along what the batch's gradient has beyond its mean over the past (Li et al., 2024,
arXiv 2403.12350): m ← 0.9 m + 0.1 g, perturbation along g − m."""

GRADIENTS = 2
TUNES = "radius / norm of the start"
GRID = (0.001, 0.003, 0.01, 0.03, 0.1)


def step(bout, w):
    g = bout.gradient(w)
    mean = bout.state.setdefault("mean", 0 * g)
    mean.lerp_(g, 0.1)
    d = g - mean
    radius = bout.value * bout.start_norm
    return bout.descend(w, bout.gradient(w + radius * d / (d.norm() + 1e-12)))
