"""What a trace of the Hessian costs, against the libraries people use for it.

`make bench-flatness`. The task: tr ∇²L of a half-trained network, half of the 95 % interval at most
2 % of it. Ours decides by itself how many products with the Hessian that takes. The others take the
number they are told: they are given the least that the spread of their estimator needs (see
`Spread`), which nobody knows beforehand and which costs them nothing here.

All on one thread, in process CPU seconds. Seconds per product: all libraries in one process, turn
by turn, medians over rounds. Whole tasks: each in a process of its own, with the growth of its peak
resident memory. A task is not run but computed from products and seconds per product, marked *, if
it would take more than two minutes, or if it is the others' Hutchinson, whose seconds are
proportional to its products; the fastest other library is run in any case. Short ones are run three
times, ours and the fastest other in turn, and the median of the three ratios counts.
Adds to benchmarks/results.json.
"""

import json
import math
import os
import platform
import random
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch

from flatness_cases import CASES, Case
from flatness_peers import Data, objective, way

TOLERANCE = 0.02
QUANTILE = 1.96
SKETCH = 64  # vectors of the reference, at two products each; then samples, at one
ROUNDS = 4
FULL_RUN, SHORT_RUN = 120, 40  # seconds
BIG = "ResNet18, width 64"  # only seconds and memory per product
LIBRARIES = {
    "antipgd": ("auto", "hutch++", "hutchinson"),
    "PyHessian": ("hutchinson",),
    "curvlinops": ("hutchinson", "hutch++", "xtrace"),
    "eigenthings": ("hutchinson", "hutch++"),
}
PACKAGES = ("torch", "PyHessian", "curvlinops-for-pytorch", "hessian-eigenthings")


@dataclass(frozen=True)
class Spread:
    """A trace to compare with, and the variance of a sample with the first j sketch vectors out.

    Sketch HΩ, its orthonormal basis Q and HQ, and Hg of independent probes g give the residual
    samples of Hutch++ for every rank j ≤ SKETCH, as the bases are nested; rank 0 is Hutchinson.
    """

    trace: float
    sem: float
    products_taken: int
    variances: list[float]

    def samples(self, rank: int) -> float:
        """How many meet the tolerance."""
        variance = self.variances[min(rank, len(self.variances) - 1)]
        return QUANTILE**2 * variance / (TOLERANCE * self.trace) ** 2

    def products(self, estimator: str) -> int:
        """The least number of products that is enough.

        The others split Hutch++ into thirds. XTrace is taken to have independent samples, each in
        the subspace of all the other probes; they are correlated, so it needs more than that.
        """
        if estimator == "hutchinson":
            return math.ceil(self.samples(0))
        used, spare = (3, 0) if estimator == "hutch++" else (2, 1)
        count = 2
        while count < self.samples(count - spare):
            count += 1
        return used * count

    def least(self) -> int:
        """With Hutch++, if the best rank were known beforehand."""
        return math.ceil(min(2 * j + self.samples(j) for j in range(len(self.variances))))


def load(case_name: str, folder: str) -> tuple[torch.nn.Module, Data, Case]:
    torch.set_num_threads(1)
    case, path = CASES[case_name], Path(folder) / f"{case_name}.pt"
    network = case.network()
    if path.exists():
        network.load_state_dict(torch.load(path))
    else:
        case.train(network)
        torch.save(network.state_dict(), path)
    return network, case.data(), case


def prepare(case_name: str, folder: str) -> dict[str, float]:
    """Train and save."""
    network, (images, labels), _ = load(case_name, folder)
    with torch.no_grad():
        scores = network(images)
    return {
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "loss": float(torch.nn.functional.cross_entropy(scores, labels)),
        "accuracy": float((scores.argmax(1) == labels).float().mean()),
    }


def reference(case_name: str, folder: str) -> Spread:
    """See `Spread`."""
    network, data, case = load(case_name, folder)
    draw = torch.Generator().manual_seed(1)
    with objective(network, data) as function:

        def signs(count: int) -> torch.Tensor:
            return torch.randint(2, (count, function.size), generator=draw).mul(2).sub(1).float()

        basis = torch.linalg.qr(function.products(signs(SKETCH)).T)[0].T
        within = (basis @ function.products(basis).T).double()
        forms, along, image = [], [], []
        for _ in range(case.samples // 16):
            probes = signs(16)
            found = function.products(probes)
            forms.append(torch.linalg.vecdot(probes.double(), found.double()))
            along.append((probes @ basis.T).double())
            image.append((found @ basis.T).double())
    own, a, b = torch.cat(forms), torch.cat(along), torch.cat(image)
    variances = []
    for rank in range(SKETCH + 1):
        x, h = a[:, :rank], within[:rank, :rank]
        rest = own - 2 * (x * b[:, :rank]).sum(1) + (x @ h * x).sum(1)
        variances.append(float(rest.var()))
    trace = float(within.trace() + rest.mean())
    sem = math.sqrt(variances[-1] / case.samples)
    return Spread(trace, sem, 2 * SKETCH + case.samples, variances)


def seconds_per_product(case_name: str, folder: str) -> dict[str, float]:
    network, data, case = load(case_name, folder)
    runs = {name: way(name, TOLERANCE)(network, data, case) for name in LIBRARIES}
    counts = dict.fromkeys(runs, case.group // 4) | {"antipgd": case.group}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(1 + (2 if case_name == BIG else ROUNDS)):
        for name in random.sample(list(runs), len(runs)):
            begin = time.process_time()
            runs[name](counts[name])
            if number:  # the first round warms up
                seconds[name].append((time.process_time() - begin) / counts[name])
    return {name: median(times) for name, times in seconds.items()}


def task(case_name: str, folder: str, name: str, products: int) -> dict[str, float]:
    """One estimate, or a few products, with CPU seconds and the growth of peak memory in MiB."""
    network, data, case = load(case_name, folder)
    prepared = way(name, TOLERANCE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    estimate, taken, met = prepared(network, data, case)(products)
    return {
        "trace": estimate,
        "products": taken,
        "met": met,
        "seconds": time.process_time() - begin,
        "memory": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
    }


def child(function: Callable[..., Any], *arguments: Any) -> Any:
    """In a forked process of its own, which is quick and starts from the same memory."""
    with get_context("fork").Pool(1) as pool:
        return pool.apply(function, arguments)


def computed(name: str, spread: Spread, unit: dict[str, float]) -> dict[str, Any]:
    library, estimator = name.split()
    count = spread.least() if estimator == "auto" else spread.products(estimator)
    return {"way": name, "products": count, "seconds": count * unit[library], "run": False}


def run(case_name: str, folder: str, line: dict[str, Any], spread: Spread) -> dict[str, Any]:
    found = child(task, case_name, folder, line["way"], line["products"])
    return {"way": line["way"], "run": True, **found, "error": found["trace"] / spread.trace - 1}


def is_run(line: dict[str, Any]) -> bool:
    own = line["way"].startswith("antipgd")
    affordable = line["seconds"] <= FULL_RUN and (own or not line["way"].endswith("hutchinson"))
    return affordable or line["way"] == "antipgd auto"


def compare(case_name: str, folder: str) -> dict[str, Any]:
    about = child(prepare, case_name, folder)
    spread = child(reference, case_name, folder)
    unit = child(seconds_per_product, case_name, folder)
    names = [f"{library} {e}" for library, estimators in LIBRARIES.items() for e in estimators]
    rows = {name: computed(name, spread, unit) for name in names}

    def best() -> dict[str, Any]:
        others = [line for name, line in rows.items() if not name.startswith("antipgd")]
        return min(others, key=lambda line: line["seconds"])

    wanted = [name for name in names if is_run(rows[name])]
    for name in random.sample(wanted, len(wanted)):
        rows[name] = run(case_name, folder, rows[name], spread)
    while not best()["run"]:
        rows[best()["way"]] = run(case_name, folder, best(), spread)
    auto, plain = rows["antipgd auto"], spread.products("hutchinson")
    pairs = [(auto["seconds"], best()["seconds"])]
    while auto["seconds"] < SHORT_RUN and len(pairs) < 3:
        again = [run(case_name, folder, line, spread)["seconds"] for line in (auto, best())]
        pairs.append((again[0], again[1]))
    ratios = {
        "seconds_auto_over_best_peer": median(own / other for own, other in pairs),
        "best_peer": best()["way"],
        "products_hutchinson_over_auto": plain / auto["products"],
        "products_hutchinson_over_least": plain / spread.least(),
    }
    result = {"case": case_name, **about, "reference": asdict(spread), "seconds_per_product": unit,
              "rows": list(rows.values()), "ratios": ratios}  # fmt: skip
    show(result)
    return result


def show(result: dict[str, Any]) -> None:
    spread = Spread(**result["reference"])
    print(
        f"\n{result['case']}, {result['parameters']:,} parameters, loss {result['loss']:.2f}, "
        f"accuracy {result['accuracy']:.0%}; 1 thread, CPU time"
        f"\nreference: {spread.trace:.5g} ± {QUANTILE * spread.sem / spread.trace:.2%}, "
        f"{spread.products_taken} products"
        f"\n{'':26}{'seconds':>9}{'products':>10}{'ms/product':>12}{'MiB':>8}{'error':>9}"
    )
    for line in result["rows"]:
        mark, rest = "*", ""
        if line["run"]:
            missed = "" if line["met"] else "  tolerance not met"
            mark, rest = " ", f"{line['memory']:8.0f}{line['error']:+9.2%}{missed}"
        print(
            f"{line['way']:26}{line['seconds']:8.1f}{mark}{line['products']:10}"
            f"{line['seconds'] / line['products'] * 1e3:12.1f}{rest}"
        )
    ratios = result["ratios"]
    slower, fewer = ratios["seconds_auto_over_best_peer"], ratios["products_hutchinson_over_auto"]
    most = ratios["products_hutchinson_over_least"]
    verdict = "holds" if fewer >= 2 else "MISSED" if most >= 2 else "this spectrum has no room"
    print(
        f"auto / {ratios['best_peer']}, seconds: {slower:.2f}, wanted at most 1.10: "
        f"{'holds' if slower <= 1.1 else 'MISSED'}"
        f"\nHutchinson / auto, products: {fewer:.2f}, wanted at least 2: {verdict}; with the best "
        f"rank known beforehand {most:.2f}"
    )


def big(folder: str) -> dict[str, Any]:
    """Seconds and memory per product where a whole trace would take too long."""
    about = child(prepare, BIG, folder)
    unit = child(seconds_per_product, BIG, folder)
    memory = {name: child(task, BIG, folder, name, 2)["memory"] for name in LIBRARIES}
    print(f"\n{BIG}, {about['parameters']:,} parameters, untrained; 1 thread, CPU time")
    print(f"{'':26}{'s/product':>9}{'MiB':>10}")
    for name in LIBRARIES:
        print(f"{name:26}{unit[name]:9.2f}{memory[name]:10.0f}")
    return {"case": BIG, **about, "seconds_per_product": unit, "memory": memory}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cases = [compare(name, folder) for name in ("MLP", "ResNet18, width 8")]
        cases.append(big(folder))
    path = Path(__file__).with_name("results.json")
    stored = json.loads(path.read_text()) if path.exists() else {}
    stored["flatness"] = {
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "versions": {name: version(name) for name in PACKAGES},
        "tolerance": TOLERANCE,
        "threads": 1,
        "cases": cases,
    }
    path.write_text(json.dumps(stored, indent=1) + "\n")
    print(f"\nwritten to {path.name}")


if __name__ == "__main__":
    main()
