"""Anti-PGD as an optimizer of its own: torch's SGD with the noise attached."""

import glob
from typing import Any

import torch

from antipgd.torch.attaching import attach, attach_copy
from antipgd.torch.members import group_names


class AntiPGD(torch.optim.SGD):
    """`torch.optim.SGD` plus anticorrelated noise; `.noise` is the handle that `attach` gives.

    `sigma` and the other arguments of `attach` come by keyword, as do those of SGD.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        sigma: float,
        momentum: float = 0,
        *,
        relative: bool | str = False,
        law: Any = "gaussian",
        taps: Any = (1.0, -1.0),
        seed: int | None = None,
        schedule: Any = None,
        exclude: Any = None,
        model: torch.nn.Module | None = None,
        namespace: str = "",
        hold: int = 1,
        layers: str = "all",
        **sgd: Any,
    ) -> None:
        super().__init__(params, lr=lr, momentum=momentum, **sgd)
        if model is not None:  # names that survive a copy
            for group, names in zip(self.param_groups, group_names(self, model), strict=True):
                group["param_names"] = names
        settings = {
            "relative": relative, "law": law, "taps": taps, "schedule": schedule,
            "exclude": exclude, "namespace": namespace, "hold": hold, "layers": layers,
        }  # fmt: skip
        self.noise = attach(self, sigma, seed=seed, model=model, **settings)
        # Names, which survive a copy where a predicate may not.
        settings["exclude"] = [glob.escape(name) for name in self.noise.left_out]
        self._noise_settings = settings

    def __getstate__(self) -> dict[str, Any]:
        own = {**self._noise_settings, "sigma": self.noise.sigma, "seed": self.noise.seed}
        return {**super().__getstate__(), "_noise_settings": own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if "_noise_settings" in state:  # a copy, whose groups have the noise as text
            self.noise = attach_copy(self, **self._noise_settings)
