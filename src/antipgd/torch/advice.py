"""What is said about a noise: its summary, and a word where its σ cannot be meant.

σ far above a tensor's own size drowns its weights; relative σ gives tensors of zeros none.
"""

import logging
import warnings
from collections.abc import Mapping, Sequence
from statistics import median

from antipgd.torch.clock import Clock
from antipgd.torch.members import Member, rms

log = logging.getLogger("antipgd")


def advise(members: Sequence[Member], sigmas: Sequence[float], seed: int, relative: bool) -> None:
    """Log σ/rms and warn of what is too large, or of nothing that takes noise."""
    taking = [(m, sigma) for m, sigma in zip(members, sigmas, strict=True) if not m.frozen]
    if not taking:
        warnings.warn("no parameter takes noise: all are excluded or frozen", stacklevel=5)
        return
    sizes = [(member, sigma, rms(member.parameter)) for member, sigma in taking]
    if relative:
        _say_zeros([member.name for member, _, _ in sizes if member.scale == 0])
    ratios = {m.name: sigma / size for m, sigma, size in sizes if size > 0}
    if not ratios:
        return
    log.info(
        "noise on %d tensors, seed %d: sigma/rms from %.3g to %.3g, median %.3g",
        len(taking), seed, min(ratios.values()), max(ratios.values()), median(ratios.values()),
    )  # fmt: skip
    # A vector near zero, such as a bias after a few steps, can bear more than its size.
    vectors = {m.name for m, _, _ in sizes if m.parameter.dim() <= 1}
    _warn_drowned({n: r for n, r in ratios.items() if n not in vectors} or ratios, relative)


def _warn_drowned(ratios: Mapping[str, float], relative: bool) -> None:
    name = max(ratios, key=ratios.__getitem__)
    if ratios[name] > 1 or (relative and ratios[name] == 1):
        ways = "a smaller sigma" if relative else "a smaller sigma, relative=True"
        warnings.warn(
            f"sigma is {ratios[name]:.3g} times the root mean square of {name!r}: the noise drowns "
            f"its weights; consider {ways} or exclude=",
            stacklevel=6,
        )


def _say_zeros(names: Sequence[str]) -> None:
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
