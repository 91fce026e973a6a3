"""Everything in the package that steps with noise, one adapter each, and what it is compared with.

A member is a function from a `Case` to the weights after some of its steps. It joins by one entry
in `MEMBERS`, and must then walk the trajectory of `antipgd.noise.reference` in every case: the same
bits, unless its entry says how far its draws may be. The base steps multiply by powers of two, or
are summed in textbook order, so that no library has a way of its own to round them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import torch

import antipgd.torch
import antipgd.torch.adding
import antipgd.torch.gpu.choosing
from antipgd.noise import ANTI, WHITE, Constant, Linear, Window, draws, reference, stream_key
from antipgd.noise.injection import injection_coefficients
from antipgd.noise.inplace import Targets
from antipgd.noise.taps import Taps, telescopes
from antipgd.paper.simulation.local import run_local
from antipgd.paper.simulation.problems import Problem, name_of
from antipgd.paper.simulation.spec import make_run

SEED, SIGMA, ETA = 5, 0.05, 0.5
SIZE, STEPS = 131, 12  # more elements than a block of signs has
LOOKS = (1, 2, 3, 5, 8, STEPS)
TAPS = (WHITE, ANTI, (1.0, 0.0, -0.75, -0.25))
SCHEDULES = {"constant": Constant(), "window": Window(2, 7), "linear": Linear(0, 10, 1.0, 0.25)}
WRITTEN = {  # the same, as runs name them
    "constant": {},
    "window": {"start": 2, "stop": 7},
    "linear": {"schedule": "linear:0:10:1:0.25"},
}

Weights = dict[int, np.ndarray]  # by step
CURVATURES = 2.0 ** -(np.arange(SIZE) % 4)


@dataclass(frozen=True)
class Case:
    """One noise: its law, its colour, how σ changes, and the type of the weights.

    Held and antithetic draws are for taps (1, −1), where a draw that stays is one that leaves and
    comes again with the σ that it had: so the reference need not know of them.
    """

    law: str
    taps: tuple[float, ...]
    schedule: str
    dtype: str
    hold: int = 1
    antithetic: bool = False
    momentum: float = 0.0
    nesterov: bool = False

    def _came(self, step):
        """The step with which the draw came that is there at a step."""
        return (step - 1) // self.hold * self.hold + 1

    def sigma(self, step):
        return SIGMA * SCHEDULES[self.schedule](self._came(step))

    def draw(self, step):
        number, sign = (self._came(step) - 1) // self.hold + 1, 1
        if self.antithetic:
            number, sign = (number + 1) // 2, 1 if number % 2 else -1
        return sign * draws(SEED, "w", number, 0, SIZE, self.law)

    def _descent(self, gradient):
        """The base step: v ← βv + g, w ← w − ηv, or w − η(g + βv)."""
        v = 0.0

        def base(w):
            nonlocal v
            beta, g = w.dtype.type(self.momentum), gradient(w)
            v = beta * v + g
            return w - w.dtype.type(ETA) * (g + beta * v if self.nesterov else v)

        return base

    def expected(self, gradient, start) -> Weights:
        """The trajectory of the reference."""
        assert self.taps == ANTI or (self.hold, self.antithetic) == (1, False)
        path = reference.perturbed(
            self._descent(gradient), start.astype(self.dtype), STEPS, draw=self.draw,
            sigma=self.sigma, taps=self.taps,
        )  # fmt: skip
        return {n: w for n, w in enumerate(path) if n in LOOKS}


def cases(law: str, dtypes: tuple[str, ...], taps: tuple[Taps, ...]) -> list[Case]:
    return [Case(law, *rest) for rest in product(taps, SCHEDULES, dtypes)]


# -- where noise is added to: a bowl for every library, the valley for the compiled simulator -----

BOWL = np.linspace(-1, 1, SIZE)
VALLEY = np.append(np.full(SIZE - 1, np.sqrt(1.0 / (SIZE - 1))), 0.5)


def bowl_gradient(w):
    return CURVATURES.astype(w.dtype) * w


def valley_gradient(w):
    u, v, norm2 = w[:-1], w[-1], 0.0
    for one in u:
        norm2 += one * one
    return np.append(v * v * u, v * norm2)


@dataclass(frozen=True)
class Bowl(Problem):
    """½Σh_j w_j², for the simulator."""

    def start(self, rng):
        return BOWL.copy()

    def loss(self, W, data):
        return (CURVATURES * W**2).sum(axis=1) / 2

    def gradient(self, W, data, rows=None, label_shift=None):
        return CURVATURES * W


# -- the members ----------------------------------------------------------------------------------


def cpu_kernels(case: Case) -> Weights:
    w, seen = BOWL.astype(case.dtype), {}
    targets = Targets([w], [stream_key(SEED, "w")])
    for n in range(1, STEPS + 1):
        sigmas = [case.sigma(k) if k >= 1 else 0.0 for k in range(n, n - len(case.taps), -1)]
        w[:] = w - w.dtype.type(ETA) * bowl_gradient(w)
        targets.inject(n, [injection_coefficients(case.taps, sigmas)], case.law)
        seen[n] = w.copy()
    return seen


def torch_attached(case: Case) -> Weights:
    w = torch.nn.Parameter(torch.tensor(BOWL.astype(case.dtype)))
    h = torch.tensor(CURVATURES.astype(case.dtype))
    optimizer, seen = torch.optim.SGD([("w", w)], lr=ETA, momentum=case.momentum,
                                      nesterov=case.nesterov), {}  # fmt: skip
    antipgd.torch.attach(optimizer, sigma=SIGMA, seed=SEED, law=case.law, taps=case.taps,
                         schedule=SCHEDULES[case.schedule], hold=case.hold)  # fmt: skip
    for n in range(1, STEPS + 1):
        w.grad = h * w.detach()
        optimizer.step()
        seen[n] = w.detach().numpy().copy()
    return seen


def torch_plain(case: Case) -> Weights:
    with patch.object(antipgd.torch.adding, "compiled_targets", lambda: None):
        return torch_attached(case)


def torch_on_gpu(case: Case) -> Weights:
    """The GPU kernel in Triton's interpreter, on CPU tensors."""
    with patch.object(antipgd.torch.gpu.choosing, "DEVICES", ("cuda", "cpu")):
        return torch_attached(case)


def optax_chain(case: Case) -> Weights:
    import jax
    import optax

    from antipgd.optax import anti_pgd

    with jax.enable_x64(case.dtype == "float64"):
        tx = anti_pgd(ETA, SIGMA, seed=SEED, law=case.law, taps=case.taps, hold=case.hold,
                      antithetic=case.antithetic, schedule=SCHEDULES[case.schedule])  # fmt: skip
        params, h = {"w": jax.numpy.asarray(BOWL.astype(case.dtype))}, CURVATURES.astype(case.dtype)
        state, seen = tx.init(params), {}
        for n in range(1, STEPS + 1):
            updates, state = tx.update({"w": h * params["w"]}, state, params)
            params = optax.apply_updates(params, updates)
            seen[n] = np.asarray(params["w"])
    return seen


def optax_forward(case: Case) -> Weights:
    import jax
    import optax

    from antipgd.optax import perturb, perturbed

    with jax.enable_x64(case.dtype == "float64"):
        noise = perturb(SIGMA, seed=SEED, law=case.law, taps=case.taps, hold=case.hold,
                        antithetic=case.antithetic, schedule=SCHEDULES[case.schedule])  # fmt: skip
        tx = optax.chain(optax.sgd(ETA), noise)
        params, h = {"w": jax.numpy.asarray(BOWL.astype(case.dtype))}, CURVATURES.astype(case.dtype)
        state, seen = tx.init(params), {}
        for n in range(1, STEPS + 1):
            gradient = {"w": h * perturbed(params, state)["w"]}
            updates, state = tx.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
            seen[n] = np.asarray(perturbed(params, state)["w"])
    return seen


def _simulated(case: Case, problem: str, settings: dict) -> Weights:
    runs = [
        make_run(problem, settings, "noise", lr=ETA, sigma=SIGMA, seed=SEED, steps=n, law=case.law,
                 taps=case.taps, measure=(n,), relax=False, hold=case.hold,
                 antithetic=case.antithetic, momentum=case.momentum, nesterov=case.nesterov,
                 **WRITTEN[case.schedule])
        for n in LOOKS
    ]  # fmt: skip
    return {record.run.steps: np.array(record.weights["w"]) for record in run_local(runs, 1)}


def simulator_numpy(case: Case) -> Weights:
    return _simulated(case, name_of(Bowl), {})


def simulator_compiled(case: Case) -> Weights:
    return _simulated(case, "widening_valley", {"d": SIZE - 1, "v": 0.5})


class Member(NamedTuple):
    """What steps, from where, in which types and colours, how many ulp off its draws may be, and
    what else it knows of `OPTIONS`."""

    walk: Callable[[Case], Weights]
    gradient: Callable[[np.ndarray], np.ndarray] = bowl_gradient
    start: np.ndarray = BOWL
    dtypes: tuple[str, ...] = ("float32", "float64")
    draws_ulp: int = 0
    taps: tuple[Taps, ...] = TAPS
    options: tuple[str, ...] = ()


OPTIONS = {
    "hold": {"hold": 3},
    "antithetic": {"antithetic": True},
    "both": {"hold": 2, "antithetic": True},
    "momentum": {"momentum": 0.5},
    "nesterov": {"momentum": 0.5, "nesterov": True, "hold": 2},
}
DRAWN = ("hold", "antithetic", "both")
MEMBERS = {
    "CPU kernels": Member(cpu_kernels),
    "torch": Member(torch_attached, options=("hold", "momentum", "nesterov")),
    "torch without numba": Member(torch_plain, options=("hold",)),
    "torch on a GPU": Member(torch_on_gpu, dtypes=("float32",)),
    "Optax": Member(optax_chain, draws_ulp=4, options=DRAWN),
    "Optax, forward": Member(
        optax_forward, draws_ulp=4, taps=tuple(filter(telescopes, TAPS)), options=DRAWN
    ),
    "simulator in NumPy": Member(simulator_numpy, dtypes=("float64",), options=tuple(OPTIONS)),
    "simulator compiled": Member(
        simulator_compiled, valley_gradient, VALLEY, ("float64",), options=tuple(OPTIONS)
    ),
}
KNOWN = [(name, option) for name, member in MEMBERS.items() for option in member.options]
