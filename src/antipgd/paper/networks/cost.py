"""What trainings cost, before they are begun: from a few images of each network."""

import time
from collections.abc import Iterable

from antipgd.paper.methods import TRAINABLE
from antipgd.paper.networks.data import DATA_SETS
from antipgd.paper.networks.extra import check_torch
from antipgd.paper.networks.spec import EQUAL_LOSSES, Training

_IMAGES, _TRIALS = 64, 3
_EFFECTIVE = 50  # products with the Hessian that effective sharpness takes, about
# Passes forward and backward that a gradient costs; that of the penalty as ResNet18 took it.
_PASSES = {"plain": 1, "sam": 2, "two_point": 2, "trace_penalty": 16}


def seconds_per_image(spec: Training) -> float:
    """Seconds that an image takes forward and backward, on one thread: the shortest of a few
    trials with noise for images; nothing is downloaded."""
    import torch

    from antipgd.paper.networks.losses import LOSSES
    from antipgd.paper.networks.machine import reproducible
    from antipgd.paper.networks.models import make_network

    channels, height, width = DATA_SETS[spec.data].shape
    side = (spec.size or height, spec.size or width)
    layout = torch.channels_last if spec.channels_last else torch.contiguous_format
    with reproducible(1):
        model = make_network(spec.model, spec.width, (channels, *side), 10, spec.seed, spec.norm)
        model = model.to(memory_format=layout)  # type: ignore[call-overload]
        images = torch.linspace(-1, 1, _IMAGES * channels * side[0] * side[1])
        images = images.reshape(_IMAGES, channels, *side).to(memory_format=layout)
        labels = torch.arange(_IMAGES) % 10
        took = []
        for _ in range(_TRIALS):
            began = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=spec.bf16):
                loss = LOSSES[spec.loss](model(images), labels)
            loss.backward()
            took.append(time.perf_counter() - began)
    return min(took) / _IMAGES


def training_seconds(specs: Iterable[Training]) -> float:
    """Seconds on one thread: a forecast, not a promise."""
    check_torch()
    per_image: dict[tuple, float] = {}
    total = 0.0
    for spec in specs:
        kind = (
            spec.data,
            spec.model,
            spec.width,
            spec.norm,
            spec.size,
            spec.channels_last,
            spec.bf16,
        )
        if kind not in per_image:
            per_image[kind] = seconds_per_image(spec)
        total += per_image[kind] * image_passes(spec)
    return total


def _images(spec: Training) -> tuple[int, int]:
    """How many it is trained on and tested on."""
    images = spec.images or DATA_SETS[spec.data].training
    if spec.validation:
        return images * 4 // 5, images // 5
    return images, DATA_SETS[spec.data].testing


def image_passes(spec: Training) -> float:
    """The cost of a training in images that go forward and backward once.

    A forward pass alone is a third of that, a product with the Hessian three of them.
    """
    images, held_out = _images(spec)
    trained = images * spec.epochs * _PASSES[TRAINABLE[spec.method].gradient]
    rows = (4 if spec.taps else 2) + bool(spec.ema)
    few = images + held_out if spec.test_images is None else 2 * spec.test_images
    seen = [images + held_out if spec.measured_fully(epoch) else few for epoch in spec.measure]
    measured = rows * (sum(seen) + len(spec.measure) * min(images, 5000)) / 3
    traces = len(spec.measure) if spec.stop_at_loss is None else 1
    traced = 3 * traces * spec.trace_images * spec.trace_probes
    places = sum(map(spec.measured_fully, spec.measure)) if spec.stop_at_loss is None else 1
    products = _EFFECTIVE if spec.loss == "squared" else len(EQUAL_LOSSES) * spec.trace_probes
    flat = 3 * places * spec.flatness_images * products
    return float(trained + measured + traced + flat)
