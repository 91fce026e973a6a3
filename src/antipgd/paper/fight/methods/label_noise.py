"""Label noise: normal numbers are added to the labels, or to one-hot vectors of classes, at every
step anew (Blanc et al., 2020, arXiv 1904.09080; Damian et al., 2021, arXiv 2106.06530)."""

GRADIENTS = 1
TUNES = "standard deviation"
GRID = (0.03, 0.1, 0.3, 1.0, 3.0)


def step(bout, w):
    if not bout.noisy:
        return bout.descend(w, bout.gradient(w))
    return bout.descend(w, bout.gradient(w, label_noise=bout.value * bout.draw_labels()))
