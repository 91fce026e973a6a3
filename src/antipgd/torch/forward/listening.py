"""Whether the optimizers that a noise listens to are those that train the model.

Libraries make optimizers and models anew (skorch's `fit` does both). Then the noise would stand
still: no draw would change any more, or no pass would read one. Nor does any where nobody has
called `model.train()`. Knows passes and steps, not draws.
"""

import logging
import warnings
import weakref
from collections.abc import Callable, Sequence

import torch
from torch.optim import Optimizer

from antipgd.torch.forward.passes import Seat

UNHEARD = 20
"""Changes of the weights between passes, one after the other, that come from no step we hear of."""

UNREAD = 20
"""Steps, one after the other, with gradients of passes in eval mode alone."""

log = logging.getLogger("antipgd")


class Listening:
    """Steps that were heard, beside changes of the weights."""

    def __init__(self) -> None:
        self._heard: list[bool] = []  # [True] once a step was, ever; outlives the noise
        self._since = False  # a step since the last pass began
        self._inside = False  # of a step, whose closures make passes
        self._version: int | None = None
        self._unheard = 0
        self._unread = 0

    def of(self, optimizer: Optimizer) -> Callable[[], None]:
        """Say so if this optimizer is deleted before it has made a step; returns what ends it."""
        end = weakref.finalize(optimizer, _say_unused, self._heard)
        end.atexit = False

        def leave() -> None:
            end.detach()

        return leave

    def has_stepped(self) -> None:
        """Steps were made, here or before a checkpoint, after which there may be none to make."""
        if not self._heard:
            self._heard.append(True)

    def step_begins(self) -> None:
        """An optimizer of ours steps."""
        self.has_stepped()
        self._since = self._inside = True

    def step_ends(self) -> None:
        """It has done so."""
        self._inside = False

    def pass_begins(self, seats: Sequence[Seat]) -> None:
        """Warn, once, if the weights have changed again and again and nobody we hear has stepped.

        Not of FSDP2's, whose parameters are gathered: their own version does not say. Nor of passes
        without gradients, which train nothing: who looks along a line between two weights, say.
        """
        if not seats or seats[0].gathered or self._unheard > UNHEARD:
            return
        version = seats[0].parameter._version
        changed, self._version = version != self._version and self._version is not None, version
        if self._since or self._inside:
            self._unheard = 0
        elif changed and torch.is_grad_enabled():
            self._unheard += 1
        self._since = False
        if self._unheard == UNHEARD:
            self._unheard += 1
            warnings.warn(
                f"the weights have changed {UNHEARD} times between passes, but the optimizer that "
                f"this noise was given has made no step: its draw stands still. Was the optimizer "
                f"made anew after perturb? stop() the noise and perturb with the new one",
                stacklevel=2,
            )

    def counted(self, step: int, noisy: bool, trained: bool, evaluated: bool) -> None:
        """Warn, once, if step after step no pass has read the noise that there is (`noisy`).

        Only where passes in eval mode were seen instead: of those that a CUDA graph replays nobody
        hears.
        """
        if self._unread > UNREAD:
            return
        self._unread = self._unread + 1 if noisy and evaluated and not trained else 0
        if self._unread == UNREAD:
            self._unread += 1
            warnings.warn(
                f"no pass in training mode since step {step - UNREAD}: those of the last {UNREAD} "
                f"steps were in eval mode, where weights are read without noise; call "
                f"model.train() before the loop's passes",
                stacklevel=2,
            )


def _say_unused(heard: list[bool]) -> None:
    if not heard:
        log.warning(
            "the optimizer of this noise is gone and has made no step with it: were model or "
            "optimizer made anew after perturb? perturb those that are trained"
        )
