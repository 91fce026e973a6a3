"""What a training accepts: words, and numbers that fit each other. A refusal names the value.

Knows the names of things, and none of the things themselves.
"""

import math
from collections.abc import Iterable
from typing import Any

from antipgd.checks import one_of, whole
from antipgd.noise.injection import check_sigma
from antipgd.noise.taps import ANTI, Taps, as_taps, telescopes
from antipgd.paper.methods import TRAINABLE
from antipgd.paper.networks.data import DATA_SETS

WIDTHS = {"resnet18": 64, "cnn": 16, "lenet": 16, "mlp": 64}  # by default
LOSSES = ("cross_entropy", "squared")
AUGMENTATIONS = ("none", "flip", "flip_crop")
DRAWN = ("two_point", "trace_penalty")  # gradients that take draws of their own
FORMS = ("weights", "forward")
NORMS = ("batch", "group", "none")
OPTIMIZERS = ("sgd", "adamw")
NOISY = ("all", "no_norms")
LEAST_PROBES = 32  # as `antipgd.flatness` has it: the spread of fewer is no error bar


def loss_at_zero(loss: str, classes: int) -> float:
    """L(0): the loss of outputs that are all zero, of whatever label."""
    if loss == "squared":
        return 0.5
    return math.log(classes)


def maybe(name: str, value: Any, least: int) -> int | None:
    """A whole number, or None as it is."""
    return None if value is None else whole(name, value, least)


def check_images(data: str, images: int | None, batch: int, micro: int | None) -> None:
    """Refuse more images than there are, and batches that do not fit them or their parts."""
    available = DATA_SETS[data].training
    if images is not None and images > available:
        raise ValueError(f"{data} has {available} training images; got images={images}")
    if batch > (images or available):
        raise ValueError(
            f"batch must not exceed the {images or available} training images; got batch={batch}"
        )
    if micro is not None and batch % micro:
        raise ValueError(f"micro must divide batch={batch}; got micro={micro}")


def norm_of(model: str, norm: str) -> str:
    """One spelling for a model that has no such layers: the default."""
    one_of("norm", norm, NORMS)
    if model != "mlp":
        return norm
    if norm == "group":
        raise ValueError("an mlp has no norms: norm must be none, or left out; got 'group'")
    return "batch"


def check_window(epochs: int, start: int, stop: int | None) -> None:
    """Refuse noise that ends before it begins, or after the training."""
    if not start < (epochs if stop is None else stop) <= epochs:
        raise ValueError(
            f"the noise needs 0 <= noise_start < noise_stop <= epochs={epochs}; "
            f"got noise_start={start}, noise_stop={stop}"
        )


def checked_measure(measure: Iterable[int], epochs: int) -> set[int]:
    """The epochs that are to be measured, all of them of the training."""
    measured = {whole("a measured epoch", epoch, 0) for epoch in measure}
    if any(epoch > epochs for epoch in measured):
        raise ValueError(f"measured epochs must lie between 0 and {epochs}; got {max(measured)}")
    return measured


def checked_trace(images: int, probes: int) -> tuple[int, int]:
    """Images and probes of a trace: both or none, and enough for an error bar."""
    images, probes = whole("trace_images", images, 0), whole("trace_probes", probes, 0)
    if bool(images) != bool(probes):
        raise ValueError(
            f"a trace needs both trace_images and trace_probes; got {images} and {probes}"
        )
    if 0 < probes < LEAST_PROBES:
        raise ValueError(f"trace_probes must be 0 or at least {LEAST_PROBES}; got {probes}")
    return images, probes


def checked_flatness(images: int, probes: int) -> int:
    """Images for flatness at minima, which needs probes as other traces do."""
    if whole("flatness_images", images, 0) and not probes:
        raise ValueError(f"flatness_images={images} needs trace_probes; got {probes}")
    return images


def checked_held_out(data: str, images: int | None, held_out: int, validation: bool) -> int:
    """Images of the training set to test on: beside those trained on, or a part of them."""
    left = DATA_SETS[data].training - (images or DATA_SETS[data].training)
    if whole("held_out", held_out, 0) > left:
        raise ValueError(
            f"{data} has {left} training images beside images={images}; got held_out={held_out}"
        )
    if held_out and validation:
        raise ValueError("the images for testing are either held_out or validation; got both")
    return held_out


def strength_of(method: str, sigma: float) -> float:
    """σ of a method that has one; for `label` a probability."""
    if not TRAINABLE[method].has_sigma:
        return 0.0
    if check_sigma(sigma) == 0:
        raise ValueError(f"method {method!r} needs sigma > 0; got {sigma!r}")
    if method == "label" and sigma > 1:
        raise ValueError(f"sigma is a probability for method 'label'; got {sigma!r}")
    return float(sigma)


def colour_of(method: str, taps: Iterable[float] | None) -> Taps:
    """The taps of method `noise` where they are not the usual ones; no other takes any."""
    if taps is None:
        return ()
    if method != "noise":
        raise ValueError(f"taps are for method 'noise'; got taps={taps!r} for {method!r}")
    given = as_taps(taps)
    return () if given == ANTI else given


def form_of(form: str, taps: Taps) -> str:
    """The form of noise with these taps; one spelling where there is none."""
    one_of("form", form, FORMS)
    if form == "forward" and taps and not telescopes(taps):
        raise ValueError(
            f"form 'forward' needs taps that sum to zero, else the weights would carry noise; "
            f"got taps={taps}"
        )
    return form if taps else "weights"


def turns(epochs: int, noise_start: int, noise_stop: int | None, extends: int = 0) -> set[int]:
    """The epochs that are always measured: where the noise begins and ends, and the last, also
    that of a training that is extended."""
    return {epoch for epoch in (noise_start, noise_stop, extends, epochs) if epoch}
