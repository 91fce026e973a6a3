"""The explicit z-form under any sharding: a second copy of the model holds z + ξ_n.

Its gradients go to an optimizer on z. The draws are NumPy's, the shards torch's own.
"""

from functools import wraps

import numpy as np
import torch
from torch.distributed.tensor.placement_types import _StridedShard

from antipgd.noise import canonical_name, draws
from job import full

SEED, SIGMA = 5, 0.05


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def local(tensor):
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach()


def own(model):
    """A model's parameters by name, as an optimizer gets them: FSDP2's shards."""
    return {canonical_name(name): p for name, p in model.named_parameters()}


def clean(parameters):
    """z by name, whole, as every rank has it."""
    return {name: full(p).clone() for name, p in parameters.items()}


def part_of(whole, parameter):
    """This rank's part of a tensor, cut as the parameter is; FSDP2 cuts what is cut already."""
    if not hasattr(parameter, "placements"):
        return whole
    mesh, cuts = parameter.device_mesh, list(enumerate(parameter.placements))
    for axis, cut in sorted(cuts, key=lambda cut: isinstance(cut[1], _StridedShard)):
        if not cut.is_replicate():
            parts = whole.chunk(mesh.size(axis), cut.dim)
            mine = mesh.get_coordinate()[axis]
            whole = parts[mine] if mine < len(parts) else whole.narrow(cut.dim, 0, 0)
    return whole


def noisy(z, step, type_read=None, number=0, sign=1):
    """w as one process makes it of the whole tensors, from a step's draw of this number.

    `type_read` is what FSDP2 gathers them in.
    """
    w = {}
    for name, value in z.items():
        xi = 0.0
        if step > 0:
            stream = name if number == 0 else f"{name}@{number}"
            xi = draws(SEED, stream, step, 0, value.numel(), "gaussian")
            xi = np.float32(sign * SIGMA) * xi.reshape(value.shape)
        read = value if type_read is None else value.to(type_read)
        w[name] = torch.from_numpy(np.asarray(read.float().numpy() + xi)).to(read.dtype)
    return w


class Explicit:
    """z ← step with ∇L(z + ξ_n), written out."""

    def __init__(self, make, optimizer, type_read=None, drawn=(0, 1)):
        model, self.model = make(), make()
        self.z, self.at = own(model), own(self.model)
        self.optimizer, self.type_read = optimizer(model), type_read
        self.drawn = drawn  # number and sign of the draw
        self.count = 0

    def step(self, backward):
        w = noisy(clean(self.z), self.count, self.type_read, *self.drawn)
        for name, at in self.at.items():
            local(at).copy_(part_of(w[name], at))
        backward(self.model)
        for z, at in zip(self.z.values(), self.at.values(), strict=True):
            z.grad, at.grad = at.grad, None
        self.optimizer.step()
        self.count += 1


class Reads:
    """What each module of a model reads of its own parameters inside its forward()."""

    def __init__(self, model):
        self.found = {}
        self._names = {id(p): name for name, p in own(model).items()}
        for module in model.modules():
            if module._parameters:
                self._listen(module)

    def _listen(self, module):
        forward = module.forward
        names = {key: self._names[id(p)] for key, p in module._parameters.items() if p is not None}

        @wraps(forward)
        def listening(*args, **kwargs):
            for key, name in names.items():
                self.found.setdefault(name, []).append(full(getattr(module, key)).clone())
            return forward(*args, **kwargs)

        module.forward = listening

    def check(self, expected):
        """Every read since the last check was this w."""
        assert self.found.keys() == expected.keys(), self.found.keys() ^ expected.keys()
        for name, w in expected.items():
            for read in self.found[name]:
                assert read.dtype == w.dtype, (name, read.dtype)
                assert torch.equal(read, w), (name, (read - w).abs().max())
        self.found = {}


def check_same(ours, theirs):
    for name, p in ours.items():
        q = theirs[name]
        assert type(p.data) is type(q.data)
        assert torch.equal(local(p), local(q)), (name, (local(p) - local(q)).abs().max())
