"""The stream in JAX against the published vectors and the NumPy reference."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from antipgd.noise import as_law, draws, stream_key
from antipgd.optax import add_correlated_noise, kernel
from antipgd.optax.kernel import wide
from stream_backends import LAWS, ulps

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "noise-stream-1.json").read_text())


def pair(start, stop):
    numbers = np.arange(start, stop, dtype=np.uint64)
    halves = numbers & np.uint64(0xFFFFFFFF), numbers >> np.uint64(32)
    return tuple(jnp.asarray(half.astype(np.uint32)) for half in halves)


@pytest.mark.parametrize("jitted", [True, False])
def test_words_are_those_of_the_vectors(jitted):
    philox = jax.jit(kernel.philox) if jitted else kernel.philox
    for v in VECTORS["words"]:
        blocks = pair(v["first_block"], v["first_block"] + 2)
        words = philox(blocks, wide(v["step"]), wide(int(v["key"], 16)))
        got = np.stack(words, axis=-1).view(np.uint32).ravel()
        assert [f"{word:08x}" for word in got] == v["words"]


@pytest.mark.parametrize("v", VECTORS["draws"], ids=lambda v: f"{v['law']}-{v['step']}")
@pytest.mark.parametrize("jitted", [True, False])
def test_draws_are_within_four_ulp_of_the_vectors(v, jitted):
    make = jax.jit(kernel.unit_draws, static_argnums=3) if jitted else kernel.unit_draws
    key = wide(stream_key(v["seed"], v["name"]))
    got = make(pair(v["start"], v["stop"]), wide(v["step"]), key, as_law(v["law"]))
    want = np.array([int(bits, 16) for bits in v["float32_bits"]], np.uint32).view(np.float32)
    assert ulps(np.asarray(got), want).max() <= 4


@pytest.mark.parametrize("law", [law for law in LAWS if law != "student-t:2.1"])
def test_many_draws_on_a_nested_tree(law):
    shapes = {"a.0": (300, 7), "a.1.k": (4, 5, 11, 3), "b": (), "c.x": (0, 3), "c.y": (999,)}
    tree = {
        "a": [jnp.zeros(shapes["a.0"]), {"k": jnp.zeros(shapes["a.1.k"])}],
        "b": jnp.zeros(()),
        "c": {"x": jnp.zeros((0, 3)), "y": jnp.zeros(999)},
    }
    tx = add_correlated_noise(1.0, taps=(1,), law=law, seed=5)
    updates, state = jax.jit(tx.update)(tree, tx.init(tree))
    updates, _ = jax.jit(tx.update)(tree, state)
    leaves = [updates["a"][0], updates["a"][1]["k"], updates["b"], *updates["c"].values()]
    for (name, shape), leaf in zip(shapes.items(), leaves, strict=True):
        assert leaf.shape == shape
        want = draws(5, name, 2, 0, int(np.prod(shape)), law)
        assert not want.size or ulps(np.asarray(leaf).ravel(), want).max() <= 4


def test_index_of_a_parameter_with_more_than_2_to_the_32_elements():
    shape = (3, 70_000, 70_001)
    rng = np.random.default_rng(0)
    places = [rng.integers(0, size, 1000) for size in shape]
    places[0][0], places[1][0], places[2][0] = (size - 1 for size in shape)
    low, high = kernel.row_major([jnp.asarray(p, jnp.uint32) for p in places], shape)
    got = np.asarray(low, np.uint64) + (np.asarray(high, np.uint64) << np.uint64(32))
    assert (got == np.ravel_multi_index(places, shape).astype(np.uint64)).all()


@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (2, 3, 4)])
def test_index_counts_in_row_major_order(shape):
    low, _ = kernel.element_index(shape)
    assert (np.asarray(low) == np.arange(np.prod(shape, dtype=int)).reshape(shape)).all()


def test_product_of_words():
    rng = np.random.default_rng(1)
    words = rng.integers(0, 2**32, 1000, dtype=np.uint32)
    words[:3] = 0, 1, 2**32 - 1
    for a in (0xD2511F53, 0xFFFFFFFF, 0x10000, 1):
        low, high = kernel.multiply(a, jnp.asarray(words))
        want = [int(word) * a for word in words]
        assert [int(h) << 32 | int(x) for x, h in zip(low, high, strict=True)] == want
