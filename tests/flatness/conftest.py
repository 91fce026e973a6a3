"""Small models of many kinds, with their Hessians by autodiff: what the estimates must agree with.

A `Case` is a module, its loss and batches of unequal sizes. `hessian` is of the mean over all
examples, by torch.func in float64.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, mse_loss

from antipgd.paper.simulation.problems import MatrixSensing, QuadraticRegression, WideningValley

PARTS = (3, 7, 5)  # examples in each batch


@dataclass
class Case:
    module: nn.Module
    criterion: Callable[[Any, Any], torch.Tensor]  # of a module and a batch
    batches: list[Any] | None
    options: dict[str, Any] = field(default_factory=dict)
    trace: float | None = None  # where there is a closed form
    name: str = ""

    def loss(self, *batch: Any) -> torch.Tensor:
        return self.criterion(self.module, *batch)

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.loss, self.module, self.batches

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    @property
    def names(self) -> list[str]:
        return list(self.tensors)

    @property
    def sizes(self) -> list[int]:
        return [p.numel() for p in self.tensors.values()]

    @property
    def flat(self) -> np.ndarray:
        return torch.cat([p.detach().reshape(-1) for p in self.tensors.values()]).numpy()

    def reference(self) -> nn.Module:
        """A module that does what the measured one should do, its norms written out."""
        module, wanted = copy.deepcopy(self.module), self.options.get("batch_norm")
        for norm in norms_in(module):
            norm.train(wanted == "train" or (wanted is None and norm.training))
        if wanted == "estimated":
            _average_statistics(module, [x for x, _ in self.batches])
        for index, part in enumerate(module if isinstance(module, nn.Sequential) else ()):
            if isinstance(part, nn.BatchNorm2d | nn.LayerNorm):
                module[index] = WrittenOut(part)
        return module

    def hessian(self) -> np.ndarray:
        if not self.name:
            return self._hessian()
        if self.name not in HESSIANS:
            HESSIANS[self.name] = self._hessian()
        return HESSIANS[self.name]

    def _hessian(self) -> np.ndarray:
        module, batches = self.reference(), self.batches
        shapes = {name: p.shape for name, p in self.tensors.items()}

        def mean(flat):
            parts = zip(shapes.items(), flat.split(self.sizes), strict=True)
            named = {name: part.reshape(shape) for (name, shape), part in parts}
            call = partial(torch.func.functional_call, module, named)
            if batches is None:
                return self.criterion(call)
            lengths = [len(x) for x, _ in batches]
            losses = [self.criterion(call, b) * len(b[0]) for b in batches]
            return sum(losses) / sum(lengths)

        with sdpa_kernel(SDPBackend.MATH):
            found = torch.func.hessian(mean)(torch.from_numpy(self.flat)).detach().numpy()
        np.testing.assert_allclose(found, found.T, atol=1e-12 * np.abs(found).max())
        return found


class WrittenOut(nn.Module):
    """A layer norm or a batch norm by its formula.

    torch.func differentiates torch's own wrongly (2.13: Hessians that are asymmetric by up to 1.4,
    forward or reverse, of layer norms and of batch norms in training); autograd does not.
    """

    def __init__(self, norm):
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.axes = (1,) if isinstance(norm, nn.LayerNorm) else (0, 2, 3)
        fixed = isinstance(norm, nn.BatchNorm2d) and not norm.training
        self.fixed = (norm.running_mean, norm.running_var) if fixed else None

    def forward(self, x):
        shape = [1] * x.dim()
        shape[1] = -1
        mean, variance = self.fixed or (x.mean(self.axes), x.var(self.axes, unbiased=False))
        if self.axes == (1,):
            mean, variance = mean[:, None], variance[:, None]
        else:
            mean, variance = mean.reshape(shape), variance.reshape(shape)
        weight, bias = self.weight.reshape(shape), self.bias.reshape(shape)
        return (x - mean) / torch.sqrt(variance + self.eps) * weight + bias


def norms_in(module):
    return [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]


def _average_statistics(module: nn.Module, inputs: list[torch.Tensor]) -> None:
    """Batch means and unbiased variances, averaged over the batches."""
    seen = {norm: [] for norm in norms_in(module)}
    hooks = [n.register_forward_pre_hook(lambda n, x: seen[n].append(x[0])) for n in seen]
    module.train()
    with torch.no_grad():
        for x in inputs:
            module(x)
    for hook in hooks:
        hook.remove()
    for norm, looks in seen.items():
        means = [x.mean((0, 2, 3)) for x in looks]
        variances = [x.var((0, 2, 3), unbiased=True) for x in looks]
        norm.running_mean, norm.running_var = (torch.stack(v).mean(0) for v in (means, variances))
        norm.eval()


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def cut(*tensors):
    return list(zip(*(t.split(PARTS) for t in tensors), strict=True))


def classes(count, seed=1):
    return torch.randint(count, (sum(PARTS),), generator=generator(seed))


def classified(module, batch):
    return cross_entropy(module(batch[0]), batch[1])


def regressed(module, batch):
    return mse_loss(module(batch[0]), batch[1])


def scattered(module, seed=2, scale=1.0):
    """Weights from a generator of our own, whatever the layers have drawn for themselves."""
    g = generator(seed)
    with torch.no_grad():
        for p in module.double().parameters():
            drawn = torch.randn(p.shape, generator=g, dtype=torch.float64)
            p.copy_(scale * drawn / max(p.dim(), 1.5))
    return module


def linear():
    return Case(scattered(nn.Linear(9, 6)), regressed, cut(normal(15, 9), normal(15, 6, seed=1)))


def mlp(activation, width=6):
    layers = [nn.Linear(5, width), activation(), nn.Linear(width, 5), activation(), nn.Linear(5, 3)]
    return Case(scattered(nn.Sequential(*layers)), classified, cut(normal(15, 5), classes(3)))


def layer_norm():
    layers = [nn.Linear(5, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3)]
    return Case(scattered(nn.Sequential(*layers)), classified, cut(normal(15, 5), classes(3)))


def convolution():
    layers = [nn.Conv2d(1, 3, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)]
    return Case(scattered(nn.Sequential(*layers)), classified, cut(normal(15, 1, 6, 6), classes(3)))


def batch_norm(mode, found="eval", width=3):
    layers = [nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 2, 2),
              nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)]  # fmt: skip
    module = scattered(nn.Sequential(*layers)).train(found == "train")
    for norm in (module[1], module[4]):
        norm.running_mean.copy_(normal(len(norm.running_mean), seed=5))
        norm.running_var.copy_(normal(len(norm.running_var), seed=6) ** 2 + 0.5)
    options = {} if mode is None else {"batch_norm": mode}
    return Case(module, classified, cut(normal(15, 1, 5, 5), classes(3)), options)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.out = nn.Linear(width, 3)

    def forward(self, x):
        seen, _ = self.attention(x, x, x, need_weights=False)
        return self.out(torch.tanh(x + seen).mean(1))


def attention(width=4, scale=1.0):
    module = scattered(Attention(width), scale=scale)
    return Case(module, classified, cut(normal(15, 5, width), classes(3)))


class Tied(nn.Module):
    """Words in, words out, by one matrix."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.middle = nn.Linear(4, 4)
        self.out = nn.Linear(4, 7)
        self.out.weight = self.words.weight

    def forward(self, x):
        return self.out(torch.tanh(self.middle(self.words(x).mean(1))))


def tied():
    words = torch.randint(7, (15, 6), generator=generator())
    return Case(scattered(Tied()), classified, cut(words, classes(7)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(3, 4, batch_first=True)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.cells(x)[0][:, -1])


def recurrent():
    return Case(scattered(Recurrent()), classified, cut(normal(15, 4, 3), classes(2)))


class Weights(nn.Module):
    """The weights of one of the paper's problems."""

    def __init__(self, w):
        super().__init__()
        self.w = nn.Parameter(torch.as_tensor(w))

    def forward(self):
        return self.w


def of_the_paper(problem, form, start, rows):
    rng = np.random.default_rng(0)
    data = problem.data(rng)
    w = start + 0.3 * rng.standard_normal(start.shape)
    tensors = None
    if rows:
        tensors = cut_in_three(*(torch.from_numpy(part) for part in rows(data)))
    trace = float(problem.trace(w[None], data)[0])
    return Case(Weights(w), form, tensors, trace=trace)


def cut_in_three(*tensors):
    third = len(tensors[0]) // 3
    parts = [third, third + 1, len(tensors[0]) - 2 * third - 1]
    return list(zip(*(t.split(parts) for t in tensors), strict=True))


def quadratic_regression(d=60):
    def form(module, batch):
        return ((batch[0] @ module() ** 2 - batch[1]) ** 2).mean() / 4

    problem = QuadraticRegression(d=d, n=40)
    return of_the_paper(problem, form, np.ones(d), lambda data: (data.X, data.y))


def matrix_sensing(n=8):
    def form(module, batch):
        u = module().reshape(n, n)
        a, b = np.triu_indices(n)
        return ((batch[0] @ (u @ u.T)[a, b] - batch[1]) ** 2).mean() / 2

    problem = MatrixSensing(n=n, rank=2, measurements=50)
    return of_the_paper(problem, form, np.eye(n).reshape(-1), lambda data: (data.B, data.y))


def widening_valley(d=50):
    def form(module):
        return module()[-1] ** 2 * (module()[:-1] ** 2).sum() / 2

    problem = WideningValley(d=d)
    return of_the_paper(problem, form, np.append(np.full(d, 0.5), 0.2), None)


CASES = {
    "linear": linear,
    "mlp tanh": partial(mlp, nn.Tanh),
    "mlp relu": partial(mlp, nn.ReLU),
    "mlp gelu": partial(mlp, nn.GELU),
    "layer norm": layer_norm,
    "convolution": convolution,
    "batch norm as found": partial(batch_norm, None),
    "batch norm eval": partial(batch_norm, "eval", "train"),
    "batch norm train": partial(batch_norm, "train"),
    "batch norm estimated": partial(batch_norm, "estimated"),
    "attention": attention,
    "tied": tied,
    "recurrent": recurrent,
    "quadratic regression": quadratic_regression,
    "matrix sensing": matrix_sensing,
    "widening valley": widening_valley,
}


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES, indirect=True)


HESSIANS = {}  # of the cases below, once they have been asked for


@pytest.fixture
def case(request):
    made = CASES[request.param]()
    made.name = request.param
    return made


@pytest.fixture(scope="session")
def cases():
    """Every model's maker, by name."""
    return CASES


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(threads)
