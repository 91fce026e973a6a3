"""ARWP: the gradient at w + ξ, noise in the units of each filter's norm and smaller where its
gradients have been large: / √(1 + Σg²), g² summed over the past with 0.9 and over the filter; of
what has one dimension each element is its own filter there (Li et al., 2024, arXiv 2404.00357, and
their code)."""

import torch

GRADIENTS = 1
TUNES = "σ / norms of filters"
GRID = (0.01, 0.03, 0.1, 0.2, 0.4)


def filters(bout, v, alone):
    for t in bout.tensors(v).values():
        yield t.reshape(len(t), -1) if t.dim() > 1 else t.view((-1, 1) if alone else (1, -1))


def squares(bout, v, alone=False):
    rows = filters(bout, v, alone)
    return torch.cat([(r * r).sum(1, keepdim=True).expand_as(r).reshape(-1) for r in rows])


def step(bout, w):
    past = bout.state.setdefault("past", 0 * w)
    scale = bout.value * bout.noisy * (squares(bout, w) / (1 + past)).sqrt()
    g = bout.gradient(w + scale * bout.draw(bout.n))
    past.mul_(0.9).add_(squares(bout, g, alone=True))
    return bout.descend(w, g)
