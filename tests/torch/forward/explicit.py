"""The explicit z-form: a copy of the model holds w = z + ξ_n, an optimizer acts on z.

Slow and obvious: draws in NumPy, w written into the copy's parameters, its gradients handed to z.
Nothing here comes from the torch adapter.
"""

import copy
from itertools import accumulate

import numpy as np
import torch

from antipgd.noise import ANTI, draws

SEED = 17


def noise_of(name, shape, newest, sigmas, *, seed=SEED, law="gaussian", taps=ANTI, dtype):
    """w − z after `newest` draws, `sigmas` being those of the newest and the ones before it."""
    total = None
    for lag, tap in enumerate(list(accumulate(taps))[:-1]):
        draw = newest - lag
        coefficient = tap * sigmas[lag] if lag < len(sigmas) else 0.0
        if draw < 1 or coefficient == 0:
            continue
        xi = draws(seed, name, draw, 0, int(np.prod(shape)), law).astype(dtype)
        term = xi * dtype(coefficient)
        total = term if total is None else total + term
    return None if total is None else total.reshape(shape)


def noisy(z, name, newest, sigmas, **options):
    """w of one tensor; of 16 bits, the float32 sum rounded to nearest."""
    wide = torch.float64 if z.dtype == torch.float64 else torch.float32
    dtype = np.float64 if wide == torch.float64 else np.float32
    added = noise_of(name, tuple(z.shape), newest, sigmas, dtype=dtype, **options)
    if added is None:
        return z.detach().clone()
    return (z.detach().to(wide) + torch.from_numpy(added)).to(z.dtype)


def copied(model):
    """A deepcopy; what hooks have left on modules (pruning does) is none of its business."""
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                vars(module)[name] = value.detach()
    return copy.deepcopy(model)


class Explicit:
    """A twin of a model and of its optimizer in the z-form."""

    def __init__(self, model, make_optimizer, sigma, *, schedule=None, hold=1, **options):
        self.clean = copied(model)  # its parameters are z
        self.carrier = copied(model)  # its parameters are w
        self.optimizer = make_optimizer(self.clean)
        self.sigma = (lambda step: sigma * schedule(step)) if schedule else (lambda step: sigma)
        self.hold, self.options = hold, options
        self.excluded = set()
        self.steps = 0
        self.sigmas = []  # newest first
        self.write()

    def w(self, name):
        """One parameter with its noise."""
        z = dict(self.clean.named_parameters())[name]
        if name in self.excluded:
            return z.detach().clone()
        return noisy(z, name, -(-self.steps // self.hold), self.sigmas, **self.options)

    @torch.no_grad()
    def write(self):
        """Let the carrier hold w."""
        for name, parameter in self.carrier.named_parameters():
            parameter.copy_(self.w(name))

    def step(self):
        """The carrier's gradients to z, a step of the optimizer, the next draw."""
        theirs = dict(self.carrier.named_parameters())
        for name, z in self.clean.named_parameters():
            z.grad = theirs[name].grad
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.carrier.zero_grad()
        if self.steps % self.hold == 0:
            self.sigmas.insert(0, self.sigma(self.steps + 1))
        self.steps += 1
        self.write()

    @torch.no_grad()
    def at_z(self):
        """A plain copy that holds z and the buffers of the noisy passes."""
        model = copied(self.carrier)
        zs = dict(self.clean.named_parameters())
        for name, parameter in model.named_parameters():
            parameter.copy_(zs[name])
        return model


def tensors(found):
    """All tensors in an output, in order."""
    if isinstance(found, torch.Tensor):
        return [found]
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, list | tuple):
        return [tensor for one in found for tensor in tensors(one)]
    return []


def same(a, b):
    """Bitwise."""
    a, b = (t.detach().to_dense() if t.is_sparse else t.detach() for t in (a, b))
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def weighted(output):
    """A loss that depends on every element of every floating output, each with its own weight."""
    total = 0.0
    for tensor in tensors(output):
        if tensor.is_floating_point():
            weight = torch.linspace(0.5, 1.5, tensor.numel()).reshape(tensor.shape)
            total = total + (tensor.float() * weight).sin().sum()
    return total
