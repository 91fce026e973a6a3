"""What a copy or a pickle of a noise's handle is: its settings, and nothing that acts.

The noise itself travels with the optimizer: in its state_dict, and in a copy of it.
"""

from dataclasses import dataclass

from antipgd.noise.taps import Taps


@dataclass(frozen=True)
class DetachedNoise:
    """The settings and the progress that a copied handle had."""

    law: str
    taps: Taps
    seed: int
    sigma: float
    relative: bool | str
    namespace: str
    step_count: int
    clock: float
    attached: bool = False

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"{name}: this is a copy of a noise's handle, which acts on no optimizer; attach(…) to "
            f"the copied optimizer goes on where the original was"
        )
