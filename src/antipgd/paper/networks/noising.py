"""How a training's noise begins, in either form, and draws for gradients that need some.

In the form `weights` the weights w carry the noise; in the form `forward` they are z always, and w
exists in training passes only. Where w is to be measured it is put together for that long.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from antipgd.noise.laws import as_law
from antipgd.noise.stream import stream_key
from antipgd.paper.networks.spec import Training
from antipgd.torch import Noise, attach, norms, perturb
from antipgd.torch.adding import Adder
from antipgd.torch.members import Member


def _left_out(spec: Training, model: nn.Module) -> Any:
    return norms(model) if spec.noisy == "no_norms" else None


def begin_noise(spec: Training, model: nn.Module, optimizer: torch.optim.Optimizer) -> Noise:
    """Noise on the weights or in passes; it goes on from what the optimizer was loaded with."""
    settings: dict[str, Any] = {
        "relative": spec.relative, "law": spec.law, "taps": spec.taps, "seed": spec.seed,
        "exclude": _left_out(spec, model),
    }  # fmt: skip
    if spec.form == "forward":
        return perturb(model, optimizer, spec.sigma, **settings)
    return attach(optimizer, spec.sigma, model=model, **settings)


def let_go(noise: Noise) -> None:
    """End it with the weights as they are."""
    noise.stop(remove=noise.form == "forward")  # whose weights carry nothing


def as_they_are(noise: Noise | None) -> AbstractContextManager[None]:
    """Inside, passes read what is in the parameters, and nothing is added to it."""
    if noise is None or noise.form == "weights":
        return nullcontext()
    return noise.clean()


@contextmanager
def noisy_weights(noise: Noise) -> Iterator[None]:
    """Inside, the weights are w, in evaluation too; after, what they were, bit for bit."""
    if noise.form == "weights":
        yield
        return
    weights = [member.parameter for member in noise.members]
    kept = [p.detach().clone() for p in weights]
    with as_they_are(noise), torch.no_grad():
        for p in weights:
            p.add_(noise.injected(p))
        try:
            with torch.enable_grad():
                yield
        finally:
            for p, z in zip(weights, kept, strict=True):
                p.copy_(z)


class Draws:
    """Unit draws for all weights that take noise, from the stream that noise on them would have."""

    def __init__(self, spec: Training, model: nn.Module, law: str) -> None:
        out = _left_out(spec, model) or (lambda name, p: False)
        self._drawn = {
            name: torch.zeros_like(p) for name, p in model.named_parameters() if not out(name, p)
        }
        members = [
            Member(tensor, name, name, 0, place, name, None, 1.0, [], stream_key(spec.seed, name))
            for place, (name, tensor) in enumerate(self._drawn.items())
        ]
        self._adder = Adder(members, as_law(law))

    def at(self, step: int) -> Sequence[tuple[str, Tensor]]:
        """ξ of a step, counted from 1, by name; gone with the next."""
        for tensor in self._drawn.values():
            tensor.zero_()
        self._adder.add(step, [[1.0]] * len(self._drawn))
        return list(self._drawn.items())
