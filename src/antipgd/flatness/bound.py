"""thm:pac for a network: a bound on its loss on new data, with noise on its weights.

The formula and its proof's conditions are in `antipgd.theory.pac_bayes`; here a model, its data and
a prior are turned into what it asks for.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from antipgd.checks import whole
from antipgd.flatness.draws import Draws, rises
from antipgd.flatness.inputs import Parameters, named_tensors
from antipgd.flatness.measuring import measuring
from antipgd.flatness.objective import MEMORY, Objective
from antipgd.noise.stream import canonical_name
from antipgd.theory import pac_bayes
from antipgd.theory.pac_bayes import Bound

Array = NDArray[np.float64]
Prior = float | Tensor | nn.Module | Mapping[str, Tensor] | Iterable[Tensor]


class _Mean:
    """The mean of the losses by example, checked; remembers how many there were.

    `counted` says that there are batches, whose examples can be counted, too.
    """

    def __init__(self, losses: Callable[..., Tensor], counted: bool) -> None:
        self.losses, self.counted, self.examples = losses, counted, 0

    def __call__(self, *batch: Any) -> Tensor:
        values = self.losses(*batch)
        if not isinstance(values, Tensor) or values.dim() != 1 or not len(values):
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(f"losses must return one loss per example, of shape (n,); got {got}")
        low, high = float(values.min()), float(values.max())
        if not (low >= 0 and high <= 1):
            raise ValueError(
                f"losses must lie in [0, 1]: use the 0-1 error or clip them; got values from "
                f"{low:.3g} to {high:.3g}"
            )
        self.examples = len(values)
        return values.double().mean()


def pac_bayes_bound(
    losses: Callable[..., Tensor],
    params: Parameters,
    batches: Iterable[Any] | None,
    prior: Prior,
    *,
    s_grid: Sequence[float],
    lambda_grid: Sequence[float],
    delta: float = 0.05,
    draws: int = 100,
    printed: bool = False,
    seed: int = 0,
    batch_norm: str | None = None,
    float64: bool = False,
    memory: float = MEMORY,
    distributed: bool = False,
) -> Bound:
    """With probability ≥ 1 − `delta`, the mean loss of w + sξ on new data is at most `total`.

    You owe it that `prior`, `s_grid`, `lambda_grid` and all of the model that is not in `params`
    (frozen layers, statistics of batch norms) were fixed before the data were seen, and that the
    examples are independent. This cannot be checked here: a prior at the trained weights gives no
    bound at all; the weights at initialisation, or zero, are honest ones.

    `losses(batch)` gives one loss in [0, 1] for each example, such as the 0-1 error. `prior` is 0,
    a flat tensor, tensors in the order of `params`, a state dict or a module. Each of the `draws`
    is a pass over the data for each s; `sampling` of the result is what so few of them cost.
    `printed` uses the paper's λ/2M in place of λ/8n. The other arguments are those of `at`; batch
    norms must not be in training mode, where a loss is not of one example.

    >>> import torch
    >>> w, x = torch.zeros(1), torch.arange(-50.0, 51.0).reshape(-1, 1)
    >>> bound = pac_bayes_bound(
    ...     lambda batch: (batch @ w > 60).float(), [w], [x], 0, s_grid=[0.5], lambda_grid=[200])
    >>> print(f"{bound.empirical + bound.sampling:.3f} {bound.total:.3f}")
    0.163 0.426
    """
    whole("draws", draws, 1)
    params = list(params) if isinstance(params, Iterator) else params
    prior = list(prior) if isinstance(prior, Iterator) else prior
    _refuse_shared(named_tensors(params), prior)
    formula = partial(pac_bayes.pac_bayes_bound, s_grid=s_grid, lambda_grid=lambda_grid,
                      delta=delta, printed=printed)  # fmt: skip
    formula(lambda s: 0.0, [0], [0], n=1)  # its checks come before the data
    mean = _Mean(losses, counted=batches is not None)
    with measuring(
        mean, params, batches, batch_norm=batch_norm, float64=float64, memory=memory,
        distributed=distributed,
    ) as objective:  # fmt: skip
        return _bound(objective, mean, formula, prior, draws, seed)


def _bound(
    objective: Objective,
    mean: _Mean,
    formula: Callable[..., Bound],
    prior: Prior,
    draws: int,
    seed: int,
) -> Bound:
    if objective.batch_norm in ("train", "mixed"):
        raise ValueError(
            "batch norms are in training mode, where the loss of an example depends on the "
            "others: call model.eval() or pass batch_norm='eval'"
        )
    centre, count = _prior(objective, prior), _count(objective, mean)
    here, seen = objective.value(), set[float]()

    def empirical(s: float) -> Array:
        """The mean loss at each draw from N(w, s²I): independent, and common to all s."""
        single = Draws(seed, antithetic=False)
        samples, _ = rises(objective, [s], single, 0, draws, at=0.0)
        seen.update(samples[:, 0])
        return np.minimum(samples[:, 0], 1.0)  # a mean of ones may round to more

    bound = formula(empirical, objective.flat().double().cpu().numpy(), centre, n=count)
    if seen == {here}:
        objective.check_depends(here)
    return bound


@torch.no_grad()
def _count(objective: Objective, mean: _Mean) -> int:
    """The number of examples; each must count alike in the mean over batches."""
    total = 0
    for weight, batch in objective.batches():
        objective.loss(batch)
        if mean.counted and mean.examples != weight:
            raise ValueError(
                f"losses gave {mean.examples} values for a batch of {weight:g} examples (the "
                f"first axis of the first tensor in it); there must be one for each"
            )
        total += mean.examples
    return total


def _refuse_shared(named: Mapping[str, Tensor], prior: Prior) -> None:
    """Refuse a prior that has been trained along, as `model.state_dict()` has."""
    if isinstance(prior, nn.Module):
        prior = list(prior.parameters())
    if isinstance(prior, Tensor):
        prior = [prior]
    if not isinstance(prior, Iterable):
        return
    parts = prior.values() if isinstance(prior, Mapping) else prior
    own = [part for part in parts if isinstance(part, Tensor)]
    for name, tensor in named.items():
        if any(_overlap(tensor, part) for part in own):
            raise ValueError(
                f"prior shares the memory of {name!r}, so that it changes with the weights: take a "
                f"copy before training, such as copy.deepcopy(model) or copies of state_dict()"
            )


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors, as far as they lie without gaps, have memory in common."""
    first, second = one.data_ptr(), other.data_ptr()
    if one.device != other.device:
        return False
    return first < second + other.nbytes and second < first + one.nbytes


def _prior(objective: Objective, prior: Prior) -> Array:
    """The prior's centre, laid end to end like the parameters."""
    if isinstance(prior, int | float) and prior == 0:
        return np.zeros(objective.size)
    if isinstance(prior, Tensor):
        parts = [prior]
        if prior.shape != (objective.size,):
            raise ValueError(
                f"a flat prior must have shape ({objective.size},); got {tuple(prior.shape)}"
            )
    elif isinstance(prior, nn.Module | Mapping):
        parts = _named_parts(objective, prior)
    elif isinstance(prior, Iterable):
        parts = _matching(objective, list(prior))
    else:
        raise TypeError(
            f"prior must be 0, a flat tensor, tensors, a state dict or a module; got {prior!r}"
        )
    flat = torch.cat([part.detach().reshape(-1).double().cpu() for part in parts])
    if not bool(flat.isfinite().all()):
        raise ValueError("prior must be finite; it holds numbers that are not")
    return flat.numpy()


def _named_parts(objective: Objective, prior: nn.Module | Mapping[str, Tensor]) -> list[Tensor]:
    pairs = prior.named_parameters() if isinstance(prior, nn.Module) else prior.items()
    named = {canonical_name(name): tensor for name, tensor in pairs}
    missing = [name for name in objective.names if name not in named]
    if missing:
        raise ValueError(f"prior has no parameter {missing[0]!r}; it has {', '.join(named)}")
    return _matching(objective, [named[name] for name in objective.names])


def _matching(objective: Objective, parts: list[Any]) -> list[Tensor]:
    if len(parts) != len(objective.tensors):
        raise ValueError(
            f"prior must hold {len(objective.tensors)} tensors, one for each parameter; "
            f"got {len(parts)}"
        )
    for name, part, own in zip(objective.names, parts, objective.tensors, strict=True):
        if not isinstance(part, Tensor) or part.shape != own.shape:
            got = tuple(part.shape) if isinstance(part, Tensor) else repr(part)
            raise ValueError(f"prior of {name!r} must have shape {tuple(own.shape)}; got {got}")
    return parts
