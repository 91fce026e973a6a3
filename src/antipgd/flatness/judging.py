"""What a network is judged by: the answers that it gets wrong, or its loss.

A loss that calls one of torch's losses of classification says by itself which answers are wrong:
its inputs are the scores of the classes, its targets the right ones. They are read off that call,
so that nobody has to write the count a second time. Knows no noise.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from antipgd.flatness.objective import Loss

# (scores, targets) → 1 for each answer that is wrong. Of k classes that tie one is taken by chance:
# zero weights give equal scores, and which class comes first must not matter.
Wrong = Callable[..., Tensor]


def _argmax(scores: Tensor, targets: Tensor, **options: Any) -> Tensor:
    """Of scores by class, the second axis where there are several; `ignore_index` is no class."""
    axis = min(1, scores.dim() - 1)
    if targets.is_floating_point():  # probabilities of the classes
        targets = targets.argmax(axis)
    counted = targets != options.get("ignore_index", -100)
    first = scores == scores.amax(axis, keepdim=True)
    own = targets.long().masked_fill(~counted, 0).unsqueeze(axis)
    return (1 - first.gather(axis, own).squeeze(axis) / first.sum(axis))[counted]


def _above(scores: Tensor, targets: Tensor, threshold: float) -> Tensor:
    wrong = (scores > threshold) != (targets > 0.5)
    return torch.where(scores == threshold, 0.5, wrong.float())


def _sign(scores: Tensor, targets: Tensor, **options: Any) -> Tensor:
    return _above(scores, targets, 0.0)


def _half(scores: Tensor, targets: Tensor, **options: Any) -> Tensor:
    return _above(scores, targets, 0.5)


CLASSIFIES: dict[Any, Wrong] = {
    functional.cross_entropy: _argmax,
    functional.nll_loss: _argmax,
    functional.binary_cross_entropy_with_logits: _sign,
    functional.binary_cross_entropy: _half,
}
_IGNORED = 4  # where ignore_index stands in a call without names: (scores, targets, weight, …)


def _reduction(func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """How the losses of the answers are put together."""
    place = 6 if CLASSIFIES[func] is _argmax else 5
    return args[place] if len(args) > place else named.get("reduction", "mean")


class _Answers(TorchFunctionMode):
    """Counts answers, right and wrong, wherever a loss of classification is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong, self.all, self.single = 0.0, 0, False

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if func in CLASSIFIES:
            self._count(CLASSIFIES[func], args, named)
            self.single |= _reduction(func, args, named) == "none"
        return func(*args, **named)

    def _count(self, wrong: Wrong, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        given = dict(zip(("input", "target"), args, strict=False)) | named
        if len(args) > _IGNORED:
            given["ignore_index"] = args[_IGNORED]
        scores, targets = given.pop("input"), given.pop("target")
        try:
            answers = wrong(scores.detach(), targets.detach(), **given)
            count = float(answers.sum(dtype=torch.float64))
        except RuntimeError:  # under vmap nothing can be counted; the loss tells other faults
            return
        self.wrong, self.all = self.wrong + count, self.all + answers.numel()


def _uncompiled() -> AbstractContextManager[Any]:
    """Compiled losses as they are written: the compiler has no room for what counts along."""
    used = "torch._dynamo" in sys.modules  # an import of seconds, which a compiled loss has made
    return torch.compiler.set_stance("force_eager") if used else nullcontext()


class Errors:
    """The share of answers that are wrong, as a function of a batch; `seen` if there were any.

    `single` if the loss was given one by one, so that it may leave out answers that count here.
    """

    def __init__(self, loss: Loss) -> None:
        self._loss, self.seen, self.single = loss, False, False

    def __call__(self, *batch: Any) -> Tensor:
        """Nothing to differentiate. Not a number where the loss is not: no answer at all."""
        with torch.no_grad(), _uncompiled(), _Answers() as answers:
            value = self._loss(*batch)
        self.seen |= answers.all > 0
        self.single |= answers.single
        share = answers.wrong / answers.all if answers.all else 0.0
        return torch.as_tensor(share, dtype=torch.float64) + 0 * value.detach().double().cpu()
