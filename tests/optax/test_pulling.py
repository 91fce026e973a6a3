"""Every optimizer of Optax with the w-form behind it or in it: `clean_params` is right or refuses.

Zero gradients, no decay: then the optimizer alone stays where it is or goes its way, and with noise
the clean weights must be there too.
"""

import inspect

import jax
import jax.numpy as jnp
import optax
import pytest
from optax import contrib

from antipgd.optax import add_correlated_noise, clean_params, nests, perturb, perturbed

SIGMA, STEPS = 0.01, 9
PARAMS = {"w": jnp.linspace(-1, 1, 40).reshape(8, 5), "b": jnp.linspace(0.5, 1, 5)}
ZERO = jax.tree.map(jnp.zeros_like, PARAMS)
REFUSED = "pulls the weights towards .* antipgd.optax.perturb in place of add_correlated_noise"

# What these must be given; the others have defaults or take a learning rate alone.
GIVEN = {
    "learning_rate": 0.01, "weight_decay": 0.0, "eta": 0.01, "key": 0, "gamma": 0.5, "alpha": 0.5,
    "base_optimizer": optax.sgd(0.01), "optimizer": optax.sgd(0.01),
    "adv_optimizer": optax.chain(contrib.normalize(), optax.sgd(0.05)), "rank": 2,
}  # fmt: skip
ORDINARY = [
    "adabelief", "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan",
    "amsgrad", "lamb", "lars", "lion", "noisy_sgd", "novograd", "optimistic_adam_v2",
    "optimistic_gradient_descent", "polyak_sgd", "radam", "rmsprop", "rprop", "sgd", "sign_sgd",
    "sm3", "yogi", "acprop", "ademamix", "adopt", "dog", "dowg", "galore", "momo", "momo_adam",
    "muon", "sophia", "simplified_ademamix",
]  # fmt: skip
PULLING = [
    "cocob", "madgrad", "mechanize", "schedule_free", "schedule_free_adamw", "schedule_free_sgd",
]  # fmt: skip


def make(name):
    factory = getattr(optax, name, None) or getattr(contrib, name)
    parameters = inspect.signature(factory).parameters
    given = {k: v for k, v in GIVEN.items() if k in parameters and k != "alpha"}
    if name == "optimistic_gradient_descent":
        given |= {"alpha": 0.7, "beta": 0.1}
    return optax.with_extra_args_support(factory(**given))


def nothing(params):
    return sum(0.0 * jnp.sum(leaf) for leaf in jax.tree.leaves(params))


def walk(tx, steps=STEPS):
    params, state = PARAMS, tx.init(PARAMS)
    for _ in range(steps):
        updates, state = tx.update(ZERO, state, params, value=jnp.float32(0), obj_fn=nothing)
        params = optax.apply_updates(params, updates)
    return params, state


def furthest(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(jnp.abs(x - y).max()) for x, y in pairs)


def apart(name):
    """How far the clean weights are from where the optimizer goes alone."""
    params, state = walk(optax.chain(make(name), add_correlated_noise(SIGMA)))
    return furthest(clean_params(state, params), walk(make(name))[0])


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_optimizers_are_cleaned(name):
    assert apart(name) < 1e-6


@pytest.mark.parametrize("name", PULLING)
def test_optimizers_that_pull_are_refused_and_rightly(name, monkeypatch):
    with pytest.raises(ValueError, match=REFUSED):
        apart(name)
    monkeypatch.setattr(nests, "PULLING", {})
    assert apart(name) > 0.02 * SIGMA


INSIDE = {
    "mechanize": lambda noise: contrib.mechanize(optax.chain(optax.sgd(0.1), noise)),
    "schedule_free": lambda noise: contrib.schedule_free(optax.chain(optax.sgd(0.1), noise), 0.1),
    "schedule_free in MultiSteps": lambda noise: optax.MultiSteps(
        contrib.schedule_free(optax.chain(optax.sgd(0.1), noise), 0.1), 2
    ).gradient_transformation(),
    "sam": lambda noise: contrib.sam(
        optax.chain(optax.sgd(0.1), noise), GIVEN["adv_optimizer"], sync_period=2
    ),
}


@pytest.mark.parametrize("nest", INSIDE)
def test_noise_inside_them_is_refused_by_name_and_perturb_is_the_way_out(nest):
    tx = INSIDE[nest](add_correlated_noise(SIGMA))
    with pytest.raises(ValueError, match=rf"optax\.contrib\.{nest.split()[0]} {REFUSED}"):
        clean_params(tx.init(PARAMS), PARAMS)
    tx = INSIDE[nest](perturb(SIGMA))
    state = tx.init(PARAMS)
    assert furthest(clean_params(state, PARAMS), PARAMS) == 0
    assert furthest(perturbed(PARAMS, state), PARAMS) == 0


def test_lookahead():
    tx = optax.lookahead(optax.chain(optax.sgd(0.1), add_correlated_noise(SIGMA)), 3, 0.5)
    params = optax.LookaheadParams.init_synced(PARAMS)
    state = tx.init(params)
    for _ in range(STEPS):
        updates, state = tx.update(ZERO, state, params)
        params = optax.apply_updates(params, updates)
    with pytest.raises(ValueError, match=rf"optax\.lookahead {REFUSED}"):
        clean_params(state, params.fast)
    behind = optax.chain(optax.lookahead(optax.sgd(0.1), 3, 0.5), add_correlated_noise(SIGMA))
    with pytest.raises(ValueError, match=rf"optax\.lookahead {REFUSED}"):
        clean_params(behind.init(params), params)


def test_other_leaves_may_be_pulled():
    averaged = contrib.schedule_free(optax.sgd(0.1), 0.1)
    noisy = optax.chain(optax.sgd(0.1), add_correlated_noise(SIGMA))
    tx = optax.multi_transform({"x": averaged, "y": noisy}, {"w": "x", "b": "y"})
    params, state = walk(tx)
    assert furthest(clean_params(state, params), PARAMS) < 1e-6
    masked = optax.chain(
        optax.masked(averaged, {"w": True, "b": False}),
        add_correlated_noise(SIGMA, mask={"w": False, "b": True}),
    )
    params, state = walk(masked)
    assert furthest(clean_params(state, params), PARAMS) < 1e-6
    both = optax.chain(tx, add_correlated_noise(SIGMA, seed=1))
    with pytest.raises(ValueError, match="schedule_free pulls"):
        clean_params(both.init(PARAMS), PARAMS)


def test_the_list_names_what_optax_has():
    for kind, (name, field) in nests.PULLING.items():
        assert hasattr(optax, name.rpartition(".")[2]) or hasattr(contrib, name.rpartition(".")[2])
        state = getattr(optax, kind, None) or getattr(contrib, kind)
        assert field in state._fields or kind == "LookaheadState"
