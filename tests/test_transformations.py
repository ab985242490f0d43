"""jit, vmap, strict promotion, leak and NaN checks, and runs that go on from a file."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from targets import skewed_logdensity

import householder_mcmc as hm

DIM, NUM_CHAINS = 5, 3
SCHEMES = {
    "none": hm.none,
    "diagonal": hm.diagonal,
    "dense": hm.dense,
    "eigen_latest": lambda: hm.eigen(2, gains=hm.LATEST_GAINS),
    "eigen_isotropic": lambda: hm.eigen(2, "isotropic"),
    "eigen": lambda: hm.eigen(2, refresh_every=2),
    "two_ended": lambda: hm.two_ended(2, block_size=2),
}


@pytest.fixture(params=SCHEMES)
def scheme(request):
    return SCHEMES[request.param]()


def starts(dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(0).normal(size=(NUM_CHAINS, DIM)), dtype)


def warmup(name, sampler):
    return hm.warmup(skewed_logdensity, SCHEMES[name](), NUM_CHAINS, sampler=sampler)


@pytest.mark.slow
def test_a_batch_of_warmups_under_jit_is_its_members(x64):
    """The members have other keys and positions. Only the second starts far away, and its learner starts anew."""
    warm_up = warmup("eigen", "hmc").run
    keys = jax.random.split(jax.random.key(0), 2)
    positions = jnp.stack([starts(jnp.float64), starts(jnp.float64) - 20])
    batch = jax.jit(jax.vmap(lambda key, x: warm_up(key, x, 20)))(keys, positions)
    for i in range(2):
        one = warm_up(keys[i], positions[i], 20)
        chex.assert_trees_all_close(jax.tree.map(lambda leaf, i=i: leaf[i], batch), one, rtol=1e-8, atol=1e-8)


@pytest.fixture
def strict():
    """No implicit promotion of dtypes or ranks, no leak of a tracer, no NaN."""
    with (
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
        jax.debug_nans(True),
        jax.checking_leaks(),
    ):
        yield


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, sampler",
    [("dense", "mala"), ("eigen_isotropic", "mala"), ("eigen", "hmc"), ("two_ended", "hmc"), ("diagonal", "hmc")],
)
def test_a_warm_up_and_its_frozen_kernel_run_under_strict_checks(name, sampler, strict):
    (state, parameters), _ = warmup(name, sampler).run(jax.random.key(0), starts(), 20)
    kernel = getattr(hm, sampler)(skewed_logdensity, **parameters)
    jax.jit(jax.vmap(kernel.step))(jax.random.split(jax.random.key(1), NUM_CHAINS), state)


@pytest.mark.slow
@pytest.mark.parametrize("family", [hm.variational.LowRankGaussian, hm.variational.LowRankScaleGaussian])
def test_variational_fits_run_under_strict_checks(family, strict):
    """With optax's SGD, because its Adam promotes dtypes by itself."""
    optimisers = [hm.variational.reverse_kl(optax.sgd(1e-2))]
    if family is hm.variational.LowRankGaussian:
        optimisers.append(hm.variational.pbam())
    for optimiser in optimisers:
        initial = family.start(starts()[0], rank=2)
        gaussian, _ = hm.variational.fit(optimiser, skewed_logdensity, initial, jax.random.key(0), num_steps=3)
        gaussian.sample(jax.random.key(1), 4)
        gaussian.to_preconditioner()
        gaussian.score(starts()[0])
        gaussian.kl_divergence(hm.variational.LowRankGaussian.start(starts()[0], rank=2))


def assert_goes_on_from_a_file(step, state, path):
    """Three steps, saved and loaded, and three more give six steps, bit for bit. step: (count, state) -> state."""

    def steps(state, counts):
        for count in counts:
            state = step(count, state)
        return state

    half = steps(state, range(3))
    np.savez(path, *jax.tree.leaves(half))
    with np.load(path) as saved:
        leaves = [jnp.asarray(saved[name]) for name in saved.files]
    loaded = jax.tree.unflatten(jax.tree.structure(state), leaves)
    chex.assert_trees_all_equal_shapes_and_dtypes(loaded, state)
    end = steps(half, range(3, 6))
    chex.assert_trees_all_equal(steps(loaded, range(3, 6)), end)
    assert any(np.any(old != new) for old, new in zip(leaves, jax.tree.leaves(end), strict=True))


def test_adaptive_runs_go_on_from_a_file(scheme, tmp_path):
    sampler = hm.adaptive_mala(skewed_logdensity, scheme, NUM_CHAINS)

    def step(count, state):
        return sampler.step(jax.random.key(count), state)[0]

    assert_goes_on_from_a_file(step, sampler.init(starts()), tmp_path / "state.npz")


def test_the_metric_core_goes_on_from_a_file(tmp_path):
    core = hm.metric_core(2)
    update = jax.jit(lambda state, x: core.update(state, x, x))
    draws = jax.random.normal(jax.random.key(0), (6, DIM))
    assert_goes_on_from_a_file(lambda count, state: update(state, draws[count]), core.init(DIM), tmp_path / "state.npz")


def test_a_variational_fit_goes_on_from_a_file(tmp_path):
    fit = hm.variational.low_rank_vi(skewed_logdensity, hm.variational.pbam(), rank=2, num_samples=4)
    update = jax.jit(lambda key, state: fit.step(key, state)[0])
    assert_goes_on_from_a_file(
        lambda count, state: update(jax.random.key(count), state), fit.init(jnp.zeros(DIM)), tmp_path / "state.npz"
    )


def test_a_state_outside_the_state_is_caught(tmp_path):
    """Planted defect: a step that counts its calls."""
    calls = []

    def step(count, state):
        del count
        calls.append(1)
        return state + len(calls)

    with pytest.raises(AssertionError):
        assert_goes_on_from_a_file(step, jnp.zeros(()), tmp_path / "state.npz")
