"""When an optimizer makes a step, and whether it counts: hooks run also where none was made."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


def refuse_unheard(optimizer: object) -> None:
    """Refuse an optimizer whose steps nobody can hear of."""
    if hasattr(optimizer, "fused_backward"):
        raise TypeError(
            f"{type(optimizer).__name__} moves weights inside fused_backward() and makes no steps "
            f"that one could hear of, so there would be no noise; make an optimizer for each "
            f"parameter, which steps in register_post_accumulate_grad_hook, and give all of them"
        )


def hear_steps(optimizer: Optimizer, before: Callable, after: Callable) -> list[Any]:
    """Have these called around each step, given the optimizer; returns what takes them away.

    Of a SAM that is used as first_step() and second_step() only its `base_optimizer` steps.
    """
    unseen: Any = torch.compiler.disable  # imports torch's compiler, so not before it is needed
    hooks = [
        optimizer.register_step_pre_hook(unseen(before)),
        optimizer.register_step_post_hook(unseen(after)),
    ]
    inner = getattr(optimizer, "base_optimizer", None)
    if isinstance(inner, Optimizer) and inner is not optimizer:

        def passed_on(hook: Callable) -> Callable:
            def heard(_: Optimizer, args: Any, kwargs: Any) -> None:
                if not _steps_under_way(optimizer):
                    hook(optimizer, args, kwargs)

            return unseen(heard)

        hooks += [
            inner.register_step_pre_hook(passed_on(before)),
            inner.register_step_post_hook(passed_on(after)),
        ]
    return hooks


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


def is_captured() -> bool:
    """Whether what runs now is captured in a CUDA graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def refuse_capture() -> None:
    """Refuse to be captured in a CUDA graph."""
    if is_captured():
        raise RuntimeError(
            "noise cannot be captured in a CUDA graph: every replay would repeat one draw"
        )


def is_inner_step(optimizer: Optimizer) -> bool:
    """Whether the hooks run for a `super().step()` inside the optimizer's own step.

    torch then runs them twice, or not, depending on which classes were made before.
    """
    return _steps_under_way(optimizer) > 1


def _steps_under_way(optimizer: Optimizer) -> int:
    """How many calls of its step are under way in this thread."""
    frame, found = sys._getframe(1), 0
    here = Optimizer.profile_hook_step.__code__.co_filename
    while frame is not None:
        code = frame.f_code
        if code.co_name == "wrapper" and code.co_filename == here:
            found += frame.f_locals.get("self") is optimizer
        frame = frame.f_back  # type: ignore[assignment]
    return found
