"""Calls of modules as Python's own frames tell of them: which is under way, and whose a hook is."""

import sys
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn import Module
from torch.nn.utils import parametrize

from antipgd.torch.forward.formed import Formed

FAR_ENOUGH = 8  # frames between a module's call and its hook, where a compiler stands between
_CALL = Module._call_impl.__code__


class Call:
    """A module's call that is under way."""

    __slots__ = ("formed", "frame", "module", "recipes", "swapped")

    def __init__(self, frame: Any, module: Module) -> None:
        self.frame, self.module = frame, module
        self.formed: dict[tuple[int, bool], Formed] = {}
        self.swapped: dict[str, Any] = {}  # attributes as they were
        self.recipes: AbstractContextManager | None = None


def forget_parametrized() -> None:
    """Let nobody inside torch's parametrize.cached() read what is of another pass, or of none."""
    if parametrize._cache_enabled:
        parametrize._cache.clear()


def in_backward() -> bool:
    """Whether autograd runs a backward pass in this thread."""
    return torch._C._current_graph_task_id() != -1


def may_be_recomputed() -> bool:
    """Whether autograd may ask for this pass again.

    Not where it records nothing, except that reentrant checkpoints first compute that way.
    """
    if torch.is_grad_enabled():
        return True
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "forward" and code.co_varnames[:1] == ("ctx",):
            return True
        frame = frame.f_back
    return False


def in_a_call() -> bool:
    """Whether a module's call is under way in this thread."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if "_call_impl" in frame.f_code.co_name:
            return True
        frame = frame.f_back
    return False


def is_running(frame: Any) -> bool:
    """Whether a frame is still executing."""
    try:
        frame.clear()  # which a frame that is executing refuses
    except RuntimeError:
        return True
    return False


def is_within(frame: Any, outer: Any) -> bool:
    """Whether a hook's frame belongs to this call of a module."""
    for _ in range(FAR_ENOUGH):
        if frame is outer:
            return True
        if frame is None or frame.f_code is _CALL:  # of another call, inside this one
            return False
        frame = frame.f_back
    return False
