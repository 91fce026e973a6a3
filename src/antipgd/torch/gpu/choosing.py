"""Who draws on a GPU: the Triton kernel where it can, plain torch elsewhere. Same bits."""

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor

from antipgd.noise.laws import Law
from antipgd.noise.placement import each_element_once

log = logging.getLogger("antipgd")
DEVICES = ("cuda",)
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@cache
def launching() -> Any:
    """The module that launches the kernels, or None without triton, which is optional."""
    try:
        from antipgd.torch.gpu import launching as found
    except ImportError as error:  # not there, or none for this system
        log.warning(
            "the noise on a GPU comes from plain torch, slower and with the same bits: %s", error
        )
        return None
    return found


def draws_on(device: torch.device, law: Law) -> Any:
    """The module that launches the kernel on this device, or None where plain torch draws.

    Plain torch has the laws that the kernel lacks, and AMD's GPUs, where nobody tried it.
    """
    if device.type not in DEVICES or torch.version.hip is not None:
        return None
    found = launching()
    return found if found is not None and law.name in found.LAWS else None


def chosen(tensor: Tensor, law: Law) -> Any:
    """As `draws_on`, for a tensor: plain torch has those whose elements share memory."""
    if tensor.device.type not in DEVICES:  # soonest, as it is asked for every tensor on CPUs
        return None
    fits = tensor.dtype in TYPES and tensor.layout == torch.strided
    if not fits or not each_element_once(tensor.shape, tensor.stride()):
        return None
    return draws_on(tensor.device, law)
