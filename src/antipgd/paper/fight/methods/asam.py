"""ASAM: SAM's perturbation with each weight's size as its unit (Kwon et al., 2021, arXiv
2102.11600). |w| + 0.01 scales gradient and perturbation, as theirs does."""

GRADIENTS = 2
TUNES = "radius"
GRID = (0.1, 0.3, 0.6, 1.0, 2.0)


def step(bout, w):
    size = w.abs() + 0.01
    g = size * bout.gradient(w)
    return bout.descend(w, bout.gradient(w + bout.value * size * g / (g.norm() + 1e-12)))
