"""w as an operator that torch.compile does not look into: a draw is no reason for a graph break.

What changes from step to step comes as tensors, so that a step is no reason to compile anew.
"""

import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antipgd.noise import as_law
from antipgd.torch.forward.forming import Draw, Former, as_draw
from antipgd.torch.gpu.choosing import chosen
from antipgd.torch.gpu.tables import Place


@cache
def former_of(law: str) -> Former:
    """Who makes w of a law, compiled or not; he lasts, because captured graphs read his plans."""
    return Former(as_law(law))


compiled_reads: set[int] = set()
"""The keys (of their draws number 0) of parameters whose w a compiled pass has read."""
watchers: weakref.WeakSet = weakref.WeakSet()
"""Who asks for them, as long as `is_watching`."""


def _perturbed(z: Tensor, facts: Tensor, newest: Tensor, table: Tensor, law: str) -> Tensor:
    """w of the parameter of which `facts` has the key, and the row in the table of coefficients."""
    former = former_of(law)
    note_read(facts)
    if chosen(z, former.law) is not None and table.device == z.device:
        return former.form(z, Draw(_NOBODY, 0, _NOTHING, Place(facts, newest, table)))
    (key, row), *_ = facts.tolist()
    draw = as_draw(key % 2**64, int(newest), table[row].tolist())
    return former.form(z, draw)


_NOBODY, _NOTHING = np.zeros(1, np.uint64), np.zeros((1, 0))  # what a kernel reads by itself
_keys: dict[int, int] = {}  # of the parameters, by where in a device's memory their facts are


def know_read(facts: Tensor, key: int) -> None:
    """Who reads these facts reads the parameter of this key."""
    _keys[facts.data_ptr()] = key


def note_read(facts: Tensor) -> None:
    """Tell who has been read, as long as somebody asks; no device is waited for."""
    key = _keys.get(facts.data_ptr())
    if key is not None and any(audit.is_watching for audit in watchers):
        compiled_reads.add(key)


def _shape_of(z: Tensor, facts: Tensor, newest: Tensor, table: Tensor, law: str) -> Tensor:
    return torch.empty_like(z)


def _gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return gradient, None, None, None, None


@cache
def operator() -> Any:
    """The operator antipgd::perturbed, defined with its first use."""
    made = torch.library.custom_op("antipgd::perturbed", _perturbed, mutates_args=())
    made.register_fake(_shape_of)
    made.register_autograd(_gradient)
    return torch.ops.antipgd.perturbed.default


def leave_alone(function: Callable) -> None:
    """Let torch.compile run this as it is where a graph breaks, and trace it only inside a graph.

    So a pass that Python has opened is closed by Python. Where torch lacks this, such functions
    are compiled by themselves, which is slower and as right.
    """
    try:
        from torch._C._dynamo import eval_frame

        skip = eval_frame._FrameExecStrategy(
            eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP
        )
        eval_frame.set_code_exec_strategy(function.__code__, skip)
    except (ImportError, AttributeError):
        return
