"""NEFTune: uniform noise on the embeddings of each batch (Jain et al., 2024, arXiv 2310.05914)."""

import torch

GRADIENTS = 1
TUNES = "alpha"
GRID = (0.3, 1.0, 3.0, 10.0, 30.0)
PROBLEMS = ("char_gpt",)


def step(bout, w):
    if not bout.noisy:
        return bout.descend(w, bout.gradient(w))
    _, places, width = shape = (len(bout.rows), *bout.problem.embedded)
    normal = bout.draw(bout.n)[: shape[0] * places * width].view(shape)
    uniform = 2 * torch.special.ndtr(normal) - 1
    noise = bout.value / (places * width) ** 0.5 * uniform
    return bout.descend(w, bout.gradient(w, embedding_noise=noise))
