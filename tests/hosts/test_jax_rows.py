"""antipgd.optax.perturb in flax nnx, flax linen and equinox: what is asked of all three."""

import jax
import numpy as np
import optax
import pytest

from antipgd.optax import perturb, perturbed
from jax_rigs import SEED, SIGMA, base, batch, rows
from matrix import refused


def noise(seed=SEED, sigma=SIGMA):
    return perturb(sigma, seed=seed, law="rademacher")


def begin(kind, seed=SEED):
    return kind(optax.chain(base(), noise(seed)))


def assert_same(tree, other):
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    for one, two in pairs:
        np.testing.assert_array_equal(one, two)


def differ(tree, other):
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    return any((np.asarray(one) != np.asarray(two)).any() for one, two in pairs)


@rows("weights", "evaluation")
def test_weights_and_evaluation(kind):
    ours, theirs, plain = begin(kind), kind(base(), explicit=True), kind(base())
    for n in range(8):
        ours.train()
        theirs.train()
        plain.update(plain.gradient(plain.params, *batch(0, 1)))
        assert int(np.asarray(ours.opt_state[1].count)) == n + 1
        clean = theirs.predict(theirs.params)
        np.testing.assert_array_equal(ours.predict(ours.params), clean)
        assert differ(ours.predict(perturbed(ours.params, ours.opt_state)), clean)
    assert ours.opt_state[1].settings.names == kind.names
    assert_same(ours.params, theirs.params)
    assert differ(ours.params, plain.params)


@rows("resume")
def test_resume(kind):
    ours = begin(kind)
    for _ in range(5):
        ours.train()
    other = begin(kind)
    other.load(ours.saved())
    for _ in range(4):
        assert differ(other.read(), other.params)
        assert_same(other.read(), ours.read())
        ours.train()
        other.train()
        assert_same(other.params, ours.params)


@rows("accumulation")
def test_micro_batches_are_one_step(kind):
    """optax.MultiSteps around the whole chain: the reference's noise changes with its steps."""
    chain = optax.chain(base(), noise())
    ours = kind(optax.MultiSteps(chain, 4).gradient_transformation())
    theirs = kind(optax.MultiSteps(base(), 4).gradient_transformation(), explicit=True)
    start = jax.tree.map(np.array, theirs.params)  # nnx writes into its own
    for n in range(5):
        ours.train(parts=4)
        theirs.train(parts=4)
        assert int(np.asarray(ours.opt_state.inner_opt_state[1].count)) == n + 1
        assert_same(ours.params, theirs.params)
    assert differ(ours.params, start)


@rows("averages")
def test_averages_are_of_clean_weights(kind):
    ours, theirs = begin(kind), kind(base(), explicit=True)
    slow, expected, mean = ours.params, theirs.params, jax.tree.map(np.zeros_like, theirs.params)
    total = mean
    for _ in range(6):
        ours.train()
        theirs.train()
        slow = optax.incremental_update(ours.params, slow, step_size=0.1)
        expected = optax.incremental_update(theirs.params, expected, step_size=0.1)
        total = jax.tree.map(np.add, total, ours.params)
        mean = jax.tree.map(np.add, mean, theirs.params)
    assert_same(slow, expected)
    assert_same(total, mean)
    np.testing.assert_array_equal(ours.predict(slow), theirs.predict(expected))


@rows("bad_input")
def test_bad_input(kind, record_property):
    for sigma in (-0.1, float("nan"), float("inf"), "0.1"):
        with pytest.raises((ValueError, TypeError), match="sigma"):
            kind(noise(sigma=sigma))
    with pytest.raises(ValueError, match="taps"):
        perturb(SIGMA, taps=(1,))
    plain = kind(base())
    with refused(record_property, ValueError, "no state of perturb"):
        perturbed(plain.params, plain.opt_state)
    twice = kind(optax.chain(base(), noise(), noise()))
    with refused(record_property, ValueError, "is there twice for"):
        perturbed(twice.params, twice.opt_state)
    ours, smaller = begin(kind), begin(kind)
    leaves = jax.tree.leaves(smaller.params)
    with pytest.raises(ValueError, match=r"params|leaves|names"):
        perturbed(leaves[:2], ours.opt_state)
