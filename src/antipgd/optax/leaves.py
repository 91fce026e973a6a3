"""The leaves of a pytree by name, and which of them can take noise.

A name is the path joined by dots, as torch would call the parameter. Knows nothing about noise
but on which types it can be added.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from antipgd.noise import canonical_name

ONE, NESTED = "one", "one nested"
"""Layers take turns; and entries of one entry of a list are one layer."""


def _component(entry: Any) -> str:
    """A DictKey or FlattenedIndexKey has a `key`, a SequenceKey an `idx`, a GetAttrKey a `name`."""
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def layer_of(name: str, layers: str = NESTED) -> str:
    """The module that a leaf belongs to, as torch would call it.

    An entry of a list or tuple is one by itself, but not where that is an entry, too: each pair of
    [(W, b), (W, b)] is one. With layers="one", as states of old have it, there as well.
    """
    module, _, last = name.rpartition(".")
    inner = module.rpartition(".")[2].isdigit()
    return name if last.isdigit() and not (inner and layers == NESTED) else module


def checked_layers(names: Sequence[str]) -> str:
    """What a state says of leaves whose layers take turns; refused if they are all of one."""
    found = sorted({layer_of(name) for name in names})
    if len(found) < 2:
        raise ValueError(
            f"layers='one' needs two layers or more that take noise; got {found}: a layer is all "
            f"leaves whose paths differ in the last part"
        )
    return ONE if all(layer_of(name) == layer_of(name, ONE) for name in names) else NESTED


def _boxed(node: Any) -> bool:
    """Whether it is flax's box around an array, whose `value` is no part of the name.

    An nnx.Optimizer shows Variables to `init` and the arrays in them to `update`.
    """
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(node).__mro__}
    names = ("Variable", "VariableState", "AxisMetadata")  # the second until flax 0.11
    return not kinds.isdisjoint(("flax", name) for name in names)


def _paths(tree: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """(path, leaf) of every leaf in order, paths without flax's boxes."""
    for path, node in jax.tree_util.tree_flatten_with_path(tree, is_leaf=_boxed)[0]:
        if not _boxed(node):
            yield path, node
            continue
        for inner, leaf in jax.tree_util.tree_flatten_with_path(node)[0]:
            yield (*path, *inner[1:]), leaf


def named_leaves(tree: Any) -> tuple[list[tuple[str, Any]], Any]:
    """(name, leaf) of every leaf in order, and the structure to put them back into.

    A tree that is a single leaf is at position 0. Two leaves of one name are refused: they would
    take the same noise.
    """
    leaves: dict[str, Any] = {}
    for path, leaf in _paths(tree):
        name = canonical_name(".".join(map(_component, path)) if path else 0)
        if name in leaves:
            raise ValueError(
                f"two leaves of the tree are named {name!r}, so they would take the same noise; "
                f"rename one of them (names are paths joined by dots)"
            )
        leaves[name] = leaf
    return list(leaves.items()), jax.tree_util.tree_structure(tree)


def dtype_of(leaf: Any) -> Any:
    """The type that JAX gives a leaf; None for what is no array."""
    if isinstance(leaf, bool | int | float | complex):
        return jnp.result_type(leaf)
    return getattr(leaf, "dtype", None)


def check_type(name: str, leaf: Any, forward: bool) -> None:
    """Refuse a leaf that takes no noise: float32 and float64 do, in forward form 16 bits too."""
    dtype = dtype_of(leaf)
    if dtype in (jnp.float32, jnp.float64):
        return
    if dtype in (jnp.bfloat16, jnp.float16):
        if forward:
            return
        raise TypeError(
            f"leaf {name!r} is {dtype}, in which the weights would drift: draws do not come out as "
            f"they went in. Use perturb, whose params are clean in any type, or float32 params "
            f"(and updates) that are cast to {dtype} in the loss, or leave the leaf out with mask="
        )
    accepted = "float32, float64, bfloat16 and float16" if forward else "float32 and float64"
    raise TypeError(
        f"noise is added to {accepted} leaves; leaf {name!r} is "
        f"{type(leaf).__name__ if dtype is None else dtype}: leave it out with mask= "
        f"(with Equinox, pass eqx.filter(model, eqx.is_inexact_array))"
    )


def check_unsharded(name: str, leaf: Any) -> None:
    """Refuse a leaf of which shard_map shows a part only, where JAX says so.

    Its elements are numbered from zero on every device then, and all parts would take the same
    draws. With check_vma=False nothing is said.
    """
    kind = jax.typeof(leaf) if hasattr(jax, "typeof") else None
    varying = getattr(getattr(kind, "manual_axis_type", kind), "varying", None)
    varying = getattr(kind, "vma", None) if varying is None else varying
    if varying:
        raise ValueError(
            f"inside shard_map, leaf {name!r} differs along mesh axes {sorted(varying)}, so its "
            f"elements' place in the whole is not known. Apply the optimizer outside shard_map "
            f"(under jit, with any sharding), or average the gradients first if the params are "
            f"replicated; check_vma=False gives the same draws to all parts"
        )


def masked_names(mask: Any, tree: Any) -> list[str]:
    """Names of the leaves for which the mask is true; it must have the tree's structure."""
    mask = mask(tree) if callable(mask) else mask
    flags, mask_structure = named_leaves(mask)
    leaves, structure = named_leaves(tree)
    if mask_structure != structure:
        ours, theirs = dict(flags).keys(), dict(leaves).keys()
        raise ValueError(
            f"mask must be a tree of bools with the structure of the params (true: takes noise), "
            f"or a function of the params that returns one; only in the mask: "
            f"{sorted(ours - theirs)}, only in the params: {sorted(theirs - ours)}"
            + ("" if ours != theirs else f"; {mask_structure} is not {structure}")
        )
    for name, flag in flags:
        if not isinstance(flag, bool | np.bool_):
            raise TypeError(f"mask must hold bools; at {name!r} it holds {flag!r}")
    return [name for name, flag in flags if flag]
