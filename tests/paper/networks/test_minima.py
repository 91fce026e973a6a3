"""At a minimum or not, by hand; what goes on; and comparisons that are of minima or of none."""

from dataclasses import replace

import numpy as np
import pytest
from made_up import END, NOISY, gone_on, trained, tuned

from antipgd.paper.networks.minima import (
    at_minimum,
    better,
    extensions,
    flatter,
    judged,
    unmeasured,
)
from antipgd.paper.networks.scales import EXTENSION
from antipgd.paper.networks.spec import trace_at

WORDS = ("a.b", "it is so", "§1", "here")


@pytest.mark.parametrize(("kind", "loss", "right", "is_one"), [
    ("cross_entropy", 0.01, 1.0, True), ("cross_entropy", 0.0101, 1.0, False),
    ("cross_entropy", 0.0001, 699 / 700, False), ("cross_entropy", float("inf"), 1.0, False),
    ("squared", 0.001, 0.9, True), ("squared", 0.00101, 1.0, False),
])  # fmt: skip
def test_a_minimum_fits_its_images(kind, loss, right, is_one):
    made = trained("gd", loss=loss, right=right)
    assert at_minimum(replace(made, run=replace(made.run, loss=kind))) == is_one


def test_it_is_the_cleanest_weights_that_are_at_one():
    anti, pgd = trained("anti"), trained("pgd")
    assert at_minimum(anti, NOISY)  # at z; at w its loss is 1
    assert not at_minimum(pgd, NOISY)  # which has no z
    assert at_minimum(pgd)
    assert at_minimum(trained("gd", norm="none"))
    assert not at_minimum(replace(anti, status="diverged", diverged_at=3))


def test_all_arms_of_a_seed_in_which_one_missed_go_on_without_noise():
    arms = [("gd", 70), ("sgd", 16), ("anti", 70)]
    records = [trained(method, seed, batch) for method, batch in arms for seed in range(3)]
    assert extensions(records) == []
    missed = [trained("anti", 1, loss=0.02) if r.run.method == "anti" and r.run.seed == 1 else r
              for r in records]  # fmt: skip
    longer = extensions([*missed, tuned("gd", 0.1, 0.5, "lr", seed=1)])
    assert [(run.method, run.batch, run.seed) for run in longer] == [(*arm, 1) for arm in arms]
    for run in longer:
        assert (run.epochs, run.extends) == (END + EXTENSION, END)
        assert not any(run.noise_acts(epoch) for epoch in range(END + 1, run.epochs + 1))
    again = [*missed, *(gone_on(r, loss=0.02) for r in missed if r.run.seed == 1)]
    assert extensions(again) == longer  # once, whatever came of it


def place(method, accuracies, epoch=None, **changes):
    return [trained(method, seed, accuracy=one, **changes)
            for seed, one in enumerate(accuracies)], epoch  # fmt: skip


@pytest.mark.parametrize(("ours", "verdict", "value"), [
    ((0.52, 0.53, 0.54), "holds", 3.0), ((0.46, 0.47, 0.48), "fails", -3.0),
    ((0.501, 0.503, 0.505), "level", 0.3), ((0.499, 0.497, 0.495), "level", -0.3),
    ((0.48, 0.50, 0.53), "undecided", 1 / 3),
])  # fmt: skip
def test_a_higher_accuracy_is_in_points_and_level_within_one(ours, verdict, value):
    claim = better(*WORDS, place("anti", ours), place("gd", (0.5, 0.5, 0.5)))
    assert (claim.verdict, claim.n) == (verdict, 3)
    assert claim.value == pytest.approx(value)
    early = better(*WORDS, place("anti", ours, NOISY), place("gd", (0.5, 0.5, 0.5)))
    assert early.value == pytest.approx(value - 10)  # at z, where the noise ends


def test_one_seed_that_is_not_at_a_minimum_leaves_the_comparison_open_with_all_seeds_shown():
    good, bad = place("gd", (0.5, 0.5, 0.5)), place("anti", (0.52, 0.53, 0.54))
    bad[0][1] = trained("anti", 1, accuracy=0.53, loss=0.5, right=0.9)
    for ours, theirs, sign in ((bad, good, 1), (good, bad, -1)):
        claim = better(*WORDS, ours, theirs)
        assert (claim.verdict, claim.n, claim.p) == ("not at a minimum", 3, None)
        assert claim.value == pytest.approx(3 * sign)
        assert claim.low < claim.value < claim.high
        assert "not at a minimum: anti in 1 of 3 seeds (training loss 0.5)" in claim.tested
    both = better(*WORDS, bad, place("pgd", (0.5, 0.5, 0.5), loss=0.1))
    assert both.tested.endswith(
        "anti in 1 of 3 seeds (training loss 0.5) and pgd in 3 of 3 seeds (training loss 0.1)"
    )
    assert better(*WORDS, place("anti", (0.5, 0.5)), place("pgd", (0.5, 0.5), NOISY)).verdict == (
        "not at a minimum"
    )  # at w, under noise


def test_differences_are_judged_with_a_margin_or_without():
    at = [place("anti", (0.5, 0.5, 0.5))]
    assert judged(*WORDS, [0.4, 0.5, 0.6], at).verdict == "level"
    assert judged(*WORDS, [0.4, 0.5, 0.6], at, margin=0.1).verdict == "holds"
    assert judged(*WORDS, [0.4, 0.5, 0.6], at, margin=None).verdict == "holds"
    assert judged(*WORDS, [-0.4, -0.5, -0.6], at, margin=None).verdict == "fails"
    missed = judged(*WORDS, [0.4, 0.5, 0.6], [place("gd", (0.5,) * 3, loss=0.1)], margin=None)
    assert (missed.verdict, missed.value) == ("not at a minimum", pytest.approx(0.5))


@pytest.mark.parametrize(("trace", "verdict"), [(2.0, "holds"), (8.0, "fails"), (4.0, "level")])
def test_flatter_is_a_ratio_of_the_measure_named(trace, verdict):
    ours, theirs = place("anti", (0.5,) * 3, trace=trace), place("gd", (0.5,) * 3)
    claim = flatter(*WORDS, trace_at(0.01), ours, theirs)
    assert (claim.verdict, claim.value) == (verdict, pytest.approx(trace / 4))


def test_where_nothing_was_measured_the_largest_losses_are_shown():
    ours = [trained("anti", seed, loss=loss) for seed, loss in enumerate((0.001, 0.2, 0.004))], None
    theirs = [trained("gd", seed, loss=loss) for seed, loss in enumerate((0.003, 0.1, 0.002))], None
    for claim in (flatter(*WORDS, trace_at(0.01), ours, theirs),
                  unmeasured(*WORDS, [theirs, ours])):  # fmt: skip
        assert (claim.verdict, claim.n) == ("not at a minimum", 3)
        assert claim.value == pytest.approx(np.mean([0.003, 0.2, 0.004]))
        assert "largest training loss by seed" in claim.tested
    assert unmeasured(*WORDS, [place("gd", (0.5, 0.5))]) is None
