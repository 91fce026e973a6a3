"""What is left of a trained network after rounding, noise and a second task; and how flat it is.

Flatness is bought for this: weights that are rounded to 8 or 4 bits, that drift, that are trained
on. Whatever is done to the weights, `score` of the problem says what is left, BatchNorm's
statistics estimated anew. All sizes are fixed here, the same for every contestant.
"""

import math
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from antipgd import flatness
from antipgd.estimate import Estimate
from antipgd.noise import draws, stream_key
from antipgd.noise.stream import key_indices
from antipgd.paper.fight.problem import ACCURACY, LOSS, Network

BITS = (8, 4)
NOISES = (1, 3, 10)
"""In percent of the root mean square of each tensor."""
DRAWS = 4
SECOND_STEPS = 60
SECOND_RATES = {"sgd": 0.03, "adamw": 25.0}
"""The rate of fine-tuning, which is SGD's for everybody, in units of the problem's own: chosen on
seeds from 5000 on so that something is left of the first task and something learnt of the
second."""
SECOND_MOMENTUM = 0.9
EQUAL_LOSS = 0.1
"""Of the training examples, where classifiers are compared: what a temperature brings them to."""
EXAMPLES, PREDICTIONS, PROBES, PRODUCTS = 128, 1024, 64, 64
"""Of a trace: training examples, or so many that have this many predictions, each character being
one; products with the Hessian, and those of effective sharpness."""


def survive(problem: Network, w: Tensor, *, lr: float, seed: int) -> dict[str, float]:
    """Columns by name, of the weights that were judged; asked once at the end of a judged bout.

    `lr` is the learning rate of the base, `seed` that of the bout. Draws come from the noise
    stream, never from global generators. Scores are by the problem's kind, accuracies or held-out
    losses. A column that makes no sense is left out: the trace of a classifier that no temperature
    brings to `EQUAL_LOSS`, effective sharpness at the limit of stability (`at_limit` counts the
    eigenvalues there) or of an optimizer other than SGD.
    """
    w = w.detach()
    return {
        "score": _score(problem, w),
        **{f"int{bits}": _score(problem, rounded(problem, w, bits)) for bits in BITS},
        **_after_noise(problem, w, seed),
        **_after_second(problem, w, seed),
        **_how_flat(problem, w, lr),
    }


def _score(problem: Network, w: Tensor) -> float:
    return problem.score(w)["accuracy" if problem.sizes.kind == ACCURACY else "test_loss"]


def _tensors(problem: Network, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Views of a flat vector by name, in their shapes."""
    split = flat.split([math.prod(shape) for _, shape in problem.layout])
    for (name, shape), part in zip(problem.layout, split, strict=True):
        yield name, part.view(shape)


def rounded(problem: Network, w: Tensor, bits: int) -> Tensor:
    """Each matrix rounded to the nearest of 2^bits − 1 values around 0, of which the outermost is
    the largest weight of its output channel; biases and norms stay."""
    after = w.clone()
    most = 2 ** (bits - 1) - 1
    for _, tensor in _tensors(problem, after):
        if tensor.dim() >= 2:
            scale = tensor.abs().amax(dim=tuple(range(1, tensor.dim())), keepdim=True) / most
            scale[scale == 0] = 1
            tensor.copy_((tensor / scale).round() * scale)
    return after


def noised(problem: Network, w: Tensor, share: float, seed: int, draw: int) -> Tensor:
    """Gaussian noise on every tensor, of so large a share of its root mean square."""
    after = w.clone()
    for name, tensor in _tensors(problem, after):
        drawn = draws(seed, f"survival/{name}", draw, 0, tensor.numel(), purpose="probe")
        sigma = share * float(tensor.square().mean().sqrt())
        tensor.add_(torch.from_numpy(drawn).view(tensor.shape).to(w), alpha=sigma)
    return after


def _after_noise(problem: Network, w: Tensor, seed: int) -> dict[str, float]:
    found = {}
    for percent in NOISES:
        scores = Estimate.of(
            _score(problem, noised(problem, w, percent / 100, seed, draw))
            for draw in range(1, DRAWS + 1)
        )
        found[f"noise{percent}"] = scores.mean
        found[f"noise{percent}_sd"] = scores.sem * math.sqrt(DRAWS)
    return found


def fine_tuned(task: Network, w: Tensor, seed: int) -> Tensor:
    """The weights after a fixed number of steps of SGD with momentum at a fixed rate."""
    sizes, key = task.sizes, stream_key(seed, "survival/second", "batch")
    rate, velocity = sizes.lr * SECOND_RATES[sizes.optimizer], torch.zeros_like(w)
    for step in range(1, SECOND_STEPS + 1):
        rows = torch.from_numpy(key_indices(key, step, sizes.batch, sizes.examples))
        velocity = SECOND_MOMENTUM * velocity + task.gradient(w, rows)
        w = w - rate * velocity
    return w


def _after_second(problem: Network, w: Tensor, seed: int) -> dict[str, float]:
    second = problem.second_task()
    after = fine_tuned(second, w, seed)
    return {
        "first_after_second": _score(problem, after),
        "second_before": _score(second, w),
        "second": _score(second, after),
    }


class _Parts(nn.Module):
    """The weights as a module of tensors, for each of which a trace is scaled."""

    def __init__(self, problem: Network, w: Tensor) -> None:
        super().__init__()
        self.parts = nn.ParameterList(part.clone() for _, part in _tensors(problem, w))
        self._problem = problem

    def flat(self) -> Tensor:
        """As the problem takes them."""
        return torch.cat([part.reshape(-1) for part in self.parts])

    def forward(self, rows: Tensor) -> Tensor:
        """Logits of training examples."""
        return self._problem.logits(self.flat(), rows)  # type: ignore[attr-defined]

    def loss(self, rows: Tensor) -> Tensor:
        """Their training loss."""
        return self._problem.loss(self.flat(), rows)


def _rows(problem: Network) -> Tensor:
    """Training examples for a trace, from all over the data."""
    each = getattr(problem, "predictions", 1)
    count = min(EXAMPLES, PREDICTIONS // each, problem.sizes.examples)
    return torch.arange(count) * problem.sizes.examples // count


def _how_flat(problem: Network, w: Tensor, lr: float) -> dict[str, float]:
    parts, rows = _Parts(problem, w), _rows(problem)
    with warnings.catch_warnings():  # that so few products miss a tolerance is meant so
        warnings.simplefilter("ignore", flatness.ToleranceWarning)
        warnings.simplefilter("ignore", flatness.StabilityWarning)
        return _scaled_trace(problem, parts, rows) | _effective(problem, parts, rows, lr)


def _scaled_trace(problem: Network, parts: _Parts, rows: Tensor) -> dict[str, float]:
    """Σ_l ‖w_l‖² tr_l / n_l, of classifiers at equal loss: the rise of the loss by noise relative
    to the rms of each tensor."""
    try:
        if problem.sizes.kind == LOSS or not hasattr(problem, "logits"):
            here = flatness.at(parts.loss, parts, [rows])
            found = here.trace(max_probes=PROBES).scaled
        else:
            batches = [(rows, problem.labels(rows))]  # type: ignore[attr-defined]
            found = flatness.trace_at_equal_loss(
                parts, batches, EQUAL_LOSS, max_probes=PROBES
            ).estimate
    except flatness.UnreachableLossError:
        return {}
    return {"scaled_trace": found.mean, "scaled_trace_sem": found.sem}


def _effective(problem: Network, parts: _Parts, rows: Tensor, lr: float) -> dict[str, float]:
    if problem.sizes.optimizer != "sgd":
        return {}
    found = flatness.at(parts.loss, parts, [rows]).effective_sharpness(
        lr, problem.sizes.momentum, max_products=PRODUCTS
    )
    finite = {} if found.at_limit else {"effective_sharpness": found.mean}
    return {**finite, "at_limit": float(found.at_limit)}
