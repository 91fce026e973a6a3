"""Which axes of a leaf count its filters: the outputs of a layer, wherever its library puts them.

The name tells: Flax's kernels end with their outputs, (in, out) or HWIO; Equinox's weights, as
torch's, begin with them. Where no name tells, it is asked for. A state has what was found as text,
behind the word "filter"; the word alone says that all filters are rows of the first axis.
"""

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import jax.numpy as jnp

FILTER = "filter"
"""What σ may be relative to beside the whole leaf: each of its filters."""
BY_NAME = {
    "kernel": (-1,),  # Flax: (in, out), (height, width, in, out)
    "weight": (0,),  # Equinox, torch: (out, in), (out, in, height, width)
    "weight_ih": (0,),
    "weight_hh": (0,),
    "embedding": (0,),  # of each entry of the table
    "embeddings": (0,),
    "bias": (),  # one filter, also where it has the axes of what it is added to
    "scale": (),
}
ATTENTION = ("query", "key", "value")  # Flax's have kernels (in, heads, of a head)
ACCEPTED = "a whole number, a tuple of them, or a function of a leaf's path and the leaf"

Axes = tuple[int, ...]
"""Those along which a leaf has filters, in order; none: it is one filter."""
FilterAxis = int | Sequence[int] | Callable[[str, Any], int | Sequence[int] | None] | None


def check_filter_axis(filter_axis: Any, relative: bool | str) -> None:
    """Refuse what is no axis, and an axis that nothing would look at."""
    if filter_axis is None:
        return
    if relative != FILTER:
        raise ValueError(f"filter_axis is of relative={FILTER!r}; got relative={relative!r}")
    if not callable(filter_axis) and _whole(filter_axis) is None:
        raise ValueError(f"filter_axis must be {ACCEPTED}; got {filter_axis!r}")


def _whole(asked: Any) -> Axes | None:
    """One axis or several as a tuple; None for what is neither."""
    several = list(asked) if isinstance(asked, tuple | list) else [asked]
    try:
        return None if any(isinstance(a, bool) for a in several) else tuple(map(index, several))
    except TypeError:
        return None


def axes_of(name: str, leaf: Any, filter_axis: FilterAxis) -> Axes:
    """Along which axes a leaf has filters; a vector and what is empty are one."""
    shape = jnp.shape(leaf)
    if len(shape) < 2 or 0 in shape:
        return ()
    asked = filter_axis(name, leaf) if callable(filter_axis) else filter_axis
    if asked is None:
        asked = _by_name(name, shape)
    own, count = _whole(asked), len(shape)
    axes = {a % count for a in own or () if -count <= a < count}
    if own is None or len(axes) < len(own):
        raise ValueError(
            f"filter_axis: leaf {name!r} has axes from {-count} to {count - 1}, of which it is one "
            f"or several that differ; got {asked!r}"
        )
    return tuple(sorted(axes))


def _by_name(name: str, shape: Sequence[int]) -> Axes:
    *modules, last = name.split(".")
    if last == "kernel" and len(shape) == 3 and modules[-1:] and modules[-1] in ATTENTION:
        return (1, 2)
    if last not in BY_NAME:
        raise ValueError(
            f"relative={FILTER!r}: nothing tells along which axis of leaf {name!r} of shape "
            f"{tuple(shape)} the outputs of its layer lie (names whose last part is one of "
            f"{', '.join(BY_NAME)} do); give filter_axis=, -1 where leaves are (in, out), as in "
            f"Haiku, 0 where they are (out, in), or a function of path and leaf; or leave the "
            f"leaf out with mask="
        )
    return BY_NAME[last]


def kept(shape: Sequence[int], axes: Axes) -> tuple[int, ...]:
    """The shape of one number for each filter, as a leaf can be multiplied with them."""
    return tuple(n if axis in axes else 1 for axis, n in enumerate(shape))


def _rows(shape: Sequence[int]) -> Axes:
    return (0,) if len(shape) > 1 and 0 not in shape else ()


def as_text(shapes: Sequence[Sequence[int]], found: Sequence[Axes]) -> str:
    """How a state says it: "filter", and the axes of each leaf unless all filters are rows."""
    if list(found) == list(map(_rows, shapes)):
        return FILTER
    return " ".join([FILTER, *(",".join(map(str, axes)) or "-" for axes in found)])


def from_text(text: str, shapes: Sequence[Sequence[int]]) -> list[Axes]:
    """From a state."""
    _, *said = text.split(" ")
    if not said:
        return list(map(_rows, shapes))
    return [() if axes == "-" else tuple(map(int, axes.split(","))) for axes in said]


def refuse_others(
    names: Sequence[str], text: str, leaves: dict[str, Any], filter_axis: FilterAxis
) -> None:
    """Refuse to go on with filters that lie along other axes than the state says."""
    begun = from_text(text, [jnp.shape(leaves[name]) for name in names])
    for name, theirs in zip(names, begun, strict=True):
        ours = axes_of(name, leaves[name], filter_axis)
        if ours != theirs:
            raise ValueError(
                f"in this state the filters of leaf {name!r} are those along {_said(theirs)}, but "
                f"the transformation has {_said(ours)}; say filter_axis= as it was, or call init "
                f"for a new one"
            )


def _said(axes: Axes) -> str:
    return f"axis {', '.join(map(str, axes))}" if axes else "no axis"
