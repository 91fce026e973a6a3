"""A small model, and its gradient at z + ξ_n by a copy that holds those weights."""

import copy

import torch
from torch import nn

from antipgd.noise import draws


def make(dtype):
    """Weights of 16 × 16 and more: 8-bit optimizers take smaller ones in float32."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 64), nn.Tanh(), nn.LayerNorm(64), nn.Linear(64, 64), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(64, 1)).to(dtype)


def loss_of(model, n, part=0, parts=1):
    """Of step n's batch, or of one of the micro-batches that it comes in."""
    generator = torch.Generator().manual_seed(100 + n % 5)
    x = torch.randn(20, 6, generator=generator, dtype=torch.float64).chunk(parts)[part]
    dtype = next(model.parameters()).dtype
    return (model(x.to(dtype)) - x[:, :1].sin().to(dtype)).square().mean() / parts


def perturbed_gradients(model, n, parts=1):
    """What the training loop does."""
    model.zero_grad()
    for part in range(parts):
        loss_of(model, n, part, parts).backward()


def explicit_gradients(model, n, sigma, seed, gradients=perturbed_gradients):
    """Gradients of a copy that holds z + σ ξ_n, rounded to nearest, as those of the model."""
    noisy = copy.deepcopy(model)
    with torch.no_grad():
        for name, w in noisy.named_parameters():
            if n >= 1:
                xi = torch.from_numpy(draws(seed, name, n, 0, w.numel())).reshape(w.shape)
                w.copy_((w.float() + xi * torch.tensor(sigma)).to(w.dtype))
    gradients(noisy, n)
    for z, w in zip(model.parameters(), noisy.parameters(), strict=True):
        z.grad = w.grad
