"""What a noise is, apart from who takes it. Knows neither optimizers nor tensors."""

from dataclasses import dataclass

from antipgd.noise import Law, Schedule
from antipgd.noise.taps import Taps
from antipgd.torch.drawing import Drawing


@dataclass(frozen=True)
class Settings:
    """What a noise is, apart from who takes it: checked values."""

    sigma: float
    relative: bool | str
    law: Law
    taps: Taps
    seed: int
    schedule: Schedule | str | None
    namespace: str
    drawing: Drawing
