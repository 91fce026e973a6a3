"""What `flatness.py` measures: half-trained networks, and each library's way to their trace.

The images are smooth random fields, a tenth of the labels is wrong, and training stops after a few
dozen steps: the Hessian is that of a network on its way, neither a random nor a finished one.
"""

import math
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from curvlinops import HessianLinearOperator, hutchinson_trace, hutchpp_trace, xtrace
from hessian_eigenthings import HessianOperator, supervised_loss
from hessian_eigenthings import trace as eigenthings_trace
from pyhessian import hessian
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from antipgd.flatness import hessian_trace
from antipgd.flatness.measuring import measuring
from antipgd.flatness.probes import SKETCH
from antipgd.paper.networks.models import make_network

CLASSES = 10


@dataclass(frozen=True)
class Case:
    model: str
    width: int
    images: int
    side: int
    steps: int
    lr: float
    group: int  # products for which ours shares a graph where seconds per product are measured
    columns: int  # that curvlinops multiplies at once
    samples: int  # of the reference

    def data(self) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(0)

        def smooth(count: int, coarse: int) -> Tensor:
            grid = torch.randn(count, 3, coarse, coarse, generator=draw)
            return interpolate(grid, size=self.side, mode="bicubic")

        labels = torch.arange(self.images) % CLASSES
        images = 0.5 * smooth(CLASSES, 4)[labels] + smooth(self.images, 4)
        images += 0.5 * smooth(self.images, 8)
        wrong = torch.rand(self.images, generator=draw) < 0.1
        others = torch.randint(CLASSES, (self.images,), generator=draw)
        return images, torch.where(wrong, others, labels)

    def network(self) -> nn.Module:
        """In evaluation mode, untrained."""
        return make_network(self.model, self.width, (3, self.side, self.side), CLASSES, 0).eval()

    def train(self, network: nn.Module) -> None:
        images, labels = self.data()
        optimizer = torch.optim.SGD(network.parameters(), lr=self.lr, momentum=0.9)
        network.train()
        for step in range(self.steps):
            batch = torch.arange(128 * step, 128 * (step + 1)) % self.images
            optimizer.zero_grad()
            cross_entropy(network(images[batch]), labels[batch]).backward()
            optimizer.step()
        optimizer.zero_grad()
        network.eval()


CASES = {
    "ResNet18, width 8": Case("resnet18", 8, 512, 16, 30, 0.05, group=16, columns=4, samples=192),
    "MLP": Case("mlp", 684, 512, 16, 30, 0.02, group=16, columns=4, samples=512),
    "ResNet18, width 64": Case("resnet18", 64, 32, 32, 0, 0.0, group=4, columns=1, samples=0),
}

Data = tuple[Tensor, Tensor]
Found = tuple[float, int, bool]  # estimate, products taken, whether they were enough
Run = Callable[[int], Found]  # of the products that are allowed
Way = Callable[[nn.Module, Data, Case], Run]


def objective(network: nn.Module, data: Data):
    return measuring(lambda b: cross_entropy(network(b[0]), b[1]), network, [data])


def ours(method: str, tolerance: float) -> Way:
    """The whole task: the number of products is its own decision."""

    def prepared(network: nn.Module, data: Data, case: Case) -> Run:
        def run(_: int) -> Found:
            trace = hessian_trace(
                lambda b: cross_entropy(network(b[0]), b[1]), network, [data],
                method=method, tolerance=tolerance,
            )  # fmt: skip
            return trace.mean, trace.products, bool(trace.converged)

        return run

    return prepared


def our_products(network: nn.Module, data: Data, case: Case) -> Run:
    """Probes and their products only: fewer than `hessian_trace` calls an estimate."""
    function = ExitStack().enter_context(objective(network, data))  # for the whole process

    def run(products: int) -> Found:
        probes = function.probes(0).rows(SKETCH, 0, products)
        return float(torch.linalg.vecdot(probes, function.products(probes)).mean()), products, True

    return run


def pyhessian(network: nn.Module, data: Data, case: Case) -> Run:
    """Keeps one graph for all products.

    Its own stopping rule is no error bar, and with a negative trace it stops at once: switched off.
    """
    with warnings.catch_warnings():  # that backward() with create_graph leaks memory
        warnings.simplefilter("ignore")
        of_batch = hessian(network, nn.CrossEntropyLoss(), data=data, cuda=False)

    def run(products: int) -> Found:
        samples = of_batch.trace(maxIter=products, tol=-math.inf)
        return sum(samples) / len(samples), len(samples), True

    return run


def curvlinops(name: str) -> Way:
    def prepared(network: nn.Module, data: Data, case: Case) -> Run:
        class InChunks(HessianLinearOperator):
            """It multiplies all columns at once, vectorised, which does not fit into memory."""

            def _matmat(self, M: list[Tensor]) -> list[Tensor]:
                chunks = zip(*(part.split(case.columns, -1) for part in M), strict=True)
                found = [super(InChunks, self)._matmat(list(chunk)) for chunk in chunks]
                return [torch.cat(parts, -1) for parts in zip(*found, strict=True)]

        estimator = {"hutchinson": hutchinson_trace, "hutch++": hutchpp_trace, "xtrace": xtrace}
        operator = InChunks(
            network, nn.CrossEntropyLoss(), list(network.parameters()), [data],
            check_deterministic=False,
        )  # fmt: skip

        def run(products: int) -> Found:
            torch.manual_seed(0)
            return float(estimator[name](operator, products)), products, True

        return run

    return prepared


def eigenthings(name: str) -> Way:
    """Its finite differences are off by more than half with random signs: autograd is used."""

    def prepared(network: nn.Module, data: Data, case: Case) -> Run:
        operator = HessianOperator(network, [data], supervised_loss(nn.CrossEntropyLoss()))

        def run(products: int) -> Found:
            found = eigenthings_trace(operator, num_matvecs=products, method=name, seed=0)
            return found.estimate, products, True

        return run

    return prepared


def way(name: str, tolerance: float) -> Way:
    """Of a library to an estimator; of a library alone, to a few products."""
    library, estimator = name.split() if " " in name else (name, "hutchinson")
    if library == "antipgd":
        return ours(estimator, tolerance) if " " in name else our_products
    if library == "PyHessian":
        return pyhessian
    return {"curvlinops": curvlinops, "eigenthings": eigenthings}[library](estimator)
