"""A small network in each of JAX's libraries, trained, saved and read as one does there.

`rows("resume")` is the list of them for a test, each marked as the answer to that cell.
"""

import io

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx, serialization
from flax.training.train_state import TrainState

from antipgd.noise import draws
from antipgd.optax import perturbed
from matrix import cell

SEED, SIGMA = 17, 0.05
X = jax.random.normal(jax.random.key(0), (16, 2))
Y = X[:, :1] * X[:, 1:]


def batch(part, parts):
    size = len(X) // parts
    here = slice(part * size, (part + 1) * size)
    return X[here], Y[here]


def explicitly(params, names, n):
    """z + σ ξ_n by hand; draws that are ±1, which JAX and NumPy have alike."""
    leaves, structure = jax.tree.flatten(params)
    if n == 0:
        return params
    noisy = [
        z + np.float32(SIGMA) * draws(SEED, name, n, 0, z.size, "rademacher").reshape(z.shape)
        for name, z in zip(names, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, noisy)


class Rig:
    """What all three have: `params` are z; `opt_state` has the noise, if it is not explicit."""

    names: tuple[str, ...]

    def __init__(self, explicit):
        self.explicit, self.n = explicit, 0

    def read(self):
        """The weights that a pass reads."""
        if self.explicit:
            return explicitly(self.params, self.names, self.n)
        return perturbed(self.params, self.opt_state)

    def train(self, parts=1):
        """One step, of several micro-batches where the optimizer is made for it."""
        for part in range(parts):
            self.update(self.gradient(self.read(), *batch(part, parts)))
        self.n += 1


class Network(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(jnp.tanh(nn.Dense(5)(x)))


@jax.jit
def linen_loss(params, x, y):
    return jnp.mean((Network().apply({"params": params}, x) - y) ** 2)


@jax.jit
def linen_update(state, gradients):
    return state.apply_gradients(grads=gradients)


class Linen(Rig):
    """flax linen's TrainState; saved by flax's serialization."""

    names = ("Dense_0.bias", "Dense_0.kernel", "Dense_1.bias", "Dense_1.kernel")
    gradient = staticmethod(jax.jit(jax.grad(linen_loss)))

    def __init__(self, tx, explicit=False):
        super().__init__(explicit)
        params = Network().init(jax.random.key(1), X)["params"]
        self.state = TrainState.create(apply_fn=Network().apply, params=params, tx=tx)

    params = property(lambda self: self.state.params)
    opt_state = property(lambda self: self.state.opt_state)

    def update(self, gradients):
        self.state = linen_update(self.state, gradients)

    def predict(self, params):
        return Network().apply({"params": params}, X)

    def saved(self):
        return serialization.to_bytes(self.state)

    def load(self, data):
        self.state = serialization.from_bytes(self.state, data)


class Layers(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(2, 5, rngs=rngs)
        self.last = nnx.Linear(5, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(jnp.tanh(self.first(x)))


GRAPH = nnx.split(Layers())[0]


@jax.jit
def nnx_gradient(params, x, y):
    return jax.grad(lambda w: jnp.mean((nnx.merge(GRAPH, w)(x) - y) ** 2))(params)


@nnx.jit
def nnx_update(model, optimizer, gradients):
    optimizer.update(model, gradients)


class Nnx(Rig):
    """flax nnx's Optimizer; saved as pure dictionaries."""

    names = ("first.bias", "first.kernel", "last.bias", "last.kernel")
    gradient = staticmethod(nnx_gradient)

    def __init__(self, tx, explicit=False):
        super().__init__(explicit)
        self.model = Layers()
        self.optimizer = nnx.Optimizer(self.model, tx, wrt=nnx.Param)

    params = property(lambda self: nnx.state(self.model, nnx.Param))
    opt_state = property(lambda self: self.optimizer.opt_state)

    def update(self, gradients):
        nnx_update(self.model, self.optimizer, gradients)

    def predict(self, params):
        return nnx.merge(GRAPH, params)(X)

    def saved(self):
        both = nnx.state((self.model, self.optimizer))
        return serialization.msgpack_serialize(jax.tree.map(np.asarray, as_text(both)))

    def load(self, data):
        both = nnx.state((self.model, self.optimizer))
        restored = serialization.msgpack_restore(data)
        nnx.replace_by_pure_dict(both, nnx.restore_int_paths(restored))
        nnx.update((self.model, self.optimizer), both)


def as_text(state):
    """Pure dictionaries whose keys are text, which is all that msgpack has."""

    def spoken(found):
        return {str(k): spoken(v) for k, v in found.items()} if isinstance(found, dict) else found

    return spoken(nnx.to_pure_dict(state))


MLP = {"in_size": 2, "out_size": 1, "width_size": 5, "depth": 1}
STATIC = eqx.partition(eqx.nn.MLP(**MLP, key=jax.random.key(0)), eqx.is_inexact_array)[1]


@jax.jit
def equinox_gradient(params, x, y):
    def loss(w):
        return jnp.mean((jax.vmap(eqx.combine(w, STATIC))(x) - y) ** 2)

    return jax.grad(loss)(params)


class Equinox(Rig):
    """The arrays of an equinox module; saved by tree_serialise_leaves."""

    names = ("layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias")
    gradient = staticmethod(equinox_gradient)

    def __init__(self, tx, explicit=False):
        super().__init__(explicit)
        model = eqx.nn.MLP(**MLP, key=jax.random.key(0))
        self.params = eqx.filter(model, eqx.is_inexact_array)
        self.opt_state, self._update = tx.init(self.params), jax.jit(tx.update)

    def update(self, gradients):
        updates, self.opt_state = self._update(gradients, self.opt_state, self.params)
        self.params = eqx.apply_updates(self.params, updates)

    def predict(self, params):
        return jax.vmap(eqx.combine(params, STATIC))(X)

    def saved(self):
        file = io.BytesIO()
        eqx.tree_serialise_leaves(file, (self.params, self.opt_state))
        return file.getvalue()

    def load(self, data):
        like = (self.params, self.opt_state)
        self.params, self.opt_state = eqx.tree_deserialise_leaves(io.BytesIO(data), like)


RIGS = {"nnx": Nnx, "linen": Linen, "equinox": Equinox}


def base():
    return optax.adamw(0.01, weight_decay=0.1)


def rows(*qualities):
    """All of them, for a test that answers these cells."""
    return pytest.mark.parametrize("kind", [
        pytest.param(kind, id=host, marks=cell(host, *qualities)) for host, kind in RIGS.items()
    ])  # fmt: skip
