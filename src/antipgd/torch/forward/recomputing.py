"""memory="recompute": autograd keeps how w was made instead of w, and makes it again in backward.

Only the innermost pair of torch's saved-tensor hooks applies, so each pair of ours hands on what is
not a w to the pair that was there: activation checkpointing and a user's own hooks see the rest.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from antipgd.torch.forward.forming import Draw, Former, in_functorch
from antipgd.torch.forward.placing import Places
from antipgd.torch.parts import is_sharded


@dataclass(frozen=True)
class Recipe:
    """How a w, or a view of it, is made."""

    z: Tensor
    version: int
    name: str
    draw: Draw
    turn: int  # of the places, when w was made
    view: tuple[tuple[int, ...], tuple[int, ...], int]


@dataclass(frozen=True)
class _Other:
    """What another pair of hooks has made of a tensor."""

    packed: Any


class Recipes:
    """The recipes of all w that are being read."""

    def __init__(self, former: Former, places: Places) -> None:
        self._former, self._places = former, places
        self._live: dict[int, tuple[Tensor, Tensor, str, Draw]] = {}

    def remember(self, z: Tensor, w: Tensor, name: str, draw: Draw) -> None:
        """w is about to be read."""
        if is_sharded(w):
            raise RuntimeError(
                f"memory='recompute' does not work with tensor-parallel weights ({name!r}); "
                f"use memory='keep'"
            )
        self._live[w.untyped_storage().data_ptr()] = z, w, name, draw

    def forget(self, formed: Iterable[Tensor]) -> None:
        """These are no longer read."""
        for w in formed:
            self._live.pop(w.untyped_storage().data_ptr(), None)

    def opened(self) -> AbstractContextManager | None:
        """A pair of hooks from here on, unless the innermost is ours already."""
        if in_functorch():  # which has no hooks on what it saves
            raise RuntimeError("memory='recompute' does not work in torch.func; use memory='keep'")
        outer = torch._C._autograd._top_saved_tensors_default_hooks(True)
        if outer is not None and getattr(outer[0], "recipes", None) is self:
            return None

        def pack(tensor: Tensor) -> Any:
            recipe = self._recipe(tensor)
            if recipe is not None:
                return recipe
            return tensor if outer is None else _Other(outer[0](tensor))

        def unpack(packed: Any) -> Tensor:
            if isinstance(packed, Recipe):
                return self._made(packed)
            if isinstance(packed, _Other):
                assert outer is not None
                return outer[1](packed.packed)
            return packed

        pack.recipes = self  # type: ignore[attr-defined]
        hooks = saved_tensors_hooks(pack, unpack)
        hooks.__enter__()
        return hooks

    def _recipe(self, tensor: Tensor) -> Recipe | None:
        if tensor.layout != torch.strided or is_sharded(tensor) or tensor.numel() == 0:
            return None
        found = self._live.get(tensor.untyped_storage().data_ptr())
        if found is None or tensor.dtype != found[1].dtype:
            return None
        z, _, name, draw = found
        view = (tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
        return Recipe(z, z._version, name, draw, self._places.turn, view)

    def _made(self, recipe: Recipe) -> Tensor:
        if recipe.z._version != recipe.version:
            raise RuntimeError(
                f"{recipe.name!r} was changed between forward and backward, so that the noisy "
                f"weights of the pass cannot be made again; use memory='keep'"
            )
        draw = recipe.draw
        if recipe.turn != self._places.turn:  # the memory has another draw by now
            draw = draw._replace(place=None)
        with torch.no_grad():
            return self._former.form(recipe.z.detach(), draw).as_strided(*recipe.view)
