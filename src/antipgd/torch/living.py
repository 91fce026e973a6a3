"""All the noise of this process: who has it, and what is left of noise whose optimizer is gone."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor
from torch.optim import Optimizer

from antipgd.torch.handle import Noise, live
from antipgd.torch.members import Member


def attached_noises() -> list[tuple[Noise, list[Optimizer]]]:
    """All noise of this process whose optimizers are still there, and stay while this is held."""
    found = [(noise, noise.together.if_there) for noise in live if noise.attached]
    return [(noise, optimizers) for noise, optimizers in found if optimizers is not None]


def noise_of(optimizer: Optimizer) -> Noise | None:
    """The noise that acts on an optimizer, None where none does.

    For callbacks, which a host may call again with what has noise already. A wrapper, such as
    Accelerate's, is asked about its inner optimizer.
    """
    inner = getattr(optimizer, "optimizer", optimizer)
    found = [noise for noise, each in attached_noises() if any(o is inner for o in each)]
    return found[0] if found else None


@contextmanager
def without_noise_in_passes(tensors: Iterable[Tensor]) -> Iterator[None]:
    """A block in which models that have any of these parameters read all of theirs as they are.

    Also where the noise is on others of them: what is behind the noise would differ with its draw.
    """
    given = {id(tensor) for tensor in tensors}
    with ExitStack() as stack:
        for noise in list(live):
            acts = noise.attached and noise.form == "forward"
            if acts and noise.model is not None and given & set(map(id, noise.model.parameters())):
                stack.enter_context(noise.off())
        yield


def stop_abandoned() -> None:
    """End noise in passes whose optimizers are gone: nothing could change its draw any more."""
    for noise in list(live):
        if noise.attached and noise.form == "forward" and noise.together.are_gone:
            noise.stop()


def carried_by_abandoned() -> list[Member]:
    """Parameters that carry draws of a noise in the weights which is there without optimizer."""
    left = [n for n in live if n.attached and n.form == "weights" and n.together.are_gone]
    return [m for noise in left if noise.removable for m in noise.members if any(m.sigmas)]
