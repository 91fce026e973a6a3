"""Whether every weight was read through us: a parameter's gradient must be what came through w.

A weight that a pass reads past us (from a list of its own, through named_parameters()) is z there,
silently. Each parameter is looked at until the first step that it has a gradient for.
"""

import logging
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from antipgd.torch.forward.compiled import compiled_reads, watchers
from antipgd.torch.parts import is_sharded
from antipgd.torch.stepping import is_captured

log = logging.getLogger("antipgd")

ROUNDINGS = 64  # that the order of a sum may make, in units of the type's precision


class Audit:
    """Compares gradients until each parameter has been seen once."""

    def __init__(self) -> None:
        self._came: dict[str, dict[tuple | None, Tensor]] = {}  # by how it lies on the ranks
        self._sizes: dict[str, float] = {}
        self._keys: dict[str, int] = {}
        self._looked_at: set[str] = set()
        self._removers: dict[str, list[Callable[[], None]]] = {}
        self._leaves: dict[str, list[weakref.ref[Tensor]]] = {}
        self._seen: set[str] = set()
        self._excused: set[str] = set()
        self._compiled: list[str] = []  # read in compiled passes, so let go unseen
        self.raw: dict[str, float] = {}
        """By name, the share of a gradient that did not come through w."""
        watchers.add(self)

    def watch(self, named: Iterable[tuple[str, Tensor]]) -> None:
        """Begin with these parameters."""
        for name, parameter in named:
            if name not in self._removers and parameter.requires_grad:
                self._removers[name] = []
                self.watch_leaf(name, parameter)

    @property
    def is_watching(self) -> bool:
        """Whether a parameter has yet to be seen."""
        return bool(self._removers)

    def watches(self, name: str) -> bool:
        """Whether a parameter has yet to be seen."""
        return name in self._removers

    def know(self, seats: Iterable[Any]) -> None:
        """The keys by which compiled passes tell what they have read."""
        if self.is_watching:
            self._keys = {seat.name: seat.keys(0) for seat in seats}
            compiled_reads.difference_update(self._keys.values())  # of passes before

    def excuse(self, name: str) -> None:
        """The parameter was read without noise, rightly: not to be judged before the next step."""
        self._excused.add(name)

    def looks_first_at(self, name: str) -> bool:
        """Whether nobody has asked this of the parameter before, and it is watched."""
        first = self.watches(name) and name not in self._looked_at
        self._looked_at.add(name)
        return first

    def watch_read(self, name: str, parameter: Tensor, z: Tensor, w: Tensor) -> None:
        """A pass reads w, made of the parameter itself or of what stands in its place."""
        if z is not parameter and z.requires_grad:
            if not z.is_leaf:  # made of others (functional_call): its gradient goes on to them
                self._forget(name)
                return
            self.watch_leaf(name, z)
        self.watch_formed(name, w)

    def watch_leaf(self, name: str, parameter: Tensor) -> None:
        """Look, once, at the gradient that arrives at a parameter, before anybody else's hook."""
        if any(leaf() is parameter for leaf in self._leaves.setdefault(name, [])):
            return  # FSDP2's gathered parameter, in another pass
        self._leaves[name].append(weakref.ref(parameter))

        def arrived(gradient: Tensor) -> None:
            self._arrived(name, gradient)

        arrived.__torch_unserializable__ = True  # type: ignore[attr-defined]
        hook = parameter.register_hook(arrived)
        hooks: Any = parameter._backward_hooks
        others = [(key, other) for key, other in hooks.items() if key != hook.id]
        hooks.clear()  # autograd goes by the order in which they were put in
        hooks.update([(hook.id, arrived), *others])
        self._removers[name].append(hook.remove)

    def watch_formed(self, name: str, w: Tensor) -> None:
        """Look at the gradient that comes through w."""
        if w.requires_grad:
            w.register_hook(lambda gradient: self._passed(name, gradient))

    def _passed(self, name: str, gradient: Tensor) -> None:
        if not self.watches(name) or is_captured():  # no number can be read then
            return
        gradient, came = _dense(gradient), self._came.setdefault(name, {})
        where = _placements(gradient)
        came[where] = came[where] + gradient if where in came else gradient
        self._sizes[name] = self._sizes.get(name, 0.0) + _norm(_local(gradient))

    def _arrived(self, name: str, gradient: Tensor) -> None:
        if not self.watches(name) or is_captured():
            return
        came, size = self._came.pop(name, {}), self._sizes.pop(name, 0.0)
        if self._keys.get(name) in compiled_reads:  # whose gradients nobody sees on their way
            compiled_reads.discard(self._keys[name])
            self._forget(name)
            self._compiled.append(name)
            return
        if name in self._excused:
            return
        alike = not came or came.keys() == {_placements(gradient)}
        part, *parts = map(_local if alike else _whole, [_dense(gradient), *came.values()])
        off = _norm(sum(parts, start=torch.zeros_like(part)) - part)
        if off > ROUNDINGS * torch.finfo(part.dtype).eps * max(size, _norm(part)):
            self.raw[name] = off / max(_norm(part), off)
        self._seen.add(name)

    def _forget(self, name: str) -> None:
        for remove in self._removers.pop(name, []):
            remove()
        self._leaves.pop(name, None)

    def begin_pass(self) -> None:
        """Drop what a backward pass that failed has left behind."""
        self._came.clear()
        self._sizes.clear()

    def stop(self) -> None:
        """Watch nobody any more."""
        for name in list(self._removers):
            self._forget(name)
        self._came.clear()
        self._sizes.clear()
        self._seen.clear()
        self._excused.clear()
        self.raw.clear()

    def check(self) -> None:
        """Refuse, by name, weights that were read past us; have done with all that were not.

        Those stay watched: it does not get right by trying again.
        """
        for name in self._seen - set(self.raw):
            self._forget(name)
        self._seen.clear()
        self._excused.clear()
        self._say_compiled()
        if not self.raw:
            return
        found = ", ".join(f"{name!r} ({share * 100:.3g}%)" for name, share in self.raw.items())
        self.raw.clear()
        raise RuntimeError(
            f"read without noise in a training pass: {found} of the gradient did not come through "
            f"the noisy weights. Inside forward() read a weight as an attribute of its module "
            f"(self.weight), not from parameters(), state_dict(), a list or another module's "
            f"attribute that holds it, and call the model, not one of its methods. If that is "
            f"meant (a penalty on the clean weights in the loss), perturb(..., audit=False)"
        )

    def _say_compiled(self) -> None:
        names, self._compiled = self._compiled, []
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            log.warning(
                "the audit cannot follow passes under torch.compile, which read %s%s through the "
                "noise: whether also past it is not known. To have that looked at, make one step "
                "before compiling", ", ".join(map(repr, names[:3])), more,
            )  # fmt: skip


def _dense(gradient: Tensor) -> Tensor:
    return (gradient.to_dense() if gradient.is_sparse else gradient).detach()


def _placements(gradient: Tensor) -> tuple | None:
    return gradient.placements if is_sharded(gradient) else None  # type: ignore[attr-defined]


def _local(gradient: Tensor) -> Tensor:
    return gradient._local_tensor if is_sharded(gradient) else gradient  # type: ignore[attr-defined]


def _whole(gradient: Tensor) -> Tensor:
    """For gradients that lie differently on the ranks, all of which come here."""
    return gradient.full_tensor() if is_sharded(gradient) else gradient  # type: ignore[attr-defined]


def _norm(gradient: Tensor) -> float:
    wide = gradient.float() if gradient.device.type == "mps" else gradient.double()  # it has none
    return float(torch.linalg.vector_norm(wide))
