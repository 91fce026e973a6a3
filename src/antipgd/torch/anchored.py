"""Optimizers under which the noise in the weights would not come out again.

Anti-PGD in its w-form needs that a step moves w by something that does not know w − z. One that
pulls weights to an average or an anchor (schedule-free, Lookahead) averages the draws as well:
w − ξ is clean no more, with no sign of it. A container of optimizers takes hooks, but its noise
is not in what it saves. Both are refused here, with the form in which they are right.
"""

import inspect
import logging
import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from antipgd.torch.standing_in import StandIn, UnprobedError

log = logging.getLogger("antipgd")

STEPS = 14  # an interval of Lookahead is 5 or 6 mostly
SIGMA = 0.01
LIMIT = 5e-3
"""In σ. Ordinary optimizers deviate by rounding, up to 8e-6, or by a decay of their own, up to
2e-4; those that average by .02 and more."""

BY_NAME = ("Lookahead", "Prodigy", "DAdapt", "ScheduleFree")
"""Beginnings of class names: a long interval, or a distance from the start that only gradients
bring in, is not seen by the probe."""

PERTURB = "antipgd.torch.perturb(model, optimizer, sigma=…)"

_MOVES = ("step", "_init_group", "state_dict", "load_state_dict")
_PLAIN = tuple(
    kind
    for kind in vars(torch.optim).values()
    if inspect.isclass(kind) and issubclass(kind, Optimizer) and kind is not Optimizer
)


def refuse_unfit(optimizer: Any, target: Any) -> None:
    """Refuse what noise on `target`, which `optimizer` is or wraps, would be wrong for."""
    if _is_plain(optimizer):
        return
    label = type(optimizer).__name__
    for name, held in _attributes(optimizer).items():
        if _is_container(held):
            raise ValueError(
                f"{label} holds several optimizers in {name!r}: noise on it would not be in what "
                f"it saves; use {PERTURB}, whose weights are always clean"
            )
    found = next((word for word in _names(optimizer) if word.startswith(BY_NAME)), None)
    if found is None and not _is_accelerates(optimizer):
        found = _probed(optimizer, target)
    if found:
        raise ValueError(
            f"{found} moves weights towards an average or an anchor, so the noise would stay in "
            f"them; use {PERTURB}, whose weights are always clean"
        )


def _is_plain(optimizer: Any) -> bool:
    """Whether it steps and saves as a class of torch.optim does, none of which averages."""
    kind = type(optimizer)
    bases = [base for base in _PLAIN if issubclass(kind, base)]
    return any(all(_method(kind, m) is _method(base, m) for m in _MOVES) for base in bases)


def _method(kind: type, name: str) -> object:
    return inspect.unwrap(getattr(kind, name, None))  # type: ignore[arg-type]


def _attributes(optimizer: object) -> dict[str, Any]:
    return getattr(optimizer, "__dict__", {})


def _is_container(held: object) -> bool:
    rows = list(held.values()) if isinstance(held, dict) else held
    return isinstance(rows, list | tuple) and any(isinstance(row, Optimizer) for row in rows)


def _names(optimizer: Any) -> Iterator[str]:
    """Class names of an optimizer, of its bases, and of those that it wraps."""
    yield from (kind.__name__ for kind in type(optimizer).__mro__)
    for held in _attributes(optimizer).values():
        if isinstance(held, Optimizer) and held is not optimizer:
            yield from _names(held)


def _is_accelerates(optimizer: object) -> bool:
    """Its wrapper only decides when to step, by a state of the process that cannot be copied."""
    return type(optimizer).__module__.startswith("accelerate.")


def _probed(optimizer: Any, target: Any) -> str | None:
    """The name of an optimizer that the probe finds to average; refuses one that would not save."""
    label = type(optimizer).__name__
    try:
        found = deviation(optimizer)
        saves = _saves(optimizer, target)
    except Exception as error:  # of any optimizer's own code
        log.info(
            "attach could not try whether %s moves weights towards an average: %s: %s; where it "
            "does, use %s", label, type(error).__name__, error, PERTURB,
        )  # fmt: skip
        return None
    if not saves:
        raise ValueError(
            f"{label} does not save what {type(target).__name__} saves, so the noise would be "
            f"lost with a checkpoint; use {PERTURB}, whose weights are always clean"
        )
    return label if found > LIMIT else None


def deviation(optimizer: Any) -> float:
    """How far noise between the steps moves the clean weights, rms in σ; gradients are zero."""
    error: Exception = UnprobedError("it gives weights that are not finite")
    for keeps_state, closure in product((False, True), (None, _no_loss)):
        try:
            found = _deviation(optimizer, keeps_state, closure)
        except Exception as refusal:  # state that the class makes at once; a closure that it needs
            error = refusal
            continue
        if math.isfinite(found):
            return found
    raise error


def _no_loss() -> Tensor:
    return torch.zeros(())


def _deviation(optimizer: Any, keeps_state: bool, closure: Any) -> float:
    plain, noisy = (_stepped(optimizer, keeps_state, closure, sigma) for sigma in (0.0, SIGMA))
    squares = [((a - b) / SIGMA).square().mean() for a, b in zip(plain, noisy, strict=True)]
    return float(torch.stack(squares).mean().sqrt())


def _stepped(optimizer: Any, keeps_state: bool, closure: Any, sigma: float) -> list[Tensor]:
    """z = w − ξ after all steps."""
    copied = StandIn(optimizer, keeps_state)
    draws = torch.Generator("cpu").manual_seed(1)
    xi = [torch.zeros_like(parameter.data) for parameter in copied.parameters]
    with copied.alone():
        _set_training(copied.optimizer)
        for _ in range(STEPS):
            copied.step(closure)
            for parameter, tensor in zip(copied.parameters, xi, strict=True):
                new = sigma * torch.randn(tensor.shape, generator=draws, device="cpu")
                parameter.data.add_(new - tensor)
                tensor.copy_(new)
    pairs = zip(copied.parameters, xi, strict=True)
    return [p.data.cpu().double() - x.cpu().double() for p, x in pairs]  # MPS has no float64


def _set_training(optimizer: Any) -> None:
    """Schedule-free optimizers step in training mode only."""
    for part in (optimizer, *_attributes(optimizer).values()):
        train = getattr(part, "train", None)
        if isinstance(part, Optimizer) and callable(train):
            train()


def _saves(optimizer: Any, target: Any) -> bool:
    """Whether the state of `optimizer` has in it what hooks put into that of `target`."""
    copied = StandIn(optimizer, keeps_state=True)
    word = "noise of a stand-in"

    def write(_: Any, state: dict) -> None:
        state["param_groups"][0]["antipgd"] = word

    with copied.alone():
        copied.of(target).register_state_dict_post_hook(write)
        return word in _texts(copied.optimizer.state_dict())


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
