"""How long an image takes to go forward and backward through a network, on one thread."""

import time

import torch
from torch.nn.functional import cross_entropy

from antipgd.paper.networks import make_network
from antipgd.paper.run.machine import reproducible
from antipgd.paper.training import Training

_IMAGES, _TRIALS = 64, 3
_SHAPES = {"digits": (1, 8, 8), "cifar10": (3, 32, 32)}


def seconds_per_image(spec: Training) -> float:
    """The shortest of a few trials with noise for images; nothing is downloaded."""
    channels, height, width = _SHAPES[spec.data]
    side = (spec.size or height, spec.size or width)
    layout = torch.channels_last if spec.channels_last else torch.contiguous_format
    with reproducible(1):
        model = make_network(spec.model, spec.width, (channels, *side), 10, spec.seed)
        model = model.to(memory_format=layout)  # type: ignore[call-overload]
        images = torch.linspace(-1, 1, _IMAGES * channels * side[0] * side[1])
        images = images.reshape(_IMAGES, channels, *side).to(memory_format=layout)
        labels = torch.arange(_IMAGES) % 10
        took = []
        for _ in range(_TRIALS):
            began = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=spec.bf16):
                loss = cross_entropy(model(images), labels)
            loss.backward()
            took.append(time.perf_counter() - began)
    return min(took) / _IMAGES
