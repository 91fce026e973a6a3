"""Loss, model and data set up and checked once, then entered for each measurement.

Outside of a measurement everything is as the user has it; inside, as it was when it was checked:
the modes of all modules, the statistics that were estimated. Knows nothing of what is measured.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from antipgd.checks import number, one_of
from antipgd.flatness.derivatives import check_derivatives
from antipgd.flatness.determinism import check_deterministic
from antipgd.flatness.inputs import Parameters, named_tensors
from antipgd.flatness.objective import MEMORY, Loss, Objective
from antipgd.flatness.state import all_in_float64, undisturbed
from antipgd.flatness.unchanged import Unchanged
from antipgd.torch.living import without_noise_in_passes
from antipgd.torch.recalibration import averaging

BATCH_NORMS = ("eval", "train", "estimated")


class ChangedError(ValueError):
    """The weights are not those that were checked."""


def _batch_norms(modules: Iterable[nn.Module]) -> list[_BatchNorm]:
    return [module for module in modules if isinstance(module, _BatchNorm)]


def _mode_of(norms: Sequence[_BatchNorm]) -> str:
    """What the batch norms do as they are found."""
    batch_statistics = {norm.training or norm.running_mean is None for norm in norms}
    if not batch_statistics:
        return "none"
    if len(batch_statistics) == 2:
        return "mixed"
    return "train" if batch_statistics == {True} else "eval"


@torch.no_grad()
def _estimate_statistics(objective: Objective, norms: Sequence[_BatchNorm]) -> None:
    """Running statistics as plain averages over the batches, at the present weights."""
    with averaging(norms):
        for _, batch in objective.batches():
            objective.loss(batch)


def _set_batch_norm(objective: Objective, norms: Sequence[_BatchNorm], wanted: str | None) -> None:
    if wanted is not None:
        for norm in norms:
            norm.train(wanted == "train")
    objective.batch_norm = _mode_of(norms)
    if wanted == "estimated" and norms:
        _estimate_statistics(objective, [n for n in norms if n.running_mean is not None])
        objective.batch_norm = "estimated" if objective.batch_norm == "eval" else "mixed"


def _generators(batches: Any) -> list[torch.Generator]:
    """Those that a DataLoader and its sampler draw from, if not from the global one."""
    owners = [batches, *(getattr(batches, name, None) for name in ("sampler", "batch_sampler"))]
    found = [getattr(owner, "generator", None) for owner in owners]
    return [generator for generator in found if isinstance(generator, torch.Generator)]


def _check_options(
    batch_norm: str | None, module: nn.Module | None, memory: float, distributed: bool
) -> None:
    if batch_norm is not None:
        one_of("batch_norm", batch_norm, BATCH_NORMS)
        if module is None:
            raise ValueError("batch_norm needs params to be a module; got tensors")
    number("memory", memory, 0, above=True)
    if distributed and not (dist.is_available() and dist.is_initialized()):
        raise ValueError(
            "distributed=True needs a process group; call torch.distributed.init_process_group"
        )


class Setting:
    """The objective with all that it depends on, checked; `entered` for each measurement.

    `batch_norm` is None (as found), "eval", "train", or "estimated" (statistics averaged anew over
    the batches, then held fixed). An iterator, which can be gone through once, is kept as a list.
    """

    def __init__(
        self,
        loss: Loss,
        params: Parameters,
        batches: Iterable[Any] | None = None,
        *,
        batch_norm: str | None = None,
        float64: bool = False,
        memory: float = MEMORY,
        distributed: bool = False,
    ) -> None:
        if not callable(loss):
            raise TypeError(f"loss must be a function of a batch; got {type(loss).__name__}")
        self._module = params if isinstance(params, nn.Module) else None
        _check_options(batch_norm, self._module, memory, distributed)
        self._named, self._float64 = named_tensors(params), float64
        self._generators, self._called = _generators(batches), list[nn.Module]()
        with self._undisturbed() as called:
            if isinstance(batches, Iterator):
                batches = list(batches)
            self.objective = Objective(
                loss, self._named, batches, float64=float64, memory=int(memory), ranks=distributed
            )
            self._check(called, batch_norm)
            self._keep(called, batch_norm == "estimated")
        self._unchanged = Unchanged(self._module, self._named, self._called)

    @contextmanager
    def _undisturbed(self) -> Generator[Any]:
        """Everything is put back at the end; inside, `perturb` adds nothing to the weights."""
        tensors = list(self._named.values())
        alone = undisturbed(
            self._module, tensors, self._float64, self._generators, called=self._called
        )
        owned = [] if self._module is None else list(self._module.parameters())
        with without_noise_in_passes([*tensors, *owned]), alone as called:
            yield called

    def _check(self, called: Iterable[nn.Module], batch_norm: str | None) -> None:
        if self._module is not None:
            _set_batch_norm(self.objective, _batch_norms(self._module.modules()), batch_norm)
        check_deterministic(self.objective)
        self.objective.before_products = self._check_derivatives
        if self._module is None:
            self.objective.batch_norm = _mode_of(_batch_norms(called))

    def _check_derivatives(self) -> None:
        tensors = list(self._named.values())
        check_derivatives(self.objective, lambda: all_in_float64(self._module, tensors))

    def _keep(self, called: Iterable[nn.Module], estimated: bool) -> None:
        """What must be the same at every measurement."""
        self._called = list(called)
        self._modes = [(part, part.training) for part in self._called]
        norms = _batch_norms(self._called) if estimated else []
        self._statistics = [(norm, name, value.clone()) for norm in norms
                            for name, value in norm.named_buffers()]  # fmt: skip

    @contextmanager
    def entered(self) -> Generator[Objective]:
        """The objective, for one measurement; all is put back at the end.

        Weights or buffers that changed since the setting was made are refused.
        """
        self._refuse_changes()
        with self._undisturbed():
            for part, mode in self._modes:
                part.training = mode
            with torch.no_grad():
                for norm, name, value in self._statistics:
                    norm.get_buffer(name).copy_(value)
            self.objective.products_taken = 0
            yield self.objective

    def _refuse_changes(self) -> None:
        changed = self._unchanged.changed()
        if self.objective.ranks:  # all of them or none, lest some wait for the others for ever
            flag = torch.tensor([changed is not None], device=self.objective.device).int()
            dist.all_reduce(flag)
            changed = changed or ("another rank's weights changed" if flag.item() else None)
        if changed:
            raise ChangedError(
                f"{changed} since flatness.at: what was measured there belongs to other weights; "
                f"call flatness.at again"
            )


@contextmanager
def measuring(
    loss: Loss, params: Parameters, batches: Iterable[Any] | None = None, **options: Any
) -> Generator[Objective]:
    """The objective of a `Setting`, for a single measurement."""
    with Setting(loss, params, batches, **options).entered() as objective:
        yield objective
