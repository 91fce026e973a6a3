"""What SAM flattens, and how much noise to train with against noise at test.

(Ours.) SAM's gradient is taken at w + ρ g/‖g‖. With all examples it is said to lower the largest
eigenvalue of the Hessian (Bartlett et al., arXiv 2210.01513; Wen et al., arXiv 2211.05729), with
one example at a time its trace: so with all examples it is to end with the lower λ_max, with one
(a tenth of the learning rate, ten times the steps, from the start on, as it has no noise in a
minimum) with the lower trace, at equal ρ and Ση; and with a lower λ_max than GD's.

"Incorruptible networks" (arXiv 2602.07320) trains for noise on the weights at test: more noise in
training than at test is to be best, SAM to do better still where that noise is small and poorly
where it is large. Noise in training is two-point here, on after GD has converged until the end; the
test loss is the mean over 200 draws of N(0, σ²) on the weights, for σ = 0.02 and 0.1, trained with
1, 1.5 and 2 σ. (Where σ is small noise has not arrived after these steps, and more of it is faster,
too.) Of SAM's radii 0.2 and 0.5 the better one on other seeds is compared with the best
of the three, chosen there, too. Quadratic regression and matrix sensing, half their usual rate.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import HOLDS, Claim, compare_ratio, smaller, times
from antipgd.paper.record import Record
from antipgd.paper.results import Results, Values
from antipgd.paper.simulation.after_noise import PLACES, relative
from antipgd.paper.simulation.spec import Run, make_run

SHOWS = (
    "Left, largest eigenvalue and trace of SAM with one example at a time over those with all; "
    "right, test loss under noise of σ on the weights, trained with more noise or by SAM, over "
    "that of training with σ: geometric means over {seeds} seeds with two standard errors."
)
SEEDS = 16
FRESH = 9000  # settings were chosen on the seeds below
KEYS = ("regression", "sensing")
NOISY = {"regression": 8_000, "sensing": 12_000}  # steps after the descent
SIGMAS, FACTORS, DRAWS = (0.02, 0.1), (1.0, 1.5, 2.0), 200
RADII, SHOWN_RADIUS, SLOWER = (0.2, 0.5), 0.2, 10
# Which did best on seeds 0 to 7, by place and σ at test.
BEST_FACTOR = {("regression", 0.02): 2.0, ("regression", 0.1): 1.0,
               ("sensing", 0.02): 2.0, ("sensing", 0.1): 1.0}  # fmt: skip
BEST_RADIUS = {("regression", 0.02): 0.5, ("regression", 0.1): 0.5,
               ("sensing", 0.02): 0.2, ("sensing", 0.1): 0.2}  # fmt: skip
MARGIN = 0.1
BARTLETT, WEN, INCORRUPTIBLE = "arXiv 2210.01513", "arXiv 2211.05729", "arXiv 2602.07320"


def _run(key: str, method: str, sigma: float, seed: int, batch: int | None = None) -> Run:
    place, slow = PLACES[key], SLOWER if batch else 1
    start = 0 if batch else place.descent
    noise: dict[str, Any] = {"sigma": sigma, "start": start} if sigma else {}
    return make_run(place.problem, place.settings, method, lr=place.lr / 2 / slow, batch=batch,
                    steps=slow * (place.descent + NOISY[key]), seed=seed, measure=(0,),
                    relax=False, **noise)  # fmt: skip


def runs(seeds: int) -> list[Run]:
    found = []
    for key in KEYS:
        for seed in range(FRESH, FRESH + seeds):
            found += [_run(key, "gd", 0.0, seed), _run(key, "sam", SHOWN_RADIUS, seed, batch=1)]
            found += [_run(key, "sam", radius, seed) for radius in RADII]
            found += [_run(key, "two_point", factor * sigma, seed)
                      for sigma in SIGMAS for factor in FACTORS]  # fmt: skip
    return found


def _records(results: Results, key: str, method: str, sigma: float, batch: int | None = None
             ) -> list[Record]:  # fmt: skip
    return results.select(problem=PLACES[key].problem, method=method, sigma=sigma, batch=batch)


def _largest(records: Sequence[Record]) -> Values:
    """λ_max at the end, by seed; infinite where a run diverged."""
    found = []
    for record in records:
        if "w" not in record.weights or record.status != "ok":
            found.append(np.inf)
            continue
        problem = record.run.make_problem()
        H = problem.hessian(np.array(record.weights["w"]), record.run.make_data(problem))
        found.append(float(np.linalg.eigvalsh(H)[-1]))
    return np.array(found)


def _trace(records: Sequence[Record]) -> Values:
    return np.array([record.column("trace", "w")[1][-1] if record.status == "ok" else np.inf
                     for record in records])  # fmt: skip


def _corrupted(records: Sequence[Record], sigma: float) -> Values:
    """Mean test loss under noise on the weights, by seed; the same draws for all."""
    found = []
    for record in records:
        if record.status != "ok":
            found.append(np.inf)
            continue
        problem, w = record.run.make_problem(), np.array(record.weights["z"])
        rng = np.random.Generator(np.random.Philox(key=record.run.seed))
        noisy = w + sigma * rng.standard_normal((DRAWS, len(w)))
        found.append(float(problem.test_loss(noisy, record.run.make_data(problem)).mean()))
    return np.array(found)


def _sam_claims(results: Results, key: str) -> list[Claim]:
    place = PLACES[key].words
    none = _records(results, key, "gd", 0.0)
    whole = _records(results, key, "sam", SHOWN_RADIUS)
    single = _records(results, key, "sam", SHOWN_RADIUS, 1)
    end = f"at the end, ρ = {SHOWN_RADIUS:g}"
    return [
        smaller(f"sam_and_noise.falls_{key}", f"(ours) {place}: SAM with all examples ends with a "
                "lower largest eigenvalue than GD", BARTLETT, f"λ_max {end}", _largest(whole),
                _largest(none)),
        smaller(f"sam_and_noise.largest_{key}", f"(ours) {place}: SAM with all examples ends with "
                "a lower largest eigenvalue than with one", WEN, f"λ_max {end}", _largest(whole),
                _largest(single)),
        smaller(f"sam_and_noise.trace_{key}", f"(ours) {place}: SAM with one example at a time "
                "ends with a lower trace than with all", WEN, f"trace {end}", _trace(single),
                _trace(whole)),
    ]  # fmt: skip


def _noise_claims(results: Results, key: str, sigma: float) -> list[Claim]:
    place, tested = PLACES[key].words, f"test loss under σ = {sigma:g}, {DRAWS} draws"

    def trained(factor: float) -> Values:
        return _corrupted(_records(results, key, "two_point", factor * sigma), sigma)

    sam = _corrupted(_records(results, key, "sam", BEST_RADIUS[key, sigma]), sigma)
    best = trained(BEST_FACTOR[key, sigma])
    found = [
        compare_ratio(f"sam_and_noise.more_{key}_{sigma:g}", f"(ours) {place}: trained with "
                      f"{FACTORS[1]:g} σ it stands noise of σ = {sigma:g} better than trained with "
                      "σ", INCORRUPTIBLE, tested, trained(FACTORS[1]), trained(1.0), MARGIN)
    ]  # fmt: skip
    if sigma == SIGMAS[0]:
        found.append(
            compare_ratio(f"sam_and_noise.small_{key}", f"(ours) {place}: SAM stands noise of σ = "
                          f"{sigma:g} better than any training with noise", INCORRUPTIBLE, tested,
                          sam, best, MARGIN)
        )  # fmt: skip
    else:
        found.append(
            compare_ratio(f"sam_and_noise.large_{key}", f"(ours) {place}: training with noise "
                          f"stands noise of σ = {sigma:g} better than SAM", INCORRUPTIBLE, tested,
                          best, sam, MARGIN)
        )  # fmt: skip
    return found


def claims(results: Results) -> list[Claim]:
    found = [one for key in KEYS for one in _sam_claims(results, key)]
    return found + [one for key in KEYS for sigma in SIGMAS
                    for one in _noise_claims(results, key, sigma)]  # fmt: skip


def words(claims: Sequence[Claim]) -> str:
    """The answer, from what was judged."""
    if not claims:
        return ""

    def told(name: str) -> str:
        some = [c for c in claims if c.id.startswith(f"sam_and_noise.{name}")]
        held = sum(c.verdict == HOLDS for c in some)
        return f"{held} of {len(some)}: {', '.join(times(c, '.2g') for c in some)}"

    return (
        "What does SAM flatten? With all examples it ends with a lower largest eigenvalue than GD "
        f"({told('falls_')}) and than with one example at a time ({told('largest_')}), with one "
        f"at a time with a lower trace ({told('trace_')}). Should training have more noise than "
        f"test? Half as much again is better in {told('more_')} (regression with σ = "
        f"{SIGMAS[0]:g} and {SIGMAS[1]:g} at test, then matrix sensing). SAM is "
        "better than any noise in training where the noise at test is small in "
        f"{told('small_')}; noise in training is better than SAM where it is large "
        f"in {told('large_')}."
    )


def _flatness_panel(results: Results) -> figures.Panel:
    at = np.arange(len(KEYS), dtype=float)
    single, whole = ([_records(results, key, "sam", SHOWN_RADIUS, batch) for key in KEYS]
                     for batch in (1, None))  # fmt: skip
    series = [
        relative(at + by, [*map(measure, single)], [*map(measure, whole)], label, colour)
        for by, measure, label, colour in (
            (-0.1, _largest, "largest eigenvalue", "#7a4fa3"),
            (0.1, _trace, "trace", "#1f6fb4"),
        )
    ]
    ticks = [(x, PLACES[key].words) for x, key in zip(at, KEYS, strict=True)]
    return figures.Panel("SAM, one example over all", series, "", "", "linear", "log", ticks=ticks)


def _noise_panel(results: Results) -> figures.Panel:
    order = [(key, sigma) for key in KEYS for sigma in SIGMAS]
    at = np.arange(len(order), dtype=float)

    def values(method: str, size: Any) -> list[Values]:
        return [_corrupted(_records(results, key, method, size(key, sigma)), sigma)
                for key, sigma in order]  # fmt: skip

    same = values("two_point", lambda key, sigma: sigma)
    series = [
        relative(at + by, values("two_point", lambda key, sigma, by=factor: by * sigma), same,
                 f"{factor:g} σ", colour)
        for by, factor, colour in zip((-0.15, 0.0), FACTORS[1:], ("#3d7a3f", "#17968a"),
                                      strict=True)
    ]  # fmt: skip
    sam = values("sam", lambda key, sigma: BEST_RADIUS[key, sigma])
    series.append(relative(at + 0.15, sam, same, "SAM", "#8a6d3b"))
    ticks = [(x, f"{PLACES[key].words}\nσ = {sigma:g}")
             for x, (key, sigma) in zip(at, order, strict=True)]  # fmt: skip
    return figures.Panel("test loss under noise σ, over training with σ", series, "", "", "linear",
                         "log", ticks=ticks)  # fmt: skip


def plot(results: Results) -> figures.Figure:
    return figures.draw([_flatness_panel(results), _noise_panel(results)], columns=2, width=5.2)
