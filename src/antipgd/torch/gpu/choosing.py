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
        _say_slower(error)
        return None
    return found


def _say_slower(why: object) -> None:
    log.warning("the noise on a GPU comes from plain torch, slower and with the same bits: %s", why)


@cache
def _runs_on(device: torch.device, law: Law) -> bool:
    """Whether the kernel can be compiled and launched there: tried once, on one element.

    Triton without a C compiler, or on a GPU older than it knows, is there and fails.
    """
    try:
        launching().check_device(device)
        launching().try_on(device, law)
    except Exception as error:  # whatever a compiler, a driver or a linker raises
        _say_slower(f"the kernel does not run on {device}: {type(error).__name__}: {error}")
        return False
    return True


def draws_on(device: torch.device, law: Law) -> Any:
    """The module that launches the kernel on this device, or None where plain torch draws.

    Plain torch has the laws that the kernel lacks, and AMD's GPUs, where nobody tried it.
    """
    if device.type not in DEVICES or torch.version.hip is not None:
        return None
    found = launching()
    if found is None or law.name not in found.LAWS:
        return None
    return found if _runs_on(device, law) else None


def chosen(tensor: Tensor, law: Law) -> Any:
    """As `draws_on`, for a tensor: plain torch has those whose elements share memory."""
    if tensor.device.type not in DEVICES:  # soonest, as it is asked for every tensor on CPUs
        return None
    fits = tensor.dtype in TYPES and tensor.layout == torch.strided
    if not fits or not each_element_once(tensor.shape, tensor.stride()):
        return None
    return draws_on(tensor.device, law)
