"""Inside Optax's wrappers: the noise is the same, and `clean_params` finds its state."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from antipgd.noise import draws
from antipgd.optax import (
    STATIC_ARGS,
    CorrelatedNoiseState,
    add_correlated_noise,
    anti_pgd,
    clean_params,
)

SIGMA, LR, STEPS = 0.05, 0.1, 6
PARAMS = {"a": {"w": jnp.linspace(-1, 1, 12).reshape(4, 3)}, "b": jnp.ones(5)}


def walk(tx, steps=STEPS, gradient=lambda params: params):
    params, state = PARAMS, tx.init(PARAMS)

    @jax.jit
    def step(params, state):
        updates, state = tx.update(gradient(params), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(steps):
        params, state = step(params, state)
    return params, state


def close(a, b, atol=1e-6):
    return jax.tree.all(jax.tree.map(lambda x, y: bool(np.allclose(x, y, atol=atol)), a, b))


NESTS = {
    "alone": lambda: optax.chain(optax.sgd(LR), add_correlated_noise(SIGMA)),
    "anti_pgd": lambda: anti_pgd(LR, SIGMA),
    "chain in chain": lambda: optax.chain(
        optax.identity(), optax.chain(optax.sgd(LR), add_correlated_noise(SIGMA))
    ),
    "named_chain": lambda: optax.named_chain(
        ("z", optax.sgd(LR)), ("a", add_correlated_noise(SIGMA))
    ),
    "inject_hyperparams": lambda: optax.inject_hyperparams(anti_pgd, static_args=STATIC_ARGS)(
        learning_rate=LR, sigma=SIGMA
    ),
    "inject a schedule": lambda: optax.chain(
        optax.sgd(LR),
        optax.inject_hyperparams(add_correlated_noise, static_args=STATIC_ARGS)(
            sigma=optax.constant_schedule(SIGMA)
        ),
    ),
    "apply_if_finite": lambda: optax.apply_if_finite(anti_pgd(LR, SIGMA), 3),
    "multi_transform": lambda: optax.multi_transform(
        {"x": anti_pgd(LR, SIGMA), "y": anti_pgd(LR, SIGMA)}, {"a": "x", "b": "y"}
    ),
    "masked twice": lambda: optax.chain(
        optax.sgd(LR),
        optax.masked(add_correlated_noise(SIGMA), {"a": {"w": True}, "b": False}),
        optax.masked(add_correlated_noise(SIGMA), {"a": {"w": False}, "b": True}),
    ),
    "MultiSteps": lambda: optax.MultiSteps(anti_pgd(LR, SIGMA), 1).gradient_transformation(),
    "everything": lambda: optax.apply_if_finite(
        optax.MultiSteps(
            optax.inject_hyperparams(anti_pgd, static_args=STATIC_ARGS)(LR, SIGMA), 1
        ).gradient_transformation(),
        3,
    ),
}


@pytest.mark.parametrize("nest", NESTS)
def test_the_same_noise_in_every_nest(nest):
    params, state = walk(NESTS[nest]())
    want, bare_state = walk(NESTS["alone"]())
    assert close(params, want)
    assert close(clean_params(state, params), clean_params(bare_state, want))
    assert close(jax.jit(clean_params)(state, params), clean_params(state, params), 1e-7)


@pytest.mark.parametrize("nest", NESTS)
def test_clean_params_follow_the_optimizer_alone_when_the_gradient_is_constant(nest):
    def ones(params):
        return jax.tree.map(jnp.ones_like, params)

    params, state = walk(NESTS[nest](), gradient=ones)
    want = jax.tree.map(lambda w: w - STEPS * LR, PARAMS)
    assert not close(params, want, 0.01)
    assert close(clean_params(state, params), want, 1e-5)


@pytest.mark.parametrize("taps", [(1, -1), (1, -0.5, -0.5), (1, 0, -1)])
def test_clean_params_for_other_taps(taps):
    tx = optax.chain(optax.sgd(LR), add_correlated_noise(SIGMA, taps=taps))
    params, state = walk(tx, gradient=lambda params: jax.tree.map(jnp.ones_like, params))
    want = jax.tree.map(lambda w: w - STEPS * LR, PARAMS)
    assert close(clean_params(state, params), want, 1e-5)


def test_clean_params_before_the_first_step_are_the_params():
    tx = anti_pgd(LR, SIGMA)
    assert close(clean_params(tx.init(PARAMS), PARAMS), PARAMS, 0)


def test_masked_by_optax_leaves_the_rest_alone():
    mask = {"a": {"w": True}, "b": False}
    tx = optax.masked(add_correlated_noise(SIGMA), mask)
    zeros = jax.tree.map(jnp.zeros_like, PARAMS)
    updates, state = tx.update(zeros, tx.init(PARAMS))
    assert (updates["b"] == 0).all()
    assert np.allclose(updates["a"]["w"].ravel(), SIGMA * draws(0, "a.w", 1, 0, 12))
    assert clean_params(state, PARAMS)["b"] is PARAMS["b"]


def test_an_injected_sigma_can_be_changed_and_still_telescopes():
    tx = optax.inject_hyperparams(add_correlated_noise, static_args=STATIC_ARGS)(sigma=1.0)
    params = {"w": jnp.zeros(100)}
    state = tx.init(params)
    update = jax.jit(tx.update)
    zero = params
    for sigma in (1.0, 3.0, 0.5, 0.0):
        state.hyperparams["sigma"] = jnp.asarray(sigma, jnp.float32)
        updates, state = update(zero, state, params)
        params = optax.apply_updates(params, updates)
        assert np.abs(clean_params(state, params)["w"]).max() < 1e-5
    assert update._cache_size() == 1
    assert np.abs(params["w"]).max() < 1e-5


def test_accumulation_equals_a_large_batch():
    X = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)

    def loss(params, x):
        return jnp.mean((x @ params["w"] - x[:, 0]) ** 2)

    def train(tx, batches):
        params = {"w": jnp.ones(6)}
        state = tx.init(params)

        @jax.jit
        def step(params, state, x):
            updates, state = tx.update(jax.grad(loss)(params, x), state, params)
            return optax.apply_updates(params, updates), state

        for x in batches:
            params, state = step(params, state, x)
        return params, state

    small = optax.MultiSteps(anti_pgd(LR, SIGMA, 0.9, seed=2), 4).gradient_transformation()
    accumulated, state = train(small, list(X.reshape(4, 10, 6)) * 5)
    large, large_state = train(anti_pgd(LR, SIGMA, 0.9, seed=2), [X] * 5)
    assert close(accumulated, large)
    assert close(clean_params(state, accumulated), clean_params(large_state, large))
    half, state = train(small, list(X.reshape(4, 10, 6)) * 5 + list(X.reshape(4, 10, 6))[:2])
    assert close(half, large)
    assert close(clean_params(state, half), clean_params(large_state, large))


def test_a_step_that_is_not_finite_adds_no_noise_and_is_not_counted():
    tx = optax.apply_if_finite(anti_pgd(LR, SIGMA), 3)
    params, state = PARAMS, tx.init(PARAMS)
    for bad in (False, True, False, False, True):
        gradient = jax.tree.map(lambda w, bad=bad: w * (jnp.nan if bad else 1.0), params)
        updates, state = tx.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    want, bare = walk(NESTS["alone"](), 3)
    assert close(params, want)
    assert close(clean_params(state, params), clean_params(bare, want))


def test_tree_map_params_and_tree_get():
    tx = anti_pgd(LR, SIGMA, 0.9)
    state = tx.init(PARAMS)
    doubled = optax.tree_map_params(tx, lambda x: x + 1, state)
    assert close(doubled[0][0].trace, jax.tree.map(jnp.ones_like, PARAMS))
    assert isinstance(doubled[1], CorrelatedNoiseState)
    assert jax.tree.structure(doubled) == jax.tree.structure(state)
    assert optax.tree_utils.tree_get(state, "sigmas").shape == (1,)


def test_a_state_survives_a_trip_through_its_leaves():
    params, state = walk(NESTS["alone"]())
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
    fresh = jax.tree.structure(NESTS["alone"]().init(PARAMS))
    restored = jax.tree.unflatten(fresh, leaves)
    assert close(clean_params(restored, params), clean_params(state, params), 0)
