"""One bout in whatever process: the problem of its seed, its steps, what came out."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from antipgd.paper.engines.engine import Result, Tell
from antipgd.paper.fight.bout import Bout
from antipgd.paper.fight.contestant import Contestant, contestant
from antipgd.paper.fight.match import Match
from antipgd.paper.fight.problem import TEST, Problem
from antipgd.paper.fight.problems import make
from antipgd.paper.fight.survival import survive
from antipgd.paper.fight.watching import Referee
from antipgd.paper.record import Record

_LOOKED = 50  # steps between two looks at whether the weights are finite


@dataclass
class Played:
    """The weights to be judged and what it took; or the step at which they were no numbers."""

    weights: Tensor
    seconds: float
    bytes: int
    gradients: int
    diverged_at: int | None = None


def play(problem: Problem, method: Contestant, match: Match) -> Played:
    """All steps of a bout."""
    with torch.no_grad():
        bout = Bout(problem, value=match.value, lr=match.lr, steps=match.steps, seed=match.seed,
                    order=method.order)  # fmt: skip
        w = problem.start()
        referee, began, diverged = Referee(problem, w), time.process_time(), None
        for n in range(1, match.steps + 1):
            bout.begin(n)
            w = method.step(bout, w)
            referee.weights(w, "step")
            if n == 1:
                referee.everything_else()
            if (n % _LOOKED == 0 or n in (1, match.steps)) and not bool(w.isfinite().all()):
                diverged = n
                break
        if diverged is None:
            w = method.final(bout, w)
            referee.weights(w, "final")
            diverged = None if bool(w.isfinite().all()) else match.steps
        took = time.process_time() - began
        referee.count(bout.gradients, bout.n, method.gradients)
        referee.everything_else()
        return Played(w, took, bout.bytes, bout.gradients, diverged)


def measured(problem: Problem, match: Match, played: Played) -> dict[str, float]:
    """Everything that is known of the judged weights."""
    found = problem.score(played.weights)
    if match.held_out == TEST and problem.sizes.network:
        found |= survive(problem, played.weights, lr=match.lr, seed=match.seed)  # type: ignore[arg-type]
    return found


def record_of(match: Match, played: Played, found: Mapping[str, float]) -> Record:
    """A bout as bookkeeping has it; one whose test loss is no number has diverged."""
    at = played.diverged_at
    if at is None and not math.isfinite(found["test_loss"]):
        at = match.steps
    took = {"seconds": played.seconds, "bytes": played.bytes, "gradients": played.gradients}
    rows = took if at is not None else {**found, **took}
    points = tuple((match.steps, name, _plain(value)) for name, value in rows.items())
    status = "ok" if at is None else "diverged"
    return Record(match, status, at, None, points, {}, None, None)


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def play_one(match: Match, *, tell: Tell, device: str, texts: Mapping[str, str]) -> list[Result]:
    """The work of an engine: one bout on one thread; `texts` are the methods' files by digest."""
    torch.set_num_threads(1)
    method = contestant(match.method, texts[match.source])
    with threadpool_limits(1), np.errstate(all="ignore"):  # divergence is a result
        problem = make(match.problem, match.seed, match.held_out)
        played = play(problem, method, match)
        found = {} if played.diverged_at is not None else measured(problem, match, played)
    return [record_of(match, played, found)]
