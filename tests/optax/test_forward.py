"""The forward form: params that are always z, and w = z + ξ_n where the gradient is taken.

Held against the explicit z-form, in which the test makes w itself of NumPy's draws. With signs for
draws nothing is rounded on the way but w, so that equal means equal bits.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from optax import contrib

import antipgd.optax
import antipgd.torch
from antipgd.noise import Linear, Window, draws
from antipgd.optax import add_correlated_noise, clean_params, perturb, perturbed

SIGMA, SEED, STEPS = 0.0625, 3, 200
RNG = np.random.default_rng(0)
X = RNG.standard_normal((20, 6)).astype(np.float32)
Y = np.sin(X[:, :1])
START = {
    "a": RNG.standard_normal((6, 8)).astype(np.float32) / 2,
    "b": [RNG.standard_normal(8).astype(np.float32), np.ones((8, 1), np.float32)],
}
NAMES = ("a", "b.0", "b.1")


def start(dtype="float32"):
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), START)


def loss(params):
    dtype = params["a"].dtype
    hidden = jnp.tanh(X.astype(dtype) @ params["a"] + params["b"][0])
    return jnp.mean((hidden @ params["b"][1] - Y.astype(dtype)) ** 2)


def equal(a, b):
    return all(
        x.dtype == y.dtype and np.array_equal(x, y)
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def furthest(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(np.abs(np.asarray(x, float) - np.asarray(y, float)).max() for x, y in pairs)


def numpy_noisy(params, n, sigma=SIGMA, law="rademacher"):
    """z + ξ_n, rounded once, by NumPy alone; at step 0 there is no noise yet."""
    leaves, structure = jax.tree.flatten(params)
    out = []
    for name, z in zip(NAMES, leaves, strict=True):
        xi = draws(SEED, name, n, 0, z.size, law).reshape(z.shape)
        wide = np.promote_types(np.float32, np.float64 if z.dtype == np.float64 else np.float32)
        noise = xi.astype(wide) * wide.type(sigma)
        out.append(jnp.asarray((np.asarray(z).astype(wide) + noise).astype(z.dtype)))
    return structure.unflatten(out)


OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.05),
    "momentum": lambda: optax.sgd(0.05, 0.9, nesterov=True),
    "adamw": lambda: optax.adamw(1e-2, weight_decay=0.1),
    "chain": lambda: optax.chain(
        optax.clip_by_global_norm(0.5), optax.scale_by_adam(eps=1e-4),
        optax.add_decayed_weights(0.01), optax.scale_by_schedule(lambda n: -0.01 / (1 + n)),
    ),
    "schedule_free": lambda: contrib.schedule_free(optax.sgd(0.1), 0.1),
    "mechanize": lambda: contrib.mechanize(optax.sgd(0.1)),
    "muon": lambda: contrib.muon(0.01),
}  # fmt: skip
if hasattr(contrib, "madgrad"):  # from Optax 0.2.7 on
    OPTIMIZERS["madgrad"] = lambda: contrib.madgrad(0.01)


GRADIENT = jax.jit(jax.grad(loss))


def walk(tx, make_noisy, dtype="float32", steps=STEPS, gradient=GRADIENT):
    """z, and w of the last gradient, after steps whose gradients are taken at make_noisy(z, …)."""
    params = start(dtype)
    state, update = tx.init(params), jax.jit(tx.update)
    for n in range(steps):
        w = make_noisy(params, state, n)
        updates, state = update(gradient(w), state, params)
        params = optax.apply_updates(params, updates)
    return params, w


CASES = [(name, "float32") for name in OPTIMIZERS] + [
    (name, dtype)
    for name in ("sgd", "momentum", "adamw", "chain", "schedule_free")
    for dtype in ("bfloat16", "float16")
    if (name, dtype) != ("adamw", "float16")  # not stable by itself: its eps of 1e-8 is 0
]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_it_is_the_explicit_z_form_to_the_bit(name, dtype):
    noise = perturb(SIGMA, seed=SEED, law="rademacher")
    ours = jax.jit(perturbed)
    tx = optax.chain(OPTIMIZERS[name](), noise)
    found = walk(tx, lambda params, state, n: ours(params, state), dtype)
    want = walk(OPTIMIZERS[name](), lambda params, state, n: numpy_noisy(params, n), dtype)
    assert np.isfinite(np.asarray(want[0]["a"], float)).all()
    assert equal(found, want)
    assert furthest(*found) > 0.9 * SIGMA  # there is noise


def test_it_is_the_explicit_z_form_under_lookahead():
    def train(tx, make_noisy):
        params = optax.LookaheadParams.init_synced(start())
        state = tx.init(params)
        for n in range(STEPS):
            gradient = GRADIENT(make_noisy(params.fast, state, n))
            updates, state = tx.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
        return params

    fast = optax.chain(optax.sgd(0.05), perturb(SIGMA, seed=SEED, law="rademacher"))
    ours = train(optax.lookahead(fast, 5, 0.5), lambda params, state, n: perturbed(params, state))
    bare = optax.lookahead(optax.sgd(0.05), 5, 0.5)
    assert equal(ours, train(bare, lambda params, state, n: numpy_noisy(params, n)))


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("law", ["gaussian", "rademacher"])
def test_it_is_the_w_form_where_nothing_decays(name, law):
    make = {**OPTIMIZERS, "adam": lambda: optax.adam(1e-2)}[name]
    arguments = {"seed": SEED, "law": law, "schedule": Linear(0, 300)}
    with jax.enable_x64(True):
        tx = optax.chain(make(), perturb(SIGMA, **arguments))
        z, w = walk(tx, lambda params, state, n: perturbed(params, state), "float64")
        tx = optax.chain(make(), add_correlated_noise(SIGMA, **arguments))
        noisy = start("float64")
        state, update = tx.init(noisy), jax.jit(tx.update)
        for _ in range(STEPS):
            last = noisy
            updates, state = update(GRADIENT(noisy), state, noisy)
            noisy = optax.apply_updates(noisy, updates)
        assert furthest(w, last) < 1e-12
        assert furthest(z, clean_params(state, noisy)) < 1e-12


def test_weight_decay_acts_at_z():
    tx = optax.chain(optax.add_decayed_weights(1.0), optax.sgd(0.1), perturb(SIGMA, seed=SEED))
    z, _ = walk(tx, lambda params, state, n: perturbed(params, state), steps=7,
                gradient=lambda w: jax.tree.map(jnp.zeros_like, w))  # fmt: skip
    bare = optax.chain(optax.add_decayed_weights(1.0), optax.sgd(0.1))
    want, _ = walk(bare, lambda params, state, n: params, steps=7,
                   gradient=lambda w: jax.tree.map(jnp.zeros_like, w))  # fmt: skip
    assert equal(z, want)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("law", ["gaussian", "rademacher"])
def test_a_hundred_thousand_steps_leave_z_to_the_optimizer(law, dtype):
    """Zero gradients, a momentum that still moves: z is the unperturbed optimizer's, all bits."""

    def train(tx, noisy):
        def step(carry, _):
            params, state = carry
            gradient = jax.tree.map(lambda w: w * 0, noisy(params, state))
            updates, state = tx.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), None

        params = {"w": jnp.linspace(-2, 2, 5).astype(dtype)}
        state = tx.init(params)
        _, state = tx.update({"w": jnp.ones(5, dtype)}, state, params)
        run = jax.jit(lambda carry: jax.lax.scan(step, carry, length=10**5)[0])
        return run((params, state))

    with jax.enable_x64(dtype == "float64"):
        tx = optax.chain(optax.sgd(0.1, 0.9), perturb(0.5, law=law))
        found, state = train(tx, perturbed)
        want, _ = train(optax.sgd(0.1, 0.9), lambda params, state: params)
        assert equal(found, want)
        assert not equal(found, {"w": jnp.linspace(-2, 2, 5).astype(dtype)})
        assert int(state[1].count) == 10**5 + 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dw_dz_is_one(dtype):
    tx = perturb(SIGMA)
    params = start(dtype)
    _, state = tx.update(params, tx.init(params), params)
    at_w = jax.grad(loss)(perturbed(params, state))
    through = jax.grad(lambda z: loss(perturbed(z, state)))(params)
    assert equal(through, at_w)
    tangent = jax.tree.map(jnp.ones_like, params)
    assert equal(jax.jvp(lambda z: perturbed(z, state), (params,), (tangent,))[1], tangent)


def test_before_the_first_step_w_is_z_and_then_one_draw_away():
    tx, params = perturb(SIGMA, seed=SEED), start()
    state = tx.init(params)
    assert equal(perturbed(params, state), params)
    updates, state = tx.update(params, state)
    assert updates is params  # no update is changed
    for n in (1, 2, 3):
        assert furthest(perturbed(params, state), numpy_noisy(params, n, law="gaussian")) < 3e-7
        _, state = tx.update(params, state)


@pytest.mark.parametrize("taps", [(1, -1), (1, -0.5, -0.5), (2, 0, -2)])
def test_w_is_what_the_w_form_holds(taps):
    """With zero gradients the w-form's params are z + the carried draws, for all taps."""
    settings = {"seed": SEED, "taps": taps, "schedule": Window(1, 5)}
    ours, theirs = perturb(SIGMA, **settings), add_correlated_noise(SIGMA, **settings)
    zero = jax.tree.map(jnp.zeros_like, start())
    w, state, other = start(), ours.init(zero), theirs.init(zero)
    for _ in range(8):
        updates, other = theirs.update(zero, other)
        w = optax.apply_updates(w, updates)
        _, state = ours.update(zero, state)
        assert furthest(perturbed(start(), state), w) < 1e-6


NESTS = {
    "first": lambda: optax.chain(perturb(SIGMA, seed=SEED), optax.sgd(0.1)),
    "middle": lambda: optax.chain(optax.sgd(1.0), perturb(SIGMA, seed=SEED), optax.scale(0.1)),
    "named": lambda: optax.named_chain(("n", perturb(SIGMA, seed=SEED)), ("o", optax.sgd(0.1))),
    "inject": lambda: optax.chain(
        optax.sgd(0.1),
        optax.inject_hyperparams(perturb, static_args=antipgd.optax.STATIC_ARGS)(
            sigma=SIGMA, seed=SEED
        ),
    ),
    "parts": lambda: optax.multi_transform(
        {"x": optax.chain(optax.sgd(0.1), perturb(SIGMA, seed=SEED))}, "x"
    ),
    "halves": lambda: optax.chain(
        optax.sgd(0.1),
        optax.masked(perturb(SIGMA, seed=SEED), {"a": True, "b": False}),
        perturb(SIGMA, seed=SEED, mask={"a": False, "b": [True, True]}),
    ),
    "averaged": lambda: optax.MultiSteps(
        optax.chain(optax.sgd(0.1), perturb(SIGMA, seed=SEED)), 2
    ).gradient_transformation(),
    "finite": lambda: optax.apply_if_finite(
        optax.chain(optax.sgd(0.1), perturb(SIGMA, seed=SEED)), 3
    ),
}


@pytest.mark.parametrize("nest", NESTS)
def test_the_same_draws_in_every_nest(nest):
    tx, params = NESTS[nest](), start()
    state = tx.init(params)
    zero = jax.tree.map(jnp.zeros_like, params)
    for n in (1, 2, 3):
        for _ in range(2 if nest == "averaged" else 1):
            assert (
                furthest(perturbed(params, state), numpy_noisy(params, n - 1, law="gaussian"))
                < 3e-7
            )
            updates, state = tx.update(zero, state, params)
            params = optax.apply_updates(params, updates)
    assert equal(clean_params(state, params), params)
    assert equal(params, start())


def test_a_step_that_is_not_finite_keeps_its_draw():
    tx, params = NESTS["finite"](), start()
    _, state = tx.update(params, tx.init(params), params)
    before = perturbed(params, state)
    nan = jax.tree.map(lambda w: w * jnp.nan, params)
    _, state = tx.update(nan, state, params)
    assert equal(perturbed(params, state), before)


def test_nothing_is_compiled_twice_and_the_state_keeps_its_shape():
    tx = optax.chain(optax.adam(0.1), perturb(SIGMA, relative=True))
    traced = []

    @jax.jit
    def step(params, state):
        traced.append(1)
        gradient = jax.grad(loss)(perturbed(params, state))
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    params, state = start(), tx.init(start())
    before = jax.tree.map(jax.typeof, (params, state))
    for _ in range(3):
        params, state = step(params, state)
    assert len(traced) == 1
    assert jax.tree.map(jax.typeof, (params, state)) == before


# -- held and antithetic draws ---------------------------------------------------------------------


def stream_draw(number, antithetic, size):
    """ξ of this number by the definition, times the schedule's factor at the step it came."""
    if not antithetic:
        return draws(SEED, "w", number, 0, size)
    return draws(SEED, "w", -(-number // 2), 0, size) * (1 if number % 2 else -1)


@pytest.mark.parametrize("taps", [(1, -1), (1, -0.5, -0.5)])
@pytest.mark.parametrize(("hold", "antithetic"), [(2, False), (3, False), (1, True), (2, True)])
def test_held_and_antithetic_draws(hold, antithetic, taps):
    schedule = Linear(0, 20)
    settings = {"seed": SEED, "hold": hold, "antithetic": antithetic, "taps": taps}
    zero = {"w": jnp.zeros(50)}
    ours = perturb(1.0, schedule=schedule, **settings)
    theirs = add_correlated_noise(1.0, schedule=schedule, **settings)
    w, state, other = zero, ours.init(zero), theirs.init(zero)
    for n in range(1, 13):
        _, state = ours.update(zero, state)
        updates, other = theirs.update(zero, other)
        w = optax.apply_updates(w, updates)
        newest, want = -(-n // hold), 0
        for number, share in zip((newest, newest - 1), np.cumsum(taps)[:-1], strict=False):
            if number >= 1:  # it came at the first of its steps, with the σ of then
                came = (number - 1) * hold + 1
                want += share * schedule(came) * stream_draw(number, antithetic, 50)
        assert np.abs(perturbed(zero, state)["w"] - want).max() < 1e-6
        assert np.abs(w["w"] - want).max() < 3e-6
        assert np.abs(clean_params(other, w)["w"]).max() < 3e-6


def test_a_held_draw_moves_nothing():
    tx, zero = add_correlated_noise(0.3, hold=4), {"w": jnp.full(1000, 1e-30)}
    state, update = tx.init(zero), jax.jit(tx.update)
    for n in range(1, 13):
        updates, state = update(zero, state)
        assert np.array_equal(updates["w"], zero["w"]) == (n % 4 != 1)


# -- sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [perturb, add_correlated_noise])
def test_relative_sigma_is_in_units_of_each_leaf(form):
    params = {"s": jnp.full(40, 1e-3), "m": jnp.linspace(-7.0, 7.0, 40), "z": jnp.zeros(40)}
    tx = form(0.1, relative=True, law="rademacher")
    zero = jax.tree.map(jnp.zeros_like, params)
    updates, state = tx.update(zero, tx.init(params))
    noise = perturbed(zero, state) if form is perturb else updates
    for name, value in params.items():
        size = 0.1 * float(f"{np.sqrt(np.mean(np.square(value))):.4g}")
        np.testing.assert_allclose(np.abs(noise[name]), size, rtol=1e-6)
    if form is add_correlated_noise:
        assert furthest(clean_params(state, noise), zero) == 0


@pytest.mark.parametrize("size", [1e-30, 1.2345678, 9.99996, 3e30])
def test_relative_sizes_are_torchs_also_under_jit(size):
    with jax.enable_x64(True):
        w = np.linspace(-size, size, 30)
        parameter = torch.nn.Parameter(torch.tensor(w))
        noise = antipgd.torch.attach(torch.optim.SGD([parameter], 0.1), sigma=0.5, relative=True)
        tx = perturb(0.5, relative=True)
        params = {"w": jnp.asarray(w)}
        for init in (tx.init, jax.jit(tx.init)):
            (scale,) = init(params).scales
            np.testing.assert_allclose(scale, noise.roll.members[0].scale, rtol=1e-14)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_are_rounded_also_where_they_are_widened_at_once(dtype):
    params = start(dtype)
    tx = perturb(SIGMA, seed=SEED, law="rademacher")
    _, state = tx.update(params, tx.init(params))

    @jax.jit
    def widened(params, state):
        return jax.tree.map(lambda w: w.astype("float32"), perturbed(params, state))

    want = jax.tree.map(lambda w: w.astype("float32"), numpy_noisy(params, 1))
    assert equal(widened(params, state), want)


def test_sigma_beside_sixteen_bits():
    params = {"w": jnp.full(8, 2.0, jnp.bfloat16), "v": jnp.zeros(3, jnp.float16)}
    perturb(2.0**-6).init(params)
    perturb(0.0).init(params)
    message = r"sigma is 0\.006 of the root mean square of leaf 'w', which is bfloat16: .* changes"
    with pytest.warns(UserWarning, match=message):
        perturb(0.012).init(params)
    with pytest.raises(ValueError, match=r"'w', which is bfloat16: .* leaves nothing of the noise"):
        perturb(2.0**-8 - 1e-6).init(params)
    with pytest.raises(ValueError, match=r"leaf 'w'.* use sigma >= 0\.0078, float32 params, or"):
        perturb(0.001, relative=True).init({"w": params["w"]})
    jax.jit(perturb(0.001).init)(params)  # there is nothing to look at


# -- what is refused -------------------------------------------------------------------------------

W = {"w": jnp.ones(3)}


def test_arguments():
    with pytest.raises(ValueError, match=r"taps that sum to zero, such as .*; got \(1\.0, -0\.9\)"):
        perturb(1.0, taps=iter((1, -0.9)))
    assert perturb(1.0, taps=iter((1, -1))).init(W).settings.taps == (1, -1)
    with pytest.raises(ValueError, match="sigma must be a finite number >= 0"):
        perturb(-1.0)
    for form in (perturb, add_correlated_noise):
        for hold in (0, 1.5, "2", True, 2**31):
            with pytest.raises(
                ValueError, match=f"hold must be a whole number >= 1.*; got {hold!r}"
            ):
                form(1.0, hold=hold)
        with pytest.raises(ValueError, match="relative must be True, False or 'filter'; got 'yes'"):
            form(1.0, relative="yes")
        with pytest.raises(ValueError, match="antithetic must be True or False; got 1"):
            form(1.0, antithetic=1)
        with pytest.raises(
            ValueError, match=r"finite in float32, the type of leaf 'w'.*got 1e\+39"
        ):
            form(1e39).init(W)
        with pytest.raises(
            ValueError, match="relative sigma: the weights of leaf 'w' are not finite"
        ):
            form(1.0, relative=True).init({"w": jnp.array([1.0, jnp.nan])})
    with pytest.raises(TypeError, match="added to float32, float64, bfloat16 and float16 leaves"):
        perturb(1.0).init({"n": jnp.arange(3)})
    with pytest.raises(TypeError, match=r"leaf 'w' is bfloat16, .* Use perturb"):
        add_correlated_noise(1.0).init({"w": jnp.ones(3, jnp.bfloat16)})


def test_states_that_make_no_noisy_weights():
    with pytest.raises(ValueError, match=r"no state of perturb in this dict; .* are params, state"):
        perturbed(perturb(1.0).init(W), W)
    with pytest.raises(ValueError, match="state of add_correlated_noise, whose params carry"):
        perturbed(W, add_correlated_noise(1.0).init(W))
    with pytest.raises(ValueError, match=r"are missing: \['w'\]; the tree must have"):
        perturbed({"v": jnp.ones(3)}, perturb(1.0).init(W))
    with pytest.raises(ValueError, match=r"with optax\.lookahead, pass params\.fast"):
        perturbed(optax.LookaheadParams.init_synced(W), perturb(1.0).init(W))
    state = add_correlated_noise(1.0).init(W)
    with pytest.raises(ValueError, match="begun with forward=False, but the transformation has"):
        perturb(1.0).update(W, state)


@pytest.mark.parametrize(
    "other",
    [
        perturb(1.0, seed=2),
        perturb(1.0, seed=1, law="uniform"),
        perturb(1.0, seed=1, hold=2),
        add_correlated_noise(1.0, seed=1),
    ],
)
def test_values_of_another_noise_are_refused_and_under_jit_nan(other):
    """What a restore of the leaves into a transformation with other arguments makes."""
    saved = jax.tree.leaves(perturb(1.0, seed=1).init(W))
    mixed = jax.tree.unflatten(jax.tree.structure(other.init(W)), saved)
    use = perturbed if mixed.settings.forward else lambda params, state: clean_params(state, params)
    message = "values of this state were begun with another noise than seed="
    with pytest.raises(ValueError, match=message):
        other.update(W, mixed)
    with pytest.raises(ValueError, match=message):
        use(W, mixed)
    assert np.isnan(jax.jit(use)(W, mixed)["w"]).all()
    updates, after = jax.jit(other.update)(W, mixed)
    assert np.isnan(updates["w"]).all() != mixed.settings.forward
    assert np.isnan(jax.jit(use)(W, after)["w"]).all()


def test_values_of_the_same_noise_go_on():
    saved = jax.tree.leaves(perturb(1.0, seed=1).init(W))
    right = jax.tree.unflatten(jax.tree.structure(perturb(1.0, seed=1).init(W)), saved)
    assert equal(perturbed(W, right), W)


def test_the_same_draws_twice_are_refused_and_others_add_up():
    params = start()
    one, other = perturb(SIGMA, seed=SEED), perturb(SIGMA, seed=SEED + 1)
    states = []
    for tx in (optax.chain(one, one), optax.chain(one, other), one, other):
        state = tx.init(params)
        states.append(tx.update(params, state, params)[1])
    with pytest.raises(ValueError, match=r"seed=3 is there twice for 'a', with the same draws"):
        perturbed(params, states[0])
    expected = perturbed(perturbed(params, states[2]), states[3])
    assert equal(perturbed(params, states[1]), expected)
    halves = [{"a": True, "b": [False, False]}, {"a": False, "b": [True, True]}]
    apart = optax.chain(*(perturb(SIGMA, seed=SEED, mask=half) for half in halves))
    state = apart.update(params, apart.init(params), params)[1]
    assert equal(perturbed(params, state), perturbed(params, states[2]))
