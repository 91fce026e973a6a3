"""Small networks, and the reference trajectory of an optimizer with noise."""

import numpy as np
import torch

from antipgd.noise import ANTI, draws
from antipgd.noise.reference import perturbed

SEED = 17


def make_model(dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1)
    ).to(dtype)


def batch(dtype=torch.float64, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(20, 6, generator=generator, dtype=torch.float64)
    return x.to(dtype), x[:, :1].sin().to(dtype)


def train(model, optimizer, steps, loss=None, before_step=None):
    x, y = batch(next(model.parameters()).dtype)
    for step in range(steps):
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        if before_step is not None:
            before_step(step)
        optimizer.step()


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy().copy()


def set_flat(model, w):
    torch.nn.utils.vector_to_parameters(torch.from_numpy(w.copy()), model.parameters())


def draw_for(model, seed=SEED, law="gaussian", namespace=""):
    """ξ_k of all parameters one after the other, as the noise of the model must be."""
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    prefix = f"{namespace}/" if namespace else ""
    return lambda k: np.concatenate(
        [draws(seed, prefix + name, k, 0, size, law) for name, size in sizes.items()]
    )


def reference(model, optimizer, steps, sigma, law="gaussian", taps=ANTI, before_step=None):
    """The trajectory that noise on this optimizer must give: the optimizer itself as base step."""
    counter = iter(range(steps))

    def base(w):
        set_flat(model, w)
        step = next(counter)
        train(model, optimizer, 1, before_step=before_step and (lambda _: before_step(step)))
        return flat(model)

    path = perturbed(
        base, flat(model), steps, draw=draw_for(model, law=law), sigma=sigma, taps=taps
    )
    *_, w = path
    return w
