"""What is said about a noise: its summary, and a word where its σ cannot be meant.

σ above the size of the weights drowns them; relative σ gives tensors of zeros none.
"""

import logging
import math
import warnings
from collections.abc import Sequence
from statistics import median
from typing import Any

from torch import Tensor

from antipgd.torch.clock import Clock
from antipgd.torch.members import Member, rms

log = logging.getLogger("antipgd")
Units = tuple[tuple[str, tuple[int, ...], float], ...]


class TriedSigma(float):
    """A σ that `find_sigma` tried at trained weights, absolute or relative. Those of a new network
    are smaller, so that it may exceed them: that is logged, not warned of. A relative one keeps
    its units: name, shape and root mean square of the tensors that it was tried on."""

    relative: bool
    units: Units

    def __new__(cls, value: float, relative: bool, units: Units = ()) -> "TriedSigma":
        tried = super().__new__(cls, value)
        tried.relative, tried.units = relative, units
        return tried

    def __reduce__(self) -> tuple[type, tuple]:
        return TriedSigma, (float(self), self.relative, self.units)


def take_units(members: Sequence[Member], sigma: object, relative: bool | str) -> None:
    """Let a relative σ that was found keep its units, on tensors of the same name; or place by
    place, where an optimizer that knows no names lists the very same shapes in one group.

    In units of a new network's own weights it would be another noise than the one that was tried:
    they are smaller, and biases are zero.
    """
    if relative is not True or not isinstance(sigma, TriedSigma) or not sigma.units:
        return
    named = {name: (shape, size) for name, shape, size in sigma.units}
    placed = _by_place(members, sigma.units)
    unknown = []
    for member in members:
        found = named.get(member.name) or placed.get(member.position)
        if found is not None and found[0] == tuple(member.parameter.shape):
            member.scale = found[1]
        elif not member.frozen and not member.even_frozen:
            unknown.append(member.name)
    if unknown:
        warnings.warn(
            f"relative sigma {float(sigma):.3g} was found on other tensors than {unknown[0]!r} "
            f"({len(unknown)} of {len(members)}): it is in units of their own root mean squares "
            f"now, which are smaller in a new network; find an absolute sigma, or give the "
            f"optimizer model.named_parameters()",
            stacklevel=5,
        )


def _by_place(members: Sequence[Member], units: Units) -> dict[str, tuple[tuple[int, ...], float]]:
    """Units by position; none where groups may have another order than the model."""
    alike = len(members) == len(units) and len({member.group for member in members}) == 1
    pairs = [*zip(members, units, strict=alike)]
    if not alike or any(tuple(member.parameter.shape) != shape for member, (_, shape, _) in pairs):
        return {}
    return {member.position: (shape, size) for member, (_, shape, size) in pairs}


def number_of(sigma: Any) -> Any:
    """σ, also of what `find_sigma` returns, which may be given as it is."""
    found = getattr(sigma, "sigma", None)
    return found if isinstance(found, TriedSigma) else sigma


def check_tried(sigma: object, relative: bool | str) -> None:
    """Refuse a σ that was found in units other than those it is used in."""
    if isinstance(sigma, TriedSigma) and sigma.relative != bool(relative):
        raise ValueError(
            f"sigma {float(sigma):.3g} was found with relative={sigma.relative}; "
            f"got relative={relative}"
        )


def was_tried(sigma: object, relative: bool | str, layers: str) -> bool:
    """Whether `find_sigma` tried this very noise: not by filter or element, on all layers."""
    return isinstance(sigma, TriedSigma) and isinstance(relative, bool) and layers == "all"


def advise(
    members: Sequence[Member], sigmas: Sequence[float], seed: int, relative: bool | str, tried: bool
) -> None:
    """Log σ/rms and warn of what is too large and was not tried, or of nothing that takes noise."""
    taking = [(m, sigma) for m, sigma in zip(members, sigmas, strict=True) if not m.frozen]
    if not taking:
        warnings.warn("no parameter takes noise: all are excluded or frozen", stacklevel=5)
        return
    sizes = [(member, sigma, rms(member.parameter)) for member, sigma in taking]
    if relative:
        say_zeros([member.name for member, _, _ in sizes if member.scale == 0])
    ratios = [sigma / size for _, sigma, size in sizes if size > 0]
    if not ratios:
        return
    log.info(
        "noise on %d tensors, seed %d: sigma/rms from %.3g to %.3g, median %.3g",
        len(taking), seed, min(ratios), max(ratios), median(ratios),
    )  # fmt: skip
    drowning = drowned([(m.name, m.parameter, sigma) for m, sigma in taking], relative)
    if drowning and tried:
        log.info("%s. It was found at trained weights, which are larger", drowning)
    elif drowning:
        warnings.warn(drowning, stacklevel=5)


def drowned(noisy: Sequence[tuple[str, Tensor, float]], relative: bool | str) -> str | None:
    """Why noise of these σ is too large for these tensors, if it is: as large as they are, in all.

    All together, because some tensors bear more than their size and `find_sigma` knows it. Matrices
    only, unless there are none: a bias near zero can bear more than its size, and the scales of
    normalisation layers, all ones, would hide how small the others are.
    """
    matrices = [one for one in noisy if one[1].dim() > 1] or noisy
    parts = [(name, sigma, rms(tensor), tensor.numel()) for name, tensor, sigma in matrices]
    noise = sum(sigma**2 * count for _, sigma, _, count in parts)
    weights = sum(size**2 * count for _, _, size, count in parts)
    if not 0 < weights <= noise * (1 + 1e-6):
        return None
    name, worst = max(((name, sigma / size) for name, sigma, size, _ in parts if size > 0),
                      key=lambda pair: pair[1])  # fmt: skip
    ways = "a smaller sigma" if relative else "a smaller sigma, relative=True"
    return (
        f"sigma is {math.sqrt(noise / weights):.3g} times the root mean square of what it is added "
        f"to, {worst:.3g} times that of {name!r}: the noise drowns its weights; consider {ways} or "
        "exclude="
    )


def say_zeros(names: Sequence[str]) -> None:
    """Name tensors that relative σ gives no noise."""
    if names:
        log.warning(
            "relative sigma: no noise on tensors of zeros until rescale(): %s", ", ".join(names)
        )


def described(
    title: str,
    members: Sequence[Member],
    sigmas: Sequence[float],
    left_out: Sequence[str],
    clock: Clock,
) -> str:
    """Every tensor with the σ of its next draw, what takes none, and the clock."""
    frozen = [member.name for member in members if member.frozen]
    lines = [
        title,
        *(
            f"  {m.name} {tuple(m.parameter.shape)}: sigma {sigma:.3g}"
            for m, sigma in zip(members, sigmas, strict=True)
            if not m.frozen
        ),
        f"  excluded: {', '.join(left_out) or 'none'}",
        *([f"  frozen: {', '.join(frozen)}"] if frozen else []),
        f"  {clock.line()}",
        "  0 bytes per parameter",
    ]
    return "\n".join(lines)
