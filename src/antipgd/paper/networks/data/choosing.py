"""Which images are used: balanced subsets and a validation part, as pure functions of a seed.

The images of a class are put into an order by 64-bit words of the noise stream (purpose `data`,
step = label), so a choice depends on no random number generator's version and a larger subset of
the same seed contains the smaller ones.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from antipgd.noise.stream import stream_key, stream_words
from antipgd.paper.networks.data.images import Images, Labels

Rows = NDArray[np.int64]


def _shuffled(rows: Rows, key: int, label: int) -> Rows:
    words = stream_words(key, label, 0, -(-len(rows) // 2)).reshape(-1, 2).astype(np.uint64)
    places = (words[:, 1] << np.uint64(32)) | words[:, 0]
    return rows[np.argsort(places[: len(rows)], kind="stable")]


def _per_class(labels: Labels, order: Callable[[Rows, int], Rows], counts: dict[int, int]) -> Rows:
    """Of every class the first `counts[label]` rows in the given order; rows ascending."""
    chosen = [
        order(np.flatnonzero(labels == label), label)[:count] for label, count in counts.items()
    ]
    return np.sort(np.concatenate(chosen))


def _order(images: Images, use: str, seed: int) -> Callable[[Rows, int], Rows]:
    key = stream_key(seed, f"{images.name}.{use}", "data")
    return lambda rows, label: _shuffled(rows, key, label)


def _class_counts(images: Images) -> list[int]:
    return np.bincount(images.train_labels, minlength=len(images.classes)).tolist()


def _wanted_per_class(images: Images, per_class: int | None, total: int | None) -> int:
    if (per_class is None) == (total is None):
        raise ValueError(
            f"subset takes either per_class or total; got per_class={per_class}, total={total}"
        )
    classes = len(images.classes)
    if total is not None:
        if total % classes:
            raise ValueError(f"total must be a multiple of the {classes} classes; got {total}")
        per_class = total // classes
    assert per_class is not None
    available = min(_class_counts(images))
    if not 1 <= per_class <= available:
        raise ValueError(
            f"{images.name} has from 1 to {available} training images for every class; "
            f"got {per_class} per class"
        )
    return per_class


def subset(
    images: Images,
    *,
    per_class: int | None = None,
    total: int | None = None,
    seed: int | None = None,
) -> Images:
    """As many training images of every class, in their old order; validation and test stay.

    Without a seed the first of every class, with one drawn from the stream.
    """
    count = _wanted_per_class(images, per_class, total)
    order = (lambda rows, label: rows) if seed is None else _order(images, "subset", seed)
    counts = dict.fromkeys(range(len(images.classes)), count)
    rows = _per_class(images.train_labels, order, counts)
    return replace(
        images, train_images=images.train_images[rows], train_labels=images.train_labels[rows]
    )


def held_out_beside(images: Images, total: int, held_out: int, seed: int) -> Images:
    """The subset of `total` that `subset` draws, and for validation the next `held_out` images in
    the same order: others, as many of every class."""
    if held_out % len(images.classes):
        raise ValueError(
            f"held_out must be a multiple of the {len(images.classes)} classes; got {held_out}"
        )
    chosen = subset(images, total=total, seed=seed)
    first = _wanted_per_class(images, None, total)
    more = _wanted_per_class(images, None, total + held_out) - first
    order = _order(images, "subset", seed)
    counts = dict.fromkeys(range(len(images.classes)), more)
    rows = _per_class(images.train_labels, lambda rows, label: order(rows, label)[first:], counts)
    return replace(
        chosen,
        validation_images=images.train_images[rows],
        validation_labels=images.train_labels[rows],
    )


def validation_split(images: Images, fraction: float, seed: int) -> Images:
    """Move the same fraction of every class, drawn from the stream, from training to validation."""
    if len(images.validation_labels):
        raise ValueError(
            f"{images.name} has a validation part already, of {len(images.validation_labels)}"
        )
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must lie between 0 and 1; got {fraction}")
    available = _class_counts(images)
    counts = {label: round(fraction * count) for label, count in enumerate(available)}
    for label, count in counts.items():
        if not 0 < count < available[label]:
            raise ValueError(
                f"fraction {fraction} of the {available[label]} training images of class "
                f"{images.classes[label]!r} is {count}; both parts need at least one"
            )
    order = _order(images, "validation", seed)
    moved = _per_class(images.train_labels, order, counts)
    kept = np.delete(np.arange(len(images.train_labels)), moved)
    return replace(
        images,
        train_images=images.train_images[kept],
        train_labels=images.train_labels[kept],
        validation_images=images.train_images[moved],
        validation_labels=images.train_labels[moved],
    )
