"""Whether a step of the optimizer counts: torch runs its hooks also where none was made."""

import sys

import torch
from torch.optim import Optimizer


def rests(optimizer: Optimizer) -> bool:
    """Whether every learning rate is 0; a group that has none is taken to move its weights."""
    return all(_rate(group) == 0 for group in optimizer.param_groups)


def _rate(group: dict) -> float | None:
    rate = group.get("lr")
    return None if rate is None else float(rate)


def has_stepped(optimizer: Optimizer) -> bool:
    """Whether the optimizer's state says so; one that keeps none never does."""
    entries = [entry for entry in optimizer.state.values() if isinstance(entry, dict)]
    tensors = [v for entry in entries for v in entry.values() if isinstance(v, torch.Tensor)]
    return any(bool(getattr(t, "_local_tensor", t).detach().any()) for t in tensors)


def was_skipped(optimizer: Optimizer) -> bool:
    """Whether GradScaler let a fused step do nothing."""
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and float(found_inf) > 0


def refuse_capture() -> None:
    """Refuse to be captured in a CUDA graph."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "noise cannot be captured in a CUDA graph: every replay would repeat one draw"
        )


def is_inner_step(optimizer: Optimizer) -> bool:
    """Whether the hooks run for a `super().step()` inside the optimizer's own step.

    torch then runs them twice, or not, depending on which classes were made before.
    """
    frame, found = sys._getframe(1), 0
    here = Optimizer.profile_hook_step.__code__.co_filename
    while frame is not None:
        code = frame.f_code
        if code.co_name == "wrapper" and code.co_filename == here:
            found += frame.f_locals.get("self") is optimizer
        frame = frame.f_back  # type: ignore[assignment]
    return found > 1
