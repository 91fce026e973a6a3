"""Run by test_sharding.py on four CPU devices: the same noise for every sharding."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from antipgd.optax import anti_pgd, clean_params, perturb, perturbed

SHAPES = {"w": (8, 12), "v": (4, 3, 8)}
SPECS = {
    "w": (P("x"), P(None, "y"), P("y", "x"), P(("x", "y"))),
    "v": (P("y", None, "x"), P(None, None, "y")),
}

RELATIVE = ({"relative": True}, {"relative": "filter", "filter_axis": (0, -1)})


def train(params, law, steps=3):
    tx = anti_pgd(0.1, 0.5, 0.9, law=law, seed=4)
    state = jax.jit(tx.init)(params)

    @jax.jit
    def step(params, state):
        updates, state = tx.update(jax.tree.map(jnp.sin, params), state, params)
        return optax.apply_updates(params, updates), state

    kept = None
    for _ in range(steps):
        params, state = step(params, state)
        places = jax.tree.map(lambda x: x.sharding, (params, state))
        assert kept is None or jax.tree.leaves(places) == kept, "the sharding changed"
        kept = jax.tree.leaves(places)
    return params, clean_params(state, params)


def noisy(params, law, **relative):
    """w after two steps of the forward form, σ relative."""
    tx = perturb(0.5, law=law, seed=4, **relative)
    state = jax.jit(tx.init)(params)
    for _ in range(2):
        _, state = jax.jit(tx.update)(params, state)
    return jax.jit(perturbed)(params, state), state.scales


def numbers(tree):
    return jax.tree.map(np.asarray, tree)


def same(a, b, atol):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=atol)


def whole():
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(s).astype(np.float32) for name, s in SHAPES.items()}


def named_shardings(axis_type, laws):
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(axis_type,) * 2)
    for law in laws:
        alone = numbers(train({k: jnp.asarray(v) for k, v in whole().items()}, law))
        alone_noisy = [
            numbers(noisy({k: jnp.asarray(v) for k, v in whole().items()}, law, **relative))
            for relative in RELATIVE
        ]
        combinations = itertools.zip_longest(*SPECS.values(), fillvalue=P())
        with jax.set_mesh(mesh):
            for specs in combinations:
                placed = {
                    name: jax.device_put(value, NamedSharding(mesh, spec))
                    for (name, value), spec in zip(whole().items(), specs, strict=True)
                }
                made = train(placed, law)
                for name, spec in zip(SHAPES, specs, strict=True):
                    want = NamedSharding(mesh, spec)
                    for tree in made:
                        assert tree[name].sharding.is_equivalent_to(want, tree[name].ndim)
                same(numbers(made), alone, 1e-6)
                for relative, noise in zip(RELATIVE, alone_noisy, strict=True):
                    same(numbers(noisy(placed, law, **relative)), noise, 1e-6)


def no_communication():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    w = jax.device_put(jnp.zeros((64, 10)), NamedSharding(mesh, P("x")))
    tx = anti_pgd(0.1, 0.5)
    compiled = jax.jit(tx.update).lower({"w": w}, tx.init({"w": w}), {"w": w}).compile()
    forward = jax.jit(perturbed).lower({"w": w}, perturb(0.5).init({"w": w})).compile()
    text = compiled.as_text() + forward.as_text()
    for word in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
        assert word not in text, word
    assert "f32[64,10]" not in text  # every device makes its own part only


def replicated_in_shard_map(**checks):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    params, X = {"w": jnp.ones(6)}, jnp.arange(48.0).reshape(8, 6) / 48
    tx = anti_pgd(0.1, 0.5)

    def step(params, state, X):
        gradient = jax.grad(lambda params: jnp.mean((X @ params["w"]) ** 2))(params)
        if checks:  # the gradient of a replicated array is summed by JAX itself otherwise
            gradient = jax.lax.psum(gradient, "x")
        gradient = jax.tree.map(lambda g: g / 4, gradient)
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    def whole_step(params, state):
        gradient = jax.grad(lambda params: jnp.mean((X @ params["w"]) ** 2))(params)
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    mapped = jax.jit(
        jax.shard_map(step, mesh=mesh, in_specs=(P(), P(), P("x")), out_specs=P(), **checks)
    )
    one, other = (params, tx.init(params)), (params, tx.init(params))
    for _ in range(3):
        one, other = mapped(*one, X), whole_step(*other)
    same(numbers(one), numbers(other), 1e-6)


def parts_in_shard_map_are_refused():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    params = {"w": jnp.ones(8)}
    tx = anti_pgd(0.1, 0.5)

    def step(params, state):
        return tx.update(params, state, params)[0]

    mapped = jax.shard_map(step, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
    message = r"inside shard_map, leaf 'w' differs along mesh axes \['x'\]"
    with pytest.raises(ValueError, match=message):
        mapped(params, tx.init(params))


def replicated_in_pmap():
    tx = anti_pgd(0.1, 0.5)
    params = {"w": jnp.ones(6)}
    copies = jax.tree.map(lambda x: jnp.stack([x] * 4), (params, tx.init(params)))
    updates, _ = jax.pmap(lambda params, state: tx.update(params, state, params))(*copies)
    alone, _ = tx.update(params, tx.init(params), params)
    for row in np.asarray(updates["w"]):
        np.testing.assert_allclose(row, alone["w"], atol=1e-6)


if __name__ == "__main__":
    assert jax.device_count() == 4
    named_shardings(AxisType.Auto, ("gaussian", "rademacher"))
    print("auto")
    named_shardings(AxisType.Explicit, ("gaussian",))
    print("explicit")
    no_communication()
    replicated_in_shard_map()
    replicated_in_shard_map(check_vma=False)
    parts_in_shard_map_are_refused()
    print("shard_map")
    replicated_in_pmap()
    print("pmap")
