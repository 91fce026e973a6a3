"""σ in units of filters where libraries put them: the columns of Flax's kernels, rows of others."""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from antipgd.noise import draws
from antipgd.optax import (
    STATIC_ARGS,
    add_correlated_noise,
    anti_pgd,
    clean_params,
    perturb,
    perturbed,
)
from antipgd.optax.state import Settings

SEED, SIGMA = 3, 0.25
TIMES = (0.01, 0.1, 1.0, 10.0)


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def still(tree):
    return jax.tree.map(jnp.zeros_like, tree)


def noise_after(tx, params, steps=2):
    """What the weights carry of it, and the state."""
    state, w = tx.init(params), params
    for _ in range(steps):
        updates, state = tx.update(still(params), state, w)
        w = optax.apply_updates(w, updates)
    if state.settings.forward:
        w = perturbed(params, state)
    return jax.tree.map(lambda w, z: np.asarray(w, np.float64) - np.asarray(z), w, params), state


def wanted(name, z, axes, step=2):
    """ξ by the format, σ times the root mean square of what differs along these axes only."""
    others = tuple(i for i in range(z.ndim) if i not in axes)
    unit = np.sqrt(np.mean(np.square(z.astype(np.float64)), axis=others, keepdims=True))
    return SIGMA * unit * draws(SEED, name, step, 0, z.size).reshape(z.shape)


def same(found, want):
    """To the four digits that sizes have; two thirds and three halves of it are something else."""
    fits = [np.allclose(found, k * want, rtol=2e-3, atol=2e-6) for k in (1, 2 / 3, 3 / 2)]
    return fits == [True, False, False]


BY_NAME = [
    ("dense.kernel", (6, 4), (1,)),  # Flax: (in, out)
    ("image.kernel", (3, 2, 4, 5), (3,)),  # HWIO
    ("attention.query.kernel", (6, 2, 3), (1, 2)),  # (in, heads, of a head)
    ("attention.out.kernel", (2, 3, 6), (2,)),
    ("embed.embedding", (7, 3), (0,)),
    ("embed.embeddings", (7, 3), (0,)),  # Haiku
    ("linear.weight", (4, 6), (0,)),  # Equinox, and torch: (out, in)
    ("conv.weight", (4, 3, 2, 2), (0,)),
    ("cell.weight_hh", (8, 2), (0,)),
    ("attention.query.bias", (2, 3), ()),
    ("conv.bias", (5, 1, 1), ()),  # Equinox
    ("norm.scale", (2, 3), ()),
]


@pytest.mark.parametrize("make", [add_correlated_noise, perturb])
def test_names_tell_which_axes_count_the_outputs(make):
    params = {}
    for name, shape, _ in BY_NAME:
        *modules, last = name.split(".")
        inner = params
        for module in modules:
            inner = inner.setdefault(module, {})
        inner[last] = normal(*shape) * np.arange(1, shape[-1] + 1, dtype=np.float32)
    params = jax.tree.map(jnp.asarray, params)
    found, _ = noise_after(make(SIGMA, seed=SEED, relative="filter"), params)
    for name, _, axes in BY_NAME:
        own, z = found, params
        for part in name.split("."):
            own, z = own[part], z[part]
        assert same(own, wanted(name, np.asarray(z), axes)), name


def test_each_output_of_a_dense_layer_gets_its_own_noise():
    z = normal(64, 4)
    z *= np.asarray(TIMES, np.float32) / np.sqrt((z**2).mean(axis=0))
    found, _ = noise_after(perturb(0.1, relative="filter"), {"kernel": jnp.asarray(z)})
    sizes = np.sqrt((found["kernel"] ** 2).mean(axis=0) / (z**2).mean(axis=0))
    assert (abs(sizes - 0.1) < 0.035).all()  # 64 draws: within four standard errors


@pytest.mark.parametrize(
    ("filter_axis", "axes"),
    [
        (0, (0,)),
        (-1, (2,)),
        ((0, -1), (0, 2)),
        ([-1, 0], (0, 2)),
        ((), ()),
        (np.int64(1), (1,)),
        (lambda path, leaf: leaf.ndim - 2 if path == "w" else 0, (1,)),
    ],
)
def test_the_axis_that_is_given(filter_axis, axes):
    z = normal(4, 5, 6) * np.arange(1, 7, dtype=np.float32)
    params = {"b": jnp.ones(3), "w": jnp.asarray(z)}
    tx = perturb(SIGMA, seed=SEED, relative="filter", filter_axis=filter_axis)
    found, state = noise_after(tx, params)
    assert same(found["w"], wanted("w", z, axes))
    assert same(found["b"], wanted("b", np.ones(3), ()))
    back = clean_params(state, params)
    assert jnp.array_equal(back["w"], z)


def test_a_function_may_leave_a_leaf_to_its_name():
    z = {"kernel": normal(3, 4), "table": normal(3, 4)}
    tx = perturb(SIGMA, seed=SEED, relative="filter",
                 filter_axis=lambda path, leaf: () if path == "table" else None)  # fmt: skip
    found, _ = noise_after(tx, jax.tree.map(jnp.asarray, z))
    assert same(found["kernel"], wanted("kernel", z["kernel"], (1,)))
    assert same(found["table"], wanted("table", z["table"], ()))


def test_what_no_name_tells_is_asked_for():
    tx = perturb(SIGMA, relative="filter")
    for params, name in (
        ({"linear": {"w": jnp.ones((3, 4))}}, r"'linear\.w' of shape \(3, 4\)"),
        ([(jnp.ones((3, 4)), jnp.ones(4))], r"'0\.0'"),
        (jnp.ones((3, 4)), "'0'"),
    ):
        with pytest.raises(ValueError, match=rf"axis of leaf {name}.*give filter_axis="):
            tx.init(params)
    tx.init({"w": jnp.ones(3), "empty": jnp.ones((0, 3)), "one": jnp.ones(())})
    masked = perturb(SIGMA, relative="filter", mask={"w": False, "v": True})
    masked.init({"w": jnp.ones((3, 4)), "v": jnp.ones(4)})


@pytest.mark.parametrize("make", [add_correlated_noise, perturb, partial(anti_pgd, 0.1)])
def test_what_is_not_accepted_is_refused(make):
    for relative in (False, True):
        with pytest.raises(ValueError, match=f"of relative='filter'; got relative={relative}"):
            make(SIGMA, relative=relative, filter_axis=0)
    for bad in ("last", 1.5, True, (0, "x")):
        with pytest.raises(ValueError, match="filter_axis must be a whole number"):
            make(SIGMA, relative="filter", filter_axis=bad)
    for bad, shown in ((2, "2"), (-3, "-3"), ((0, -2), r"\(0, -2\)"), (lambda *_: 0.5, r"0\.5")):
        tx = make(SIGMA, relative="filter", filter_axis=bad)
        with pytest.raises(ValueError, match=rf"leaf 'w' has axes from -2 to 1.*got {shown}"):
            tx.init({"w": jnp.ones((3, 4))})


def test_equinox_as_torch():
    """Linear and Conv begin with their outputs; the bias of a Conv is one filter, as a vector."""
    keys = jax.random.split(jax.random.key(0))
    model = (eqx.nn.Linear(6, 4, key=keys[0]), eqx.nn.Conv2d(2, 5, 3, key=keys[1]))
    params = eqx.filter(model, eqx.is_inexact_array)
    found, _ = noise_after(perturb(SIGMA, seed=SEED, relative="filter"), params)
    for i, layer in enumerate(params):
        assert same(found[i].weight, wanted(f"{i}.weight", np.asarray(layer.weight), (0,)))
        assert same(found[i].bias, wanted(f"{i}.bias", np.asarray(layer.bias), ()))


def test_begun_with_filters_along_other_axes():
    params = {"kernel": jnp.asarray(normal(4, 4))}
    last, first = (perturb(SIGMA, relative="filter", filter_axis=axis) for axis in (-1, 0))
    said = "filters of leaf 'kernel' are those along axis 1, but the transformation has axis 0"
    with pytest.raises(ValueError, match=said):
        first.update(still(params), last.init(params), params)
    by_name = perturb(SIGMA, relative="filter")  # means the same
    by_name.update(still(params), last.init(params), params)
    mixed = first.init(params)._replace(settings=last.init(params).settings)
    with pytest.raises(ValueError, match="begun with another noise"):
        last.update(still(params), mixed, params)
    after = jax.jit(last.update)(still(params), mixed, params)[1]  # compiled, it cannot raise
    assert np.isnan(jax.jit(perturbed)(params, after)["kernel"]).all()


class OldSettings(NamedTuple):
    """As they were pickled before there was filter_axis."""

    seed: int = SEED
    law: str = "gaussian"
    taps: tuple[float, ...] = (1.0, -1.0)
    relative: bool | str = "filter"
    hold: int = 1
    antithetic: bool = False
    forward: bool = True
    names: tuple[str, ...] = ("d.bias", "d.kernel")
    layers: str = "all"


def test_states_of_old_go_on():
    """Rows of the first axis were filters, and said no more than the word; now filter_axis=0."""
    assert Settings._fields == OldSettings._fields  # lest flax refuse its files
    z = normal(6, 4)
    params = {"d": {"kernel": jnp.asarray(z), "bias": jnp.ones(4)}}
    state = perturb(SIGMA, seed=SEED, relative="filter", filter_axis=0).init(params)
    assert state.settings == OldSettings()
    assert int(state.mark) == -621196924
    _, state = perturb(SIGMA, seed=SEED, relative="filter", filter_axis=0).update(
        still(params), state, params
    )
    found = np.asarray(perturbed(params, state)["d"]["kernel"]) - z
    assert same(found, wanted("d.kernel", z, (0,), step=1))
    with pytest.raises(ValueError, match="those along axis 0, but the transformation has axis 1"):
        perturb(SIGMA, seed=SEED, relative="filter").update(still(params), state, params)


def test_where_all_filters_are_rows_nothing_more_is_kept():
    params = {"a": {"weight": jnp.asarray(normal(4, 3)), "bias": jnp.ones(4)}}
    state = perturb(SIGMA, relative="filter").init(params)
    assert state.settings.relative == "filter"


def test_with_injected_hyperparameters():
    z = normal(6, 4)
    injected = optax.inject_hyperparams(add_correlated_noise, static_args=STATIC_ARGS)
    tx = injected(SIGMA, seed=SEED, relative="filter", filter_axis=0)
    params = {"kernel": jnp.asarray(z)}
    updates, _ = tx.update(still(params), tx.init(params), params)
    assert same(np.asarray(updates["kernel"]), wanted("kernel", z, (0,), step=1))
    arrays = optax.inject_hyperparams(add_correlated_noise, static_args=("seed", "hold"))
    with pytest.raises(TypeError, match="filter_axis must be static"):
        arrays(SIGMA, relative="filter", filter_axis=0).init(params)
