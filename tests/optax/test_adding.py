"""What Optax asks of a transformation, and what the noise must be."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

import antipgd.torch
from antipgd.noise import Constant, Cosine, Linear, Steps, Window, draws
from antipgd.optax import add_correlated_noise, anti_pgd, clean_params

PARAMS = {"a": jnp.ones((8, 3)), "b": [jnp.zeros(5), jnp.ones(())]}
SIGMA = 0.05


def zeros(tree):
    return jax.tree.map(jnp.zeros_like, tree)


def run(tx, params, steps, gradient=zeros, **extra):
    """Parameters after each step, and the last state."""
    state = tx.init(params)

    @jax.jit
    def step(params, state):
        updates, state = tx.update(gradient(params), state, params, **extra)
        return optax.apply_updates(params, updates), state

    path = [params]
    for _ in range(steps):
        params, state = step(params, state)
        path.append(params)
    return path, state


def test_the_first_injection_is_one_draw_and_the_second_a_difference():
    path, _ = run(add_correlated_noise(SIGMA, seed=3), {"w": jnp.zeros(7)}, 3)
    for n, params in enumerate(path):
        want = np.float32(SIGMA) * draws(3, "w", n, 0, 7)
        assert np.abs(params["w"] - want).max() < 1e-7


def test_a_bare_array_is_at_position_0():
    path, _ = run(add_correlated_noise(1.0), jnp.zeros(6), 1)
    assert np.allclose(path[-1], draws(0, 0, 1, 0, 6))


@pytest.mark.parametrize("taps", [(1,), (1, -0.5), (1, -0.5, -0.5), (1, 0, 0, -1), (0, 1, -1)])
def test_taps(taps):
    schedule = Linear(0, 20, 1.0, 0.5)
    path, _ = run(add_correlated_noise(SIGMA, taps=taps, schedule=schedule), {"w": jnp.zeros(9)}, 8)
    xi = [SIGMA * schedule(k) * draws(0, "w", k, 0, 9) for k in range(9)]
    want = np.zeros(9)
    for n in range(8):
        want += sum(t * xi[n + 1 - j] for j, t in enumerate(taps) if n + 1 - j >= 1)
        assert np.abs(path[n + 1]["w"] - want).max() < 1e-6


def network(params, x):
    hidden = jnp.tanh(x @ params["0"]["weight"].T + params["0"]["bias"])
    return hidden @ params["2"]["weight"].T + params["2"]["bias"]


@pytest.mark.parametrize(("law", "bound"), [("rademacher", 1e-9), ("gaussian", 1e-6 * SIGMA * 10)])
@pytest.mark.parametrize(("momentum", "relative"), [(None, False), (0.9, False), (0.9, True)])
def test_torch_and_optax_take_the_same_path(law, bound, momentum, relative):
    with jax.enable_x64(True):
        torch.manual_seed(0)
        layers = torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
        model = torch.nn.Sequential(*layers).double()
        x = torch.randn(20, 6, dtype=torch.float64)
        y = x[:, :1].sin()
        params = {}
        for name, p in model.named_parameters():
            layer, part = name.split(".")
            params.setdefault(layer, {})[part] = jnp.asarray(p.detach().numpy().copy())

        optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05, momentum=momentum or 0)
        antipgd.torch.attach(optimizer, sigma=SIGMA, relative=relative, seed=17, law=law)
        for _ in range(100):
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()

        X, Y = jnp.asarray(x.numpy()), jnp.asarray(y.numpy())
        tx = anti_pgd(0.05, SIGMA, momentum, relative=relative, seed=17, law=law)
        gradient = jax.grad(lambda params: ((network(params, X) - Y) ** 2).mean())
        path, _ = run(tx, params, 100, gradient)
        for name, p in model.named_parameters():
            layer, part = name.split(".")
            assert path[-1][layer][part].dtype == jnp.float64
            assert np.abs(path[-1][layer][part] - p.detach().numpy()).max() < bound


def test_no_bytes_per_parameter():
    def state_bytes(params):
        state = add_correlated_noise(SIGMA).init(params)
        return sum(leaf.nbytes for leaf in jax.tree.leaves(state))

    assert state_bytes({"w": jnp.zeros(10**6)}) == state_bytes({"w": jnp.zeros(1)}) == 16
    assert state_bytes(PARAMS) == 16


@pytest.mark.parametrize("taps", [(1,), (1, -1), (1, -0.5, -0.5)])
def test_the_state_keeps_its_shape_and_nothing_is_compiled_twice(taps):
    tx = optax.chain(optax.sgd(0.1, momentum=0.9), add_correlated_noise(SIGMA, taps=taps))
    traced = []

    @jax.jit
    def step(params, state):
        traced.append(1)
        updates, state = tx.update(params, state, params)
        return optax.apply_updates(params, updates), state

    params, state = PARAMS, tx.init(PARAMS)
    before = jax.tree.map(jax.typeof, (params, state))
    for _ in range(3):
        params, state = step(params, state)
    assert len(traced) == 1
    assert jax.tree.map(jax.typeof, (params, state)) == before


def test_a_second_transformation_with_the_same_settings_reuses_the_state():
    tx = add_correlated_noise(SIGMA)
    step = jax.jit(tx.update)
    step(PARAMS, tx.init(PARAMS))
    step(PARAMS, add_correlated_noise(SIGMA).init(PARAMS))
    assert step._cache_size() == 1


def test_float32_and_float64_leaves_side_by_side():
    with jax.enable_x64(True):
        params = {"s": jnp.zeros(4, jnp.float32), "d": jnp.zeros(4, jnp.float64)}
        path, _ = run(add_correlated_noise(0.1, law="rademacher"), params, 1)
        assert set(np.abs(path[-1]["d"]).tolist()) == {0.1}
        assert set(np.abs(path[-1]["s"]).tolist()) == {float(np.float32(0.1))}


def test_donated_buffers():
    tx = anti_pgd(0.1, SIGMA, 0.9)
    params, state = jax.tree.map(jnp.array, PARAMS), tx.init(PARAMS)

    def step(params, state):
        updates, state = tx.update(params, state, params)
        return optax.apply_updates(params, updates), state

    path, _ = run(tx, PARAMS, 3, gradient=lambda params: params)
    donating = jax.jit(step, donate_argnums=(0, 1))
    for _ in range(3):
        params, state = donating(params, state)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), params, path[-1]))


def test_vmap_gives_every_member_the_draws_of_the_seed():
    tx = add_correlated_noise(SIGMA)
    members = {"w": jnp.zeros((4, 6))}
    states = jax.vmap(tx.init)(members)
    updates, states = jax.jit(jax.vmap(tx.update))(members, states)
    alone, _ = tx.update({"w": jnp.zeros(6)}, tx.init({"w": jnp.zeros(6)}))
    assert np.allclose(updates["w"], alone["w"], atol=1e-8)
    assert (states.count == 1).all()


def test_vmap_over_sigma():
    params = {"w": jnp.zeros(6)}

    def one(sigma):
        tx = add_correlated_noise(sigma)
        return tx.update(params, tx.init(params))[0]["w"]

    made = jax.vmap(one)(jnp.array([0.0, 1.0, 2.0]))
    assert (made[0] == 0).all()
    assert np.allclose(made[2], 2 * made[1])


def test_scan():
    tx = add_correlated_noise(SIGMA)

    def step(carry, _):
        params, state = carry
        updates, state = tx.update(zeros(params), state)
        return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.lax.scan(step, (PARAMS, tx.init(PARAMS)), length=5)
    path, _ = run(tx, PARAMS, 5)
    assert jax.tree.all(jax.tree.map(lambda a, b: np.allclose(a, b), params, path[-1]))


@pytest.mark.parametrize(
    "schedule",
    [Constant(0.5), Linear(2, 9), Cosine(0, 10, 2.0, 0.5), Steps((2, 5), 0.5), Window(2, 6)],
)
def test_our_schedules(schedule):
    path, _ = run(add_correlated_noise(1.0, schedule=schedule), {"w": jnp.zeros(50)}, 12)
    for n in range(1, 13):
        want = schedule(n) * draws(0, "w", n, 0, 50)
        assert np.abs(path[n]["w"] - want).max() < 3e-6


def test_any_traceable_function_is_a_schedule():
    for schedule in (lambda n: 1 / n, optax.exponential_decay(1.0, 1, 0.5)):
        path, _ = run(add_correlated_noise(1.0, schedule=schedule), {"w": jnp.zeros(9)}, 4)
        want = float(schedule(4)) * draws(0, "w", 4, 0, 9)
        assert np.abs(path[4]["w"] - want).max() < 1e-6


def test_every_schedule_telescopes():
    start = {"w": jnp.zeros(1000)}
    path, state = run(add_correlated_noise(1.0, schedule=Window(0, 20)), start, 21)
    assert np.abs(path[20]["w"]).max() > 1
    assert np.abs(path[21]["w"]).max() < 1e-5
    path, state = run(add_correlated_noise(1.0, schedule=lambda n: 1 + (n * 7) % 5), start, 100)
    assert np.abs(clean_params(state, path[-1])["w"]).max() < 1e-4


def test_injections_have_correlation_minus_one_half_and_the_right_scale():
    size = 20_000
    path, _ = run(add_correlated_noise(SIGMA), {"w": jnp.zeros(size)}, 11)
    w = np.stack([params["w"] for params in path])
    eps = np.diff(w, axis=0)[1:]
    lag = np.mean(eps[1:] * eps[:-1]) / np.mean(eps**2)
    assert abs(lag + 0.5) < 5 / np.sqrt(9 * size)

    def accepted(sigma):  # of w_n = ξ_n, 11 · size draws
        return abs(w[1:].std() / sigma - 1) < 5 / np.sqrt(2 * 11 * size)

    assert accepted(SIGMA)
    assert not accepted(SIGMA * 2 / 3)
    assert not accepted(SIGMA * 3 / 2)


def test_extra_arguments_are_tolerated():
    tx = optax.chain(optax.polyak_sgd(), add_correlated_noise(SIGMA))
    updates, _ = tx.update(PARAMS, tx.init(PARAMS), PARAMS, value=jnp.float32(1.0))
    plain = add_correlated_noise(SIGMA)
    plain.update(PARAMS, plain.init(PARAMS), PARAMS, value=1.0, something=None)
    assert jax.tree.structure(updates) == jax.tree.structure(PARAMS)


def test_masked_leaves_pass_unchanged():
    params = {"w": jnp.zeros(4), "n": jnp.arange(3), "h": jnp.zeros(3, jnp.bfloat16)}
    for mask in ({"w": True, "n": False, "h": False},
                 lambda tree: {name: name == "w" for name in tree}):  # fmt: skip
        tx = add_correlated_noise(1.0, mask=mask)
        updates, state = tx.update(params, tx.init(params))
        assert np.allclose(updates["w"], draws(0, "w", 1, 0, 4))
        assert updates["n"] is params["n"]
        assert updates["h"] is params["h"]
        assert np.abs(clean_params(state, updates)["w"]).max() < 1e-7


def test_sigma_zero_is_the_optimizer_itself():
    noisy, _ = run(anti_pgd(0.1, 0.0, 0.9), PARAMS, 5, gradient=lambda params: params)
    plain, _ = run(optax.sgd(0.1, 0.9), PARAMS, 5, gradient=lambda params: params)
    assert jax.tree.all(jax.tree.map(lambda a, b: np.allclose(a, b), noisy[-1], plain[-1]))
