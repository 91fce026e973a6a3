"""w as an operator that torch.compile does not look into: a draw is no reason for a graph break.

What changes from step to step comes as tensors, so that a step is no reason to compile anew.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from antipgd.noise import as_law
from antipgd.torch.forward.forming import Former, as_draw


@cache
def _former(law: str) -> Former:
    return Former(as_law(law))


compiled_reads: set[int] = set()
"""The keys of parameters whose w a compiled pass has read."""


def _perturbed(z: Tensor, seat: Tensor, newest: Tensor, table: Tensor, law: str) -> Tensor:
    """w of the parameter that `seat` tells: its key, and its row in the table of coefficients."""
    key, row = seat.tolist()
    compiled_reads.add(key % 2**64)
    draw = as_draw(key % 2**64, int(newest), table[row].tolist())
    return _former(law).form(z, draw)


def _shape_of(z: Tensor, seat: Tensor, newest: Tensor, table: Tensor, law: str) -> Tensor:
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
