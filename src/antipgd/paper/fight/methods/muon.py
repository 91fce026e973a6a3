"""Muon: momentum of matrices made orthogonal (Jordan et al., 2024); AdamW for all the rest."""

import torch

GRADIENTS = 1
TUNES = "rate of the matrices / AdamW's"
GRID = (0.25, 0.5, 1.0, 2.0, 4.0)
PROBLEMS = ("char_gpt",)
MOMENTUM, DECAY, ROUNDS = 0.95, 0.01, 5
TABLES = ("characters", "places", "head")  # embeddings and output are AdamW's, as its authors say


def orthogonal(matrix):
    """Newton and Schulz's iteration towards UVᵀ of a matrix USVᵀ."""
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(ROUNDS):
        square = x @ x.T
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def step(bout, w):
    g, rate = bout.gradient(w), bout.value * bout.lr
    kept = bout.state.setdefault("momentum", torch.zeros_like(w)).lerp_(g, 1 - MOMENTUM)
    after = bout.descend(w, g)
    old, new, direction = map(bout.tensors, (w, after, g.lerp(kept, MOMENTUM)))
    for name, matrix in old.items():
        if matrix.dim() == 2 and not name.startswith(TABLES):
            size = 0.2 * max(matrix.shape) ** 0.5  # steps as large as AdamW's
            new[name].copy_((1 - rate * DECAY) * matrix - rate * size * orthogonal(direction[name]))
    return after
