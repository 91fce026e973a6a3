"""A small regression, and what a host must leave behind after it: the explicit z-form.

Hosts train `network()` on `batches(…)`; `explicit(…)` takes the same steps by hand, with draws in
NumPy and nothing of the torch adapter.
"""

import torch
from torch.nn.functional import mse_loss

from explicit import SEED, Explicit, same

SIGMA = 0.05
NOISE = {"sigma": SIGMA, "seed": SEED}


def network(seed=0):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.LayerNorm(16)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(16, 1))


def batches(count, size=8):
    generator = torch.Generator().manual_seed(1)
    xs = torch.randn(count, size, 6, generator=generator)
    return [(x, x[:, :1].sin()) for x in xs]


def momentum(model, lr=0.05):
    return torch.optim.SGD(model.named_parameters(), lr=lr, momentum=0.9)


def explicit(data, accumulated=1, sigma=SIGMA, make=network, loss=mse_loss, optimizer=momentum):
    """z after one step for each `accumulated` batches; `.at_z()` is a plain model that holds it."""
    walk = Explicit(make(), optimizer, sigma)
    for number, (x, y) in enumerate(data, 1):
        (loss(walk.carrier(x), y) / accumulated).backward()
        if number % accumulated == 0:
            walk.step()
    return walk


def check_same(found, expected):
    """Two models or dictionaries of weights are bitwise the same."""
    found, expected = _weights(found), _weights(expected)
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        assert same(found[name], weights), name


def differ(found, other):
    """Whether any weight is another."""
    found, other = _weights(found), _weights(other)
    return any(not same(found[name], other[name]) for name in found)


def check_explicit(found, data, accumulated=1, **options):
    """The weights are those of the explicit z-form, and without noise they would be others."""
    check_same(found, explicit(data, accumulated, **options).clean)
    assert differ(found, explicit(data, accumulated, sigma=0.0, **options).clean)


def _weights(held):
    return held.state_dict() if isinstance(held, torch.nn.Module) else dict(held)
