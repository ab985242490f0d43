"""Fits from end to end: the loop, the VIAlgorithm, and kernels with the fitted map."""

import contextlib

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import householder_mcmc as hm
from householder_mcmc.variational import LowRankGaussian, LowRankScaleGaussian, fit, low_rank_vi, pbam, reverse_kl

DIM, RANK = 5, 2
PBAM, DESCENT = pbam(), reverse_kl(optax.adam(0.05))
# a fit is mostly compilation: one key and one number of steps for all
KEY, NUM_STEPS, BATCH = jax.random.key(0), 30, 8
SIZES = np.array([1.0, 3.0, 0.3, 1.0, 2.0])


def logdensity(x):
    """N((1, ..., 1), covariance) with one pair of correlated coordinates, normalised."""
    z = (x - 1) / SIZES
    return (
        -0.5 * jnp.sum(z**2)
        - 2 * (z[0] - z[1]) ** 2
        + 0.5 * jnp.log(9.0)
        - jnp.sum(jnp.log(SIZES * (2 * jnp.pi) ** 0.5))
    )


def covariance():
    coupling = np.zeros(DIM)
    coupling[:2] = 1, -1
    return SIZES[:, None] * np.linalg.inv(np.eye(DIM) + 4 * np.outer(coupling, coupling)) * SIZES


@pytest.fixture(scope="module")
def fitted():
    return fit(PBAM, logdensity, LowRankGaussian.start(jnp.zeros(DIM), RANK), KEY, NUM_STEPS, batch_size=BATCH)


def test_trace_is_the_elbo_and_falls_to_zero_divergence(fitted):
    """The target is normalised, so that the ELBO of an exact fit is 0, without noise."""
    gaussian, trace = fitted
    assert trace.elbo.shape == trace.num_dropped.shape == (NUM_STEPS,)
    assert trace.elbo[0] < -1
    np.testing.assert_allclose(trace.elbo[-1], 0, atol=1e-3)
    assert (trace.num_dropped == 0).all()
    start = LowRankGaussian.start(jnp.zeros(DIM), RANK)
    samples = start.sample(jax.random.split(KEY, NUM_STEPS)[0], BATCH)
    first = jnp.mean(jax.vmap(logdensity)(samples) - jax.vmap(start.log_density)(samples))
    np.testing.assert_allclose(trace.elbo[0], first, rtol=1e-5)


def test_map_goes_into_kernels_and_schemes(fitted):
    """Each form in which the fitted map can be given to a kernel has the covariance of the target."""
    preconditioner = fitted[0].to_preconditioner()
    root = preconditioner.to_dense()
    np.testing.assert_allclose(root @ root.T, covariance(), atol=1e-2)

    kernel = hm.mala(logdensity, 0.1, inverse_mass_matrix=preconditioner)
    state, info = jax.jit(kernel.step)(KEY, kernel.init(fitted[0].mean))
    assert np.isfinite(state.position).all() and not info.is_nonfinite

    positions = fitted[0].sample(KEY, 2)
    sampler = hm.adaptive_mala(logdensity, hm.fixed(preconditioner), num_chains=2)
    chains, _ = jax.jit(sampler.step)(KEY, sampler.init(positions))
    assert np.isfinite(chains.chains.position).all()

    nuts = blackjax.nuts(logdensity, 0.9, inverse_mass_matrix=preconditioner.to_inverse_mass_matrix())
    draws = jax.jit(lambda keys: jax.lax.scan(lambda s, k: (nuts.step(k, s)[0],) * 2, nuts.init(positions[0]), keys)[1])
    variances = draws(jax.random.split(KEY, 2000)).position.var(axis=0)
    # whitened exactly, NUTS draws are nearly independent: 0.8-1.25 is 7 standard errors of 2000
    np.testing.assert_allclose(np.log(variances / np.diag(covariance())), 0, atol=np.log(1.25))


def test_second_call_does_not_compile():
    traces = []

    def counted(x):
        traces.append(None)
        return -0.5 * jnp.sum(x**2)

    optimiser = reverse_kl(optax.sgd(0.1))
    first, second = LowRankGaussian.start(jnp.zeros(3), 1), LowRankGaussian.start(jnp.ones(3), 1)
    fit(optimiser, counted, first, KEY, 3, batch_size=2)
    num_traces = len(traces)
    assert num_traces > 0
    fit(optimiser, counted, second, jax.random.key(1), 3, batch_size=2)
    assert len(traces) == num_traces


@pytest.mark.parametrize("optimiser", [PBAM, DESCENT], ids=["pbam", "reverse_kl"])
def test_samples_outside_the_support_are_dropped_and_counted(optimiser):
    """The target is cut where x_0 <= 0, with log-density -inf and a zero gradient, and has NaN scores where x_1 > 1."""

    def cut(x):
        zero_with_nan_gradient = jnp.where(x[1] > 1, jnp.sqrt(jnp.maximum(1 - x[1], 0)), 0)
        return jnp.where(x[0] > 0, -0.5 * jnp.sum((x - 1) ** 2), -jnp.inf) + zero_with_nan_gradient

    start = LowRankGaussian.start(jnp.full(DIM, 0.5), RANK)
    gaussian, trace = fit(optimiser, cut, start, KEY, NUM_STEPS, batch_size=32)
    samples = start.sample(jax.random.split(KEY, NUM_STEPS)[0], 32)
    outside, bad = samples[:, 0] <= 0, samples[:, 1] > 1
    assert jnp.sum(outside & ~bad) > 0 and jnp.sum(bad & ~outside) > 0
    assert trace.num_dropped[0] == jnp.sum(outside | bad) < 32
    assert all(np.isfinite(part).all() for part in gaussian)
    assert np.isfinite(trace.elbo).all()


@pytest.mark.parametrize("optimiser", [PBAM, DESCENT], ids=["pbam", "reverse_kl"])
def test_a_target_that_is_nowhere_finite_changes_nothing(optimiser):
    start = LowRankGaussian.start(jnp.zeros(DIM), RANK)
    gaussian, trace = fit(optimiser, lambda x: jnp.nan * jnp.sum(x), start, KEY, NUM_STEPS, batch_size=BATCH)
    jax.tree.map(np.testing.assert_array_equal, gaussian, start)
    assert np.isnan(trace.elbo).all() and (trace.num_dropped == BATCH).all()


def test_vi_algorithm_repeats_fit_on_pytrees(fitted):
    """Steps of the `VIAlgorithm` with the same keys repeat `fit`."""

    def of_tree(position):
        return logdensity(jnp.append(position["a"], position["b"]))

    algorithm = low_rank_vi(of_tree, PBAM, RANK, num_samples=BATCH)
    state = algorithm.init({"a": jnp.zeros(DIM - 1), "b": jnp.zeros(())})
    step = jax.jit(algorithm.step)
    elbos = []
    for key in jax.random.split(KEY, NUM_STEPS)[:5]:
        state, info = step(key, state)
        elbos.append(info.elbo)
    np.testing.assert_allclose(elbos, fitted[1].elbo[:5], rtol=2e-2, atol=2e-2)
    samples = algorithm.sample(KEY, state, 7)
    assert samples["a"].shape == (7, DIM - 1) and samples["b"].shape == (7,)

    start = LowRankGaussian.start({"a": jnp.zeros(DIM - 1), "b": jnp.zeros(())}, RANK)
    gaussian, trace = fit(PBAM, of_tree, start, KEY, NUM_STEPS, batch_size=BATCH)
    assert jax.tree.structure(gaussian) == jax.tree.structure(start)
    np.testing.assert_allclose(trace.elbo[:5], fitted[1].elbo[:5], rtol=1e-3, atol=1e-3)


def test_vi_algorithm_with_the_other_family():
    algorithm = low_rank_vi(logdensity, DESCENT, RANK, num_samples=BATCH, family=LowRankScaleGaussian)
    state, info = jax.jit(algorithm.step)(KEY, algorithm.init(jnp.zeros(DIM)))
    assert isinstance(state.params, LowRankScaleGaussian) and np.isfinite(info.elbo)
    assert algorithm.sample(KEY, state).shape == (1, DIM)


def test_progress_bar_sees_every_step_after_a_fit_without_one(monkeypatch):
    pytest.importorskip("jaxtap")
    bars = []

    @contextlib.contextmanager
    def recorded(**options):
        with progress_bar(**options) as bar:
            yield bars.append(bar)

    progress_bar = blackjax.progress_bar
    monkeypatch.setattr(blackjax, "progress_bar", recorded)
    start = LowRankGaussian.start(jnp.zeros(DIM), RANK)
    silent, _ = fit(DESCENT, logdensity, start, KEY, NUM_STEPS, batch_size=BATCH)
    assert not bars
    shown, _ = fit(DESCENT, logdensity, start, KEY, NUM_STEPS, batch_size=BATCH, progress=True)
    assert [bar.n_steps for bar in bars] == [NUM_STEPS]
    np.testing.assert_allclose(shown.diagonal, silent.diagonal, rtol=1e-5)


def test_no_steps_return_the_start():
    start = LowRankGaussian.start(jnp.zeros(DIM), RANK)
    gaussian, trace = fit(PBAM, logdensity, start, KEY, 0)
    jax.tree.map(np.testing.assert_array_equal, gaussian, start)
    assert trace.elbo.shape == (0,)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"batch_size": 1}, "samples of a batch must be at least 2, got 1"),
        ({"num_steps": -1}, "num_steps must be at least 0, got -1"),
    ],
)
def test_bad_options_are_refused(options, match):
    start = LowRankGaussian.start(jnp.zeros(DIM), RANK)
    with pytest.raises(ValueError, match=match):
        fit(PBAM, logdensity, start, KEY, **({"num_steps": 3} | options))


@pytest.mark.parametrize("options", [{"batch_size": 2.5}, {"num_steps": 2.5}], ids=str)
def test_numbers_that_are_no_integers_are_refused(options):
    with pytest.raises(TypeError, match="must be an integer, got 2.5"):
        fit(PBAM, logdensity, LowRankGaussian.start(jnp.zeros(DIM), RANK), KEY, **({"num_steps": 3} | options))


def test_vi_algorithm_refuses_a_batch_of_one_and_a_rank_above_d():
    with pytest.raises(ValueError, match="samples of a batch must be at least 2, got 1"):
        low_rank_vi(logdensity, PBAM, RANK, num_samples=1)
    with pytest.raises(ValueError, match="at most d = 5, got 6"):
        low_rank_vi(logdensity, PBAM, 6).init(jnp.zeros(DIM))


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", [pbam(), pbam(lambda count: 100 / (1 + count))], ids=["default", "schedule"])
def test_german_credit_posterior(optimiser, german_credit):
    """Against reference moments, on a posterior of 25 weights that is nearly Gaussian.

    The fit has no Monte Carlo error to speak of after 100 updates, with lambda falling to 1; what is left is that of
    the approximation, which the bounds state: means within a fifth of an sd, sds within a tenth.
    """
    logdensity, mean, sd, _ = german_credit
    start = LowRankGaussian.start(jnp.zeros(len(mean)), 8)
    gaussian, _ = fit(optimiser, logdensity, start, KEY, 100)
    variances = gaussian.diagonal + jnp.sum(gaussian.factor**2, axis=0)
    np.testing.assert_allclose((gaussian.mean - mean) / sd, 0, atol=0.2)
    np.testing.assert_allclose(np.sqrt(variances) / sd, 1, atol=0.1)


def test_a_chain_that_extrapolates_keeps_variances_positive():
    """The target is 100 times narrower than the start, so that momentum would make variances negative."""

    def logdensity(x):
        return -0.5 * jnp.sum((100 * x) ** 2)

    optimiser = optax.chain(hm.variational.pbam(), optax.trace(0.9))
    initial = LowRankGaussian.start(jnp.zeros(4), 1)
    gaussian, trace = fit(optimiser, logdensity, initial, jax.random.key(0), 60)
    assert jnp.all(gaussian.diagonal > 0) and not jnp.any(trace.num_dropped)
    assert jnp.all(jnp.isfinite(trace.elbo))


def test_a_log_density_of_another_shape_is_refused():
    initial = LowRankGaussian.start(jnp.zeros(4), 1)
    with pytest.raises(ValueError, match=r"the log-density must be one number, of shape \(\), got shape \(1,\)"):
        fit(hm.variational.pbam(), lambda x: -jnp.sum(x**2, keepdims=True), initial, jax.random.key(0), 3)


def test_options_of_pbam_may_be_traced():
    """`optax.inject_hyperparams` makes options traced. The fit is that of the same options as numbers."""
    initial = LowRankGaussian.start(jnp.zeros(4), 1)

    def run(optimiser):
        return fit(optimiser, lambda x: -jnp.sum((x - 1) ** 2), initial, jax.random.key(0), 5)[0]

    injected = optax.inject_hyperparams(hm.variational.pbam)(regularisation=10.0, patch_tolerance=1e-4)
    expected = run(hm.variational.pbam(regularisation=10.0, patch_tolerance=1e-4))
    np.testing.assert_allclose(run(injected).mean, expected.mean, rtol=1e-4)
    with pytest.raises(TypeError, match="max_patch_steps must be an integer, got 2.5"):
        hm.variational.pbam(max_patch_steps=2.5)
