"""Inside flax's nnx: `init` sees Variables, `update` the arrays in them, the state is Variables."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from antipgd.noise import draws
from antipgd.optax import add_correlated_noise, clean_params, perturb, perturbed
from matrix import cell

SIGMA, SEED, STEPS = 0.05, 3, 20
X = jax.random.normal(jax.random.key(0), (16, 2))
Y = X[:, :1] * X[:, 1:]


class Network(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(2, 5, rngs=rngs)
        self.norm = nnx.BatchNorm(5, rngs=rngs)
        self.last = nnx.Linear(5, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(jnp.tanh(self.norm(self.first(x))))


def loss(model):
    return jnp.mean((model(X) - Y) ** 2)


def weights(model):
    return nnx.state(model, nnx.Param)


def forward_step(model, optimizer):
    """As the documentation has it: statistics are those of the noisy passes."""
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    noisy = nnx.merge(graph, perturbed(params, optimizer.opt_state), rest)
    gradient = nnx.grad(loss)(noisy)
    nnx.update(model, nnx.state(noisy, nnx.BatchStat))
    optimizer.update(model, gradient)


def plain_step(model, optimizer):
    optimizer.update(model, nnx.grad(loss)(model))


def train(tx, step, steps=STEPS):
    model = Network()
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    for _ in range(steps):
        step(model, optimizer)
    return model, optimizer


def explicit(tx, steps=STEPS):
    """The z-form by hand, on bare arrays."""
    model = Network()
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    z = nnx.to_pure_dict(params)
    state = tx.init(z)
    for n in range(steps):
        w = jax.tree.map_with_path(
            lambda path, leaf, n=n: leaf + np.float32(SIGMA) * draws(
                SEED, ".".join(key.key for key in path), n, 0, leaf.size, "rademacher"
            ).reshape(leaf.shape),
            z,
        )  # fmt: skip
        nnx.replace_by_pure_dict(params, w)
        noisy = nnx.merge(graph, params, rest)
        gradient = nnx.to_pure_dict(nnx.grad(loss)(noisy))
        updates, state = tx.update(gradient, state, z)
        z = optax.apply_updates(z, updates)
    return z


def furthest(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(jnp.abs(x - y).max()) for x, y in pairs)


@cell("nnx", "weights")
@pytest.mark.parametrize("jitted", [False, True])
def test_the_forward_form_is_the_z_form(jitted):
    base = optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.05, 0.9))
    tx = optax.chain(base, perturb(SIGMA, seed=SEED, law="rademacher"))
    model, optimizer = train(tx, nnx.jit(forward_step) if jitted else forward_step)
    assert furthest(nnx.to_pure_dict(weights(model)), explicit(base)) < 1e-5
    assert furthest(clean_params(optimizer.opt_state, weights(model)), weights(model)) == 0
    assert int(optimizer.opt_state[1].count[...]) == STEPS
    assert float(jnp.abs(model.norm.mean[...]).max()) > 0


@cell("nnx", "weights", form="weights")
@pytest.mark.parametrize("jitted", [False, True])
def test_the_w_form_is_that_of_bare_arrays(jitted):
    tx = optax.chain(optax.sgd(0.05), add_correlated_noise(SIGMA, seed=SEED))
    model, optimizer = train(tx, nnx.jit(plain_step) if jitted else plain_step)
    graph, params, rest = nnx.split(Network(), nnx.Param, ...)
    bare, gradient = nnx.to_pure_dict(params), nnx.grad(loss)
    state = tx.init(bare)
    for _ in range(STEPS):
        nnx.replace_by_pure_dict(params, bare)
        updates, state = tx.update(
            nnx.to_pure_dict(gradient(nnx.merge(graph, params, rest))), state, bare
        )
        bare = optax.apply_updates(bare, updates)
    assert state[1].settings == optimizer.opt_state[1].settings
    assert furthest(nnx.to_pure_dict(weights(model)), bare) < 1e-6
    clean = clean_params(optimizer.opt_state, weights(model))
    assert furthest(nnx.to_pure_dict(clean), clean_params(state, bare)) < 1e-6
    assert furthest(clean, weights(model)) > SIGMA
    nnx.update(model, clean)


def test_a_mask_made_of_variables():
    def matrices(params):
        return jax.tree.map(lambda leaf: leaf.ndim > 1, params)

    tx = perturb(SIGMA, mask=matrices, relative=True)
    _, optimizer = train(tx, forward_step, 2)
    assert optimizer.opt_state.settings.names == ("first.kernel", "last.kernel")


def test_columns_of_kernels_are_filters_there_too():
    _, optimizer = train(perturb(SIGMA, relative="filter"), forward_step, 2)
    settings = optimizer.opt_state.settings
    found = dict(zip(settings.names, settings.relative.split(" ")[1:], strict=True))
    assert {name: axes for name, axes in found.items() if axes != "-"} == {
        "first.kernel": "1", "last.kernel": "1",
    }  # fmt: skip


@cell("nnx", "resume")
def test_split_and_merged_it_goes_on():
    tx = optax.chain(optax.adam(0.01), perturb(SIGMA))
    model, optimizer = train(tx, forward_step, 3)
    other_model, other = nnx.merge(*nnx.split((model, optimizer)))
    forward_step(model, optimizer)
    forward_step(other_model, other)
    assert furthest(weights(model), weights(other_model)) == 0
