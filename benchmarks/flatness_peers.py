"""Each library's way to the trace of the networks in `flatness_cases`, for `flatness.py`."""

import math
import warnings
from collections.abc import Callable
from contextlib import ExitStack

import torch
from curvlinops import HessianLinearOperator, hutchinson_trace, hutchpp_trace, xtrace
from hessian_eigenthings import HessianOperator, supervised_loss
from hessian_eigenthings import trace as eigenthings_trace
from pyhessian import hessian
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from antipgd.flatness import hessian_trace
from antipgd.flatness.measuring import measuring
from antipgd.flatness.probes import SKETCH
from flatness_cases import Case

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
