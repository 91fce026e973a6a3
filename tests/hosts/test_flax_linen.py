"""Linen's parameters, boxes around them, and states that flax or Orbax write and read."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import serialization
from flax.training.train_state import TrainState

from antipgd.optax import add_correlated_noise, clean_params, perturb, perturbed
from matrix import cell, refused

X = jax.random.normal(jax.random.key(0), (16, 2))
Y = X[:, :1] * X[:, 1:]


class Network(nn.Module):
    boxed: bool = False

    @nn.compact
    def __call__(self, x):
        kernel = nn.initializers.lecun_normal()
        if self.boxed:
            kernel = nn.with_partitioning(kernel, (None, "model"))
        hidden = jnp.tanh(nn.Dense(5, kernel_init=kernel)(x))
        return nn.Dense(1)(hidden)


def begin(noise, boxed=False):
    model = Network(boxed)
    params = model.init(jax.random.key(1), X)["params"]
    tx = optax.chain(optax.adam(0.01), noise)
    return TrainState.create(apply_fn=model.apply, params=params, tx=tx)


@jax.jit
def step(state):
    def loss(params):
        return jnp.mean((state.apply_fn({"params": params}, X) - Y) ** 2)

    where = state.params
    if state.opt_state[1].settings.forward:
        where = perturbed(where, state.opt_state)
    return state.apply_gradients(grads=jax.grad(loss)(where))


def steps(state, count):
    for _ in range(count):
        state = step(state)
    return state


def equal(a, b):
    return jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), a, b))


FORMS = [perturb, add_correlated_noise]
IN_WEIGHTS = pytest.param(add_correlated_noise, marks=cell("linen", "resume", form="weights"))


@pytest.mark.parametrize("form", FORMS)
def test_a_box_around_a_leaf_is_no_part_of_its_name(form):
    boxed, bare = (steps(begin(form(0.05), boxed), 3) for boxed in (True, False))
    assert "Dense_0.kernel" in boxed.opt_state[1].settings.names
    assert equal(jax.tree.leaves(boxed.params), jax.tree.leaves(bare.params))
    assert isinstance(boxed.params["Dense_0"]["kernel"], nn.Partitioned)


@pytest.mark.parametrize("form", [perturb, IN_WEIGHTS])
@pytest.mark.parametrize(
    "arguments",
    [{"seed": 2**64 - 1, "relative": True}, {"law": "student-t:5"}, {"relative": "filter"}],
)
def test_bytes_and_back(form, arguments):
    state = steps(begin(form(0.05, **arguments)), 3)
    restored = serialization.from_bytes(
        begin(form(0.05, **arguments)), serialization.to_bytes(state)
    )
    assert restored.opt_state[1].settings == state.opt_state[1].settings
    assert equal(steps(restored, 2).params, steps(state, 2).params)
    clean = clean_params(state.opt_state, state.params)
    assert equal(clean_params(restored.opt_state, restored.params), clean)


def test_filters_are_the_outputs_of_layers():
    class Image(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Embed(4, 3)(x)
            x = nn.Conv(5, (2, 2))(x)
            x = nn.MultiHeadDotProductAttention(num_heads=2, qkv_features=4)(x)
            return nn.Dense(4)(x)

    params = Image().init(jax.random.key(1), jnp.zeros((1, 4, 4), int))["params"]
    tx = perturb(0.1, seed=3, relative="filter")
    state = tx.init(params)
    sizes = dict(zip(state.settings.names, state.settings.relative.split(" ")[1:], strict=True))
    attention = {
        f"MultiHeadDotProductAttention_0.{part}.{own}": axes
        for part in ("key", "query", "value")
        for own, axes in (("kernel", "1,2"), ("bias", "-"))
    }
    assert sizes == attention | {
        "Embed_0.embedding": "0",
        "Conv_0.kernel": "3",
        "Conv_0.bias": "-",
        "MultiHeadDotProductAttention_0.out.kernel": "2",
        "MultiHeadDotProductAttention_0.out.bias": "-",
        "Dense_0.kernel": "1",
        "Dense_0.bias": "-",
    }


@cell("linen", "bad_input")
@pytest.mark.parametrize("form", FORMS)
def test_bytes_into_another_noise_are_refused(form, record_property):
    saved = serialization.to_bytes(steps(begin(form(0.05, seed=1)), 3))
    restored = serialization.from_bytes(begin(form(0.05, seed=2)), saved)
    said = "begun with seed=1, but the transformation has seed=2"
    with refused(record_property, ValueError, said):
        step(restored)


@pytest.mark.parametrize("form", FORMS)
def test_orbax(form, tmp_path):
    state = steps(begin(form(0.05, seed=1)), 3)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "saved", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "saved", begin(form(0.05, seed=1)))
        mixed = checkpointer.restore(tmp_path / "saved", begin(form(0.05, seed=2)))
    assert equal(steps(restored, 2).params, steps(state, 2).params)
    use = perturbed if form is perturb else lambda params, state: clean_params(state, params)
    with pytest.raises(ValueError, match="values of this state were begun with another noise than"):
        use(mixed.params, mixed.opt_state)
    after = step(mixed)  # compiled, it cannot raise
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(after.params))


def test_orbax_saves_white_noise_too(tmp_path):
    state = steps(begin(add_correlated_noise(0.05, taps=(1,))), 2)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "saved", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "saved", state)
    assert equal(steps(restored, 2).params, steps(state, 2).params)
