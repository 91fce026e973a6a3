"""Orbax: what it saves of linen, nnx and equinox resumes; into another noise it is refused."""

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx

from antipgd.optax import perturb, perturbed
from jax_rigs import SEED, SIGMA, Equinox, Linen, Nnx, base
from matrix import cell, refused


def begin(kind, seed=SEED):
    return kind(optax.chain(base(), perturb(SIGMA, seed=seed)))


def tree_of(rig):
    """What one hands to Orbax."""
    if isinstance(rig, Linen):
        return rig.state
    if isinstance(rig, Nnx):
        return nnx.state((rig.model, rig.optimizer))
    return rig.params, rig.opt_state


def put(rig, tree):
    if isinstance(rig, Linen):
        rig.state = tree
    elif isinstance(rig, Nnx):
        nnx.update((rig.model, rig.optimizer), tree)
    else:
        rig.params, rig.opt_state = tree


def trained(kind, steps, seed=SEED):
    rig = begin(kind, seed)
    for _ in range(steps):
        rig.train()
    return rig


def assert_same(tree, other):
    for one, two in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(one, two)


@cell("orbax", "resume", "weights")
@pytest.mark.parametrize("kind", [Linen, Nnx, Equinox])
def test_a_checkpoint_manager(kind, tmp_path):
    ours, other = trained(kind, 4), begin(kind)
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(4, args=ocp.args.StandardSave(tree_of(ours)))
        manager.wait_until_finished()
        like = jax.tree.map(ocp.utils.to_shape_dtype_struct, tree_of(other))
        put(other, manager.restore(4, args=ocp.args.StandardRestore(like)))
    assert_same(other.params, ours.params)
    noisy = ours.read()
    assert any((np.asarray(w) != np.asarray(z)).any() for w, z in _pairs(noisy, ours.params))
    assert_same(other.read(), noisy)
    for rig in (ours, other):
        for _ in range(3):
            rig.train()
    assert_same(other.params, ours.params)


def _pairs(tree, other):
    return zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)


@cell("orbax", "weights")
def test_a_saved_model_needs_no_noise(tmp_path):
    ours = trained(Linen, 4)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "params", ours.params)
        checkpointer.wait_until_finished()
        clean = checkpointer.restore(tmp_path / "params")
    np.testing.assert_array_equal(ours.predict(clean), ours.predict(ours.params))
    assert_same(clean, ours.params)


@cell("orbax", "bad_input")
@pytest.mark.parametrize("kind", [Linen, Nnx, Equinox])
def test_into_another_noise(kind, tmp_path, record_property):
    ours, other = trained(kind, 3), begin(kind, seed=SEED + 1)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "saved", tree_of(ours))
        checkpointer.wait_until_finished()
        put(other, checkpointer.restore(tmp_path / "saved", tree_of(other)))
    with refused(record_property, ValueError, "begun with another noise"):
        perturbed(other.params, other.opt_state)
