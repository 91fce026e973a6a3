"""What `flatness.py` measures: half-trained networks, and each library's way to their trace.

The images are smooth random fields, a tenth of the labels is wrong, and training stops after a few
dozen steps: the Hessian is that of a network on its way, neither a random nor a finished one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from antipgd.flatness import hessian_trace
from antipgd.flatness.objective import measuring
from antipgd.flatness.probes import SKETCH
from antipgd.paper.networks import make_network

CLASSES = 10


@dataclass(frozen=True)
class Case:
    model: str
    width: int
    images: int
    side: int
    steps: int
    lr: float
    group: int  # products for which ours shares a graph while seconds per product are measured
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
    "MLP": Case("mlp", 684, 512, 16, 30, 0.02, group=16, columns=4, samples=1024),
    "ResNet18, width 64": Case("resnet18", 64, 64, 32, 0, 0.0, group=4, columns=1, samples=0),
}

Data = tuple[Tensor, Tensor]
Run = Callable[[int], tuple[float, int]]  # products that are allowed → estimate, products taken


def objective(network: nn.Module, data: Data):
    return measuring(lambda b: cross_entropy(network(b[0]), b[1]), network, [data])


def ours(method: str, tolerance: float) -> Callable[[nn.Module, Data, Case], Run]:
    """The whole task: the number of products is its own decision."""

    def prepared(network: nn.Module, data: Data, case: Case) -> Run:
        def run(_: int) -> tuple[float, int]:
            trace = hessian_trace(
                lambda b: cross_entropy(network(b[0]), b[1]), network, [data],
                method=method, tolerance=tolerance,
            )  # fmt: skip
            return trace.mean, trace.products

        return run

    return prepared


def our_products(network: nn.Module, data: Data, case: Case) -> Run:
    """Probes and their products only: fewer than `hessian_trace` calls an estimate."""

    def run(products: int) -> tuple[float, int]:
        with objective(network, data) as function:
            probes = function.probes(0).rows(SKETCH, 0, products)
            return float((probes * function.products(probes)).sum() / products), products

    return run


def pyhessian(network: nn.Module, data: Data, case: Case) -> Run:
    """Keeps one graph for all products.

    Its own stopping rule is no error bar, and with a negative trace it stops at once: switched off.
    """
    import warnings

    from pyhessian import hessian

    with warnings.catch_warnings():  # that backward() with create_graph leaks memory
        warnings.simplefilter("ignore")
        of_batch = hessian(network, nn.CrossEntropyLoss(), data=data, cuda=False)

    def run(products: int) -> tuple[float, int]:
        samples = of_batch.trace(maxIter=products, tol=-math.inf)
        return sum(samples) / len(samples), len(samples)

    return run


def curvlinops(name: str) -> Callable[[nn.Module, Data, Case], Run]:
    def prepared(network: nn.Module, data: Data, case: Case) -> Run:
        from curvlinops import HessianLinearOperator, hutchinson_trace, hutchpp_trace, xtrace

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

        def run(products: int) -> tuple[float, int]:
            torch.manual_seed(0)
            return float(estimator[name](operator, products)), products

        return run

    return prepared


def eigenthings(name: str) -> Callable[[nn.Module, Data, Case], Run]:
    """Its finite differences are off by more than half with random signs: autograd is used."""

    def prepared(network: nn.Module, data: Data, case: Case) -> Run:
        from hessian_eigenthings import HessianOperator, supervised_loss, trace

        operator = HessianOperator(network, [data], supervised_loss(nn.CrossEntropyLoss()))

        def run(products: int) -> tuple[float, int]:
            return trace(operator, num_matvecs=products, method=name, seed=0).estimate, products

        return run

    return prepared


OURS = ("antipgd auto", "antipgd hutch++", "antipgd xtrace", "antipgd hutchinson")


def ways(tolerance: float) -> dict[str, Callable[[nn.Module, Data, Case], Run]]:
    """Library and estimator by name; a first call prepares, a second runs."""
    rows = {name: ours(name.split()[1], tolerance) for name in OURS}
    rows |= {"PyHessian hutchinson": pyhessian}
    rows |= {f"curvlinops {n}": curvlinops(n) for n in ("hutchinson", "hutch++", "xtrace")}
    return rows | {f"eigenthings {n}": eigenthings(n) for n in ("hutchinson", "hutch++")}


SAMPLERS = {
    "antipgd": our_products,
    "PyHessian": pyhessian,
    "curvlinops": curvlinops("hutchinson"),
    "eigenthings": eigenthings("hutchinson"),
}
