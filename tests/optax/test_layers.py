"""Layers that take turns, and σ in units of filters, in JAX: the draws are those of torch."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from antipgd.noise import draws
from antipgd.optax import add_correlated_noise, clean_params, perturb, perturbed
from antipgd.optax.state import _mark
from antipgd.torch import attach

SEED, SIGMA = 3, 0.25
SHAPES = {"a": {"bias": (4,), "weight": (4, 3)}, "b": {"bias": (2,), "weight": (2, 4)}}
LAYERS = ("a", "b")


def params():
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.standard_normal(shape), jnp.float32), SHAPES,
        is_leaf=lambda node: isinstance(node, tuple),
    )  # fmt: skip


def still(tree):
    return jax.tree.map(jnp.zeros_like, tree)


def unit(z, filters):
    """What σ of each element is multiplied by."""
    z = np.asarray(z, np.float64)
    size = float(f"{np.sqrt((z**2).mean()):.4g}")
    if not filters:
        return 1.0
    if z.ndim < 2:
        return size
    rows = np.sqrt((z**2).mean(axis=1, keepdims=True))
    return size * np.vectorize(lambda r: float(f"{r / size:.4g}"))(rows)


def carried(z, name, step, layers, filters):
    layer = name.partition(".")[0]
    if step < 1 or (layers == "one" and LAYERS[(step - 1) % 2] != layer):
        return np.zeros(z.shape)
    xi = draws(SEED, name, step, 0, z.size).reshape(z.shape)
    return SIGMA * unit(z, filters) * xi


@pytest.mark.parametrize("relative", [False, "filter"])
@pytest.mark.parametrize("layers", ["all", "one"])
def test_both_forms_carry_the_draws_of_the_reference(layers, relative):
    z = params()
    settings = {"seed": SEED, "layers": layers, "relative": relative}
    for make in (add_correlated_noise, perturb):
        tx = make(SIGMA, **settings)
        state, w = tx.init(z), z
        for step in range(1, 6):
            updates, state = jax.jit(tx.update)(still(z), state, w)
            w = optax.apply_updates(w, updates)
            seen = perturbed(z, state) if make is perturb else w
            for layer, of in seen.items():
                for own, leaf in of.items():
                    first = np.asarray(z[layer][own])
                    xi = carried(first, f"{layer}.{own}", step, layers, bool(relative))
                    assert np.allclose(leaf, first + xi, rtol=0, atol=4e-6), (step, layer, own)
                    if xi.any():
                        for wrong in (2 / 3, 3 / 2):
                            assert not np.allclose(leaf, first + wrong * xi, rtol=0, atol=1e-3)
        back = clean_params(state, w)
        for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(z), strict=True):
            assert np.allclose(a, b, rtol=0, atol=4e-6)


def test_the_same_noise_as_in_torch():
    z = params()
    tx = add_correlated_noise(SIGMA, seed=SEED, layers="one", relative="filter", hold=2)
    state, w = tx.init(z), z
    named = [(f"{layer}.{own}", torch.nn.Parameter(torch.tensor(np.asarray(z[layer][own]))))
             for layer in z for own in z[layer]]  # fmt: skip
    optimizer = torch.optim.SGD(named, lr=0.1)
    attach(optimizer, SIGMA, seed=SEED, layers="one", relative="filter", hold=2)
    for _ in range(5):
        updates, state = tx.update(still(z), state, w)
        w = optax.apply_updates(w, updates)
        for _, parameter in named:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        for name, parameter in named:
            layer, own = name.split(".")
            ours = parameter.detach().numpy()
            assert np.allclose(ours, w[layer][own], rtol=0, atol=4e-6), name


def test_antithetic_draws_stay_with_their_layer():
    z = params()
    tx = perturb(SIGMA, seed=SEED, layers="one", antithetic=True)
    state, seen = tx.init(z), []
    for _ in range(4):
        _, state = tx.update(still(z), state, z)
        w = perturbed(z, state)
        seen.append(jax.tree.map(lambda w, z: np.asarray(w - z), w, z))
    for plus, minus in ((seen[0], seen[1]), (seen[2], seen[3])):
        for a, b in zip(jax.tree.leaves(plus), jax.tree.leaves(minus), strict=True):
            assert np.allclose(a, -b, rtol=0, atol=1e-6)
    assert seen[0]["a"]["weight"].any()
    assert not seen[2]["a"]["weight"].any()


def test_resumed_midway_bit_for_bit():
    z = params()
    tx = add_correlated_noise(SIGMA, seed=SEED, layers="one", relative="filter")
    state, w = tx.init(z), z
    kept = None
    for step in range(6):
        updates, state = tx.update(still(z), state, w)
        w = optax.apply_updates(w, updates)
        if step == 2:
            kept = jax.tree.map(np.asarray, (state, w))
    leaves = jax.tree.leaves(kept[0])
    fresh = tx.init(jax.tree.map(lambda x: 2 * x, z))  # whose own filters are others
    again = jax.tree.unflatten(jax.tree.structure(fresh), map(jnp.asarray, leaves))
    other = jax.tree.map(jnp.asarray, kept[1])
    for _ in range(3):
        updates, again = tx.update(still(z), again, other)
        other = optax.apply_updates(other, updates)
    for a, b in zip(jax.tree.leaves(w), jax.tree.leaves(other), strict=True):
        assert np.array_equal(a, b)


def test_what_is_not_accepted_is_refused():
    for settings, message in (
        ({"layers": "two"}, "unknown layers 'two'"),
        ({"relative": "row"}, "relative must be True, False or 'filter'; got 'row'"),
    ):
        with pytest.raises(ValueError, match=message):
            perturb(SIGMA, **settings)
    with pytest.raises(ValueError, match="needs two layers or more that take noise"):
        perturb(SIGMA, layers="one").init({"w": jnp.ones(3), "v": jnp.ones(3)})
    one, all_ = perturb(SIGMA, layers="one"), perturb(SIGMA)
    with pytest.raises(ValueError, match="was begun with layers=one"):
        all_.update(still(params()), one.init(params()), params())
    mixed = all_.init(params())._replace(settings=one.init(params()).settings)
    with pytest.raises(ValueError, match="were begun with another noise"):
        one.update(still(params()), mixed, params())


def turns(params, steps):
    """The leaves that each draw is on."""
    tx = perturb(SIGMA, seed=SEED, layers="one")
    state, found = tx.init(params), []
    for _ in range(steps):
        _, state = tx.update(still(params), state, params)
        moved = jax.tree.map(lambda w, z: bool((w != z).any()), perturbed(params, state), params)
        found.append(jax.tree.leaves(moved))
    return found, state


def test_a_list_of_pairs_has_a_layer_for_each_pair():
    pairs = [(jnp.ones((3, 4)), jnp.ones(4)), (jnp.ones((4, 2)), jnp.ones(2))]
    first, second = [True, True, False, False], [False, False, True, True]
    for params in (pairs, {"mlp": pairs}, tuple(map(list, pairs))):
        found, _ = turns(params, 3)
        assert found == [first, second, first]
    found, _ = turns([*pairs, jnp.ones(3)], 3)  # what is no pair is a layer by itself
    assert found == [[*first, False], [*second, False], [False] * 4 + [True]]


def test_entries_of_one_list_are_layers():
    for params in ([jnp.ones(3)] * 3, {"ws": [jnp.ones(3)] * 2, "bias": jnp.ones(3)}):
        found, state = turns(params, 3)
        assert sorted(map(sum, found)) == [1, 1, 1]
        assert state.settings.layers == "one"


def test_a_list_of_pairs_begun_with_a_layer_for_each_leaf_goes_on_with_it():
    """States of old say no more than the word; they keep the turns that they were begun with."""
    pairs = [(jnp.ones((3, 4)), jnp.ones(4)), (jnp.ones((4, 2)), jnp.ones(2))]
    tx = perturb(SIGMA, seed=SEED, layers="one")
    state = tx.init(pairs)
    old = state.settings._replace(layers="one")
    with pytest.raises(ValueError, match="begun with another noise"):
        tx.update(still(pairs), state._replace(settings=old), pairs)
    state = state._replace(settings=old, mark=jnp.int32(_mark(old)))
    found = []
    for _ in range(4):
        _, state = tx.update(still(pairs), state, pairs)
        w = perturbed(pairs, state)
        moved = jax.tree.map(lambda w, z: bool((w != z).any()), w, pairs)
        found.append(jax.tree.leaves(moved))
    assert np.array_equal(found, np.eye(4, dtype=bool))


def test_marks_of_states_are_as_ever():
    for settings, mark in (
        ({"relative": "filter", "layers": "one"}, 1726652568),
        ({"relative": "filter"}, 1826635840),
        ({}, 1033948753),
    ):
        assert int(perturb(SIGMA, seed=SEED, **settings).init(params()).mark) == mark
