"""What is refused, and in which words."""

import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

from antipgd.noise import Window
from antipgd.optax import add_correlated_noise, anti_pgd, clean_params, perturb

FORMS = pytest.mark.parametrize("form", [perturb, add_correlated_noise])
W = {"w": jnp.zeros(3)}


@pytest.mark.parametrize(
    "sigma", [-1, -0.1, float("nan"), float("inf"), "1", None, jnp.float32(-1)]
)
def test_sigma(sigma):
    with pytest.raises(ValueError, match="sigma must be a finite number >= 0"):
        add_correlated_noise(sigma)
    with pytest.raises(ValueError, match="sigma must be a finite number >= 0"):
        anti_pgd(0.1, sigma)


@FORMS
def test_law_taps_seed(form):
    with pytest.raises(ValueError, match="unknown law 'cauchy'; accepted: gaussian, "):
        form(1.0, law="cauchy")
    with pytest.raises(ValueError, match="taps must be one or more finite numbers"):
        form(1.0, taps=())
    for seed in (-1, 2**64, 0.5, True, None):
        with pytest.raises(ValueError, match="seed must be an integer from 0 to"):
            form(1.0, seed=seed)


@FORMS
def test_a_window_that_ends_while_a_draw_is_held(form):
    with pytest.warns(UserWarning, match=r"hold=20 with Window.*acts at steps 0 < n <= 60; give"):
        form(1.0, schedule=Window(0, 50), hold=20)
    form(1.0, schedule=Window(0, 60), hold=20)


@FORMS
def test_schedule(form):
    with pytest.raises(ValueError, match="schedule must be a function of the step; got 'lr'"):
        form(1.0, schedule="lr")
    with pytest.raises(TypeError, match="that JAX can trace"):
        form(1.0, schedule=lambda step: 1.0 if step < 5 else 0.0)
    with pytest.raises(TypeError, match="that JAX can trace"):
        form(1.0, schedule=lambda step: "a half")
    with pytest.raises(ValueError, match=r"one number; got an array of shape \(2,\)"):
        form(1.0, schedule=lambda step: jnp.ones(2))


@FORMS
def test_mask(form):
    tx = form(1.0, mask={"w": True, "u": False})
    message = r"only in the mask: \['u'\], only in the params: \[\]"
    with pytest.raises(ValueError, match=message):
        tx.init(W)
    with pytest.raises(ValueError, match="structure of the params"):
        form(1.0, mask=[True]).init((jnp.zeros(1),))
    with pytest.raises(TypeError, match="mask must hold bools; at 'w' it holds 1"):
        form(1.0, mask={"w": 1}).init(W)


def test_types():
    for leaf in (jnp.arange(3), jnp.zeros(2, bool), jnp.zeros(2, complex)):
        with pytest.raises(TypeError, match=rf"leaf 'n' is {leaf.dtype}: leave it out with mask="):
            add_correlated_noise(1.0).init({"n": leaf})
    for dtype in (jnp.bfloat16, jnp.float16):
        with pytest.raises(TypeError, match="Use perturb, whose params are clean"):
            add_correlated_noise(1.0).init({"h": jnp.zeros(3, dtype)})
    tx = add_correlated_noise(1.0)
    with pytest.raises(TypeError, match="leaf 'w' is bfloat16"):
        tx.update({"w": jnp.zeros(3, jnp.bfloat16)}, tx.init(W))
    model = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))
    with pytest.raises(TypeError, match=r"eqx\.filter"):
        tx.init(model)


@FORMS
def test_names(form):
    with pytest.raises(ValueError, match=r"two leaves of the tree are named 'a\.b'"):
        form(1.0).init({"a.b": jnp.zeros(1), "a": {"b": jnp.zeros(1)}})
    with pytest.raises(ValueError, match="two leaves of the tree are named 'w'"):
        form(1.0).init({"module": W, **W})


def test_another_tree_or_another_noise():
    tx = add_correlated_noise(1.0)
    state = tx.init(W)
    with pytest.raises(ValueError, match=r"leaves that take noise are missing: \['w'\]"):
        tx.update({"v": jnp.zeros(3)}, state)
    with pytest.raises(ValueError, match=r"leaves that take noise are missing: \['w'\]"):
        clean_params(state, {"v": jnp.zeros(3)})
    with pytest.raises(ValueError, match="begun with seed=0, but the transformation has seed=1"):
        add_correlated_noise(1.0, seed=1).update(W, state)
    with pytest.raises(ValueError, match="begun with law=gaussian"):
        add_correlated_noise(1.0, law="uniform").update(W, state)


@FORMS
def test_hyperparameters_that_must_be_static(form):
    tx = optax.inject_hyperparams(form)(sigma=1.0)
    with pytest.raises(TypeError, match=r"seed must be static; .* static_args=\('seed', "):
        tx.init(W)
    tx = optax.inject_hyperparams(form, static_args=("seed", "hold"))(
        sigma=1.0, schedule=lambda n: 1.0 * n
    )
    with pytest.raises(TypeError, match="schedule must be static"):
        tx.init(W)


@pytest.mark.parametrize(
    "tx",
    [
        optax.chain(add_correlated_noise(1.0), optax.sgd(0.1)),
        optax.chain(optax.sgd(0.1), add_correlated_noise(1.0), optax.scale(0.5)),
        optax.chain(anti_pgd(0.1, 1.0), optax.clip(1.0)),
        optax.named_chain(("b", add_correlated_noise(1.0)), ("a", optax.sgd(0.1))),
        optax.inject_hyperparams(
            lambda lr: optax.chain(add_correlated_noise(1.0), optax.scale(lr))
        )(lr=0.1),
    ],
)
def test_not_last_in_the_chain(tx):
    with pytest.raises(ValueError, match="add_correlated_noise is not last in its chain"):
        clean_params(tx.init(W), W)


def test_nothing_to_clean():
    with pytest.raises(ValueError, match="no state of add_correlated_noise in this"):
        clean_params(optax.adam(0.1).init(W), W)
    with pytest.raises(ValueError, match="arguments are state, params"):
        clean_params(W, add_correlated_noise(1.0).init(W))
    for taps in ((1,), (1, -0.9)):
        with pytest.raises(ValueError, match="only for taps that sum to zero"):
            clean_params(add_correlated_noise(1.0, taps=taps).init(W), W)


@pytest.mark.parametrize("package", ["optax", "jax"])
def test_missing_optax_names_the_extra(package):
    code = f"import sys; sys.modules['{package}'] = None; import antipgd; antipgd.optax"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = done.stderr.strip().splitlines()[-1]
    assert f"antipgd.optax needs {package}: pip install {package}, or" in said
    assert said.endswith("pip install '.[optax]'")
