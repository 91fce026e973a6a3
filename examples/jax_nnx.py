"""Flax nnx with Optax: one link in the chain that counts, one line before the gradient.

The model's parameters are the clean weights at any time; the gradient is taken at noisy ones.

    pip install '.[optax]' flax scikit-learn
    python examples/jax_nnx.py                         # a minute on one core
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

from antipgd.optax import perturb, perturbed

STEPS, SEEDS = int(os.environ.get("STEPS", "1000")), 3
pixels, digits = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(digits))
images, labels = jnp.asarray(pixels[order] / 16, jnp.float32), jnp.asarray(digits[order])


class Network(nnx.Module):
    def __init__(self, seed: int) -> None:
        rngs = nnx.Rngs(seed)
        self.first, self.last = nnx.Linear(64, 32, rngs=rngs), nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.last(nnx.relu(self.first(x)))


def loss(model: Network, x: jax.Array, y: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


@nnx.jit
def step(model: Network, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array) -> None:
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    noisy = nnx.merge(graph, perturbed(params, optimizer.opt_state), rest)
    optimizer.update(model, nnx.grad(loss)(noisy, x, y))


def train(sigma: float, seed: int) -> Network:
    model = Network(seed)
    rate = optax.cosine_decay_schedule(0.05, STEPS)
    noise = perturb(sigma, relative=True, seed=seed)
    optimizer = nnx.Optimizer(model, optax.chain(optax.sgd(rate, 0.9), noise), wrt=nnx.Param)
    for batch in np.random.default_rng(seed).integers(300, size=(STEPS, 30)):
        step(model, optimizer, images[batch], labels[batch])
    return model


def accuracy(model: Network) -> float:
    return float((model(images[300:]).argmax(1) == labels[300:]).mean())


print("seed  relative sigma  test accuracy")
for seed in range(SEEDS):
    for sigma in (0.0, 0.3):
        print(f"{seed:4}  {sigma:14}  {accuracy(train(sigma, seed)):13.1%}", flush=True)
print(f"{SEEDS} seeds decide little")
