"""m-RWP, one batch: half of the gradient at w, half at w + ξ, noise in the units of each filter's
norm (Li et al., 2024, arXiv 2404.00357); both of the same batch here, where theirs are of two."""

import torch

GRADIENTS = 2
TUNES = "σ / norms of filters"
GRID = (0.01, 0.03, 0.1, 0.2, 0.4)


def norms(bout, w):
    rows = [
        t.reshape(len(t), -1) if t.dim() > 1 else t.view(1, -1) for t in bout.tensors(w).values()
    ]
    return torch.cat([row.norm(dim=1, keepdim=True).expand_as(row).reshape(-1) for row in rows])


def step(bout, w):
    xi = bout.value * bout.noisy * norms(bout, w) * bout.draw(bout.n)
    return bout.descend(w, (bout.gradient(w) + bout.gradient(w + xi)) / 2)
