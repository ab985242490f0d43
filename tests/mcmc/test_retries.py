"""Trials with shorter steps: they keep the target, free chains in narrow places, and are counted."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import chain
from targets import skewed_logdensity

import householder_mcmc as hm
from householder_mcmc.mcmc import retries

# Of a funnel: log-scale v ~ N(0, 9), x ~ N(0, exp(v)). Steps of 0.5 fail below v = -2.8, a quarter of them below -5.5.
STEP_SIZE = 0.5


def funnel(position):
    v, x = position
    return -(v**2) / 18 - v / 2 - x**2 * jnp.exp(-v) / 2


def draw_funnel(key):
    v, x = jax.random.normal(key, (2,))
    return jnp.array([3 * v, x * jnp.exp(1.5 * v)])


@pytest.fixture(params=[None, 0.3], ids=["leapfrog", "center"])
def build(request):
    """may_retry -> a kernel for the funnel."""
    center = None if request.param is None else jnp.full(2, request.param)
    return lambda may_retry=True: hm.hmc(funnel, STEP_SIZE, jnp.array([1.0, 0.7]), center, may_retry)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("hopeless", [10, 0.5])
def test_the_target_is_kept(build, hopeless, x64, monkeypatch):
    """One transition from 300,000 exact draws changes no mean by more than four standard errors.

    With trials that may fail at half a nat already, it matters how probable a failure is. Seen to fail: without trials
    from the other end, with one of them where there should be two, with momenta that are not reversed for them, and
    without the probability that they fail.
    """
    monkeypatch.setattr(retries, "_HOPELESS", hopeless)
    kernel = build()

    @jax.jit
    @jax.vmap
    def before_and_after(key):
        begin = draw_funnel(jax.random.fold_in(key, 1))
        state, info = kernel.step(key, kernel.init(begin))
        return begin, state.position, info

    before, after, info = before_and_after(jax.random.split(jax.random.key(0), 300_000))
    assert np.mean(np.any(before != after, axis=1) & (info.acceptance_rate < 1e-5)) > (
        0.01 if hopeless == 10 else 0.005
    )

    def functions(position):
        v, x = position.T
        z = x * np.exp(-v / 2)
        cells = [(low <= v) & (v < low + 1) for low in range(-10, 8)]
        return np.array([v, v**2, v**3, z**2, z**4, v * z**2, *cells], float)

    changes = functions(np.asarray(after)) - functions(np.asarray(before))
    errors = changes.std(axis=1) / np.sqrt(changes.shape[1])
    assert np.all(np.abs(changes.mean(axis=1)) < 4 * errors), changes.mean(axis=1) / errors


def test_a_chain_leaves_a_narrow_place(build):
    """At v = -7 the scale of x is a sixteenth of the step. Chains move within 40 transitions, or not within 1000."""
    start = jnp.array([-7.0, 0.03])

    def moves(may_retry, num):
        positions, _ = chain(build(may_retry), start, num)
        return np.any(positions != start)

    assert moves(True, 40) and not moves(False, 1000)


def narrow(position, frequency=10):
    return -jnp.sum((frequency * position) ** 2) / 2


def one_transition(kernel, frequency=10):
    """3000 transitions from one standard deviation away: states and infos."""
    state = kernel.init(jnp.array([1.0, -1.0]) / frequency)
    keys = jax.random.split(jax.random.key(0), 3000)
    return jax.jit(jax.vmap(lambda key: kernel.step(key, state)))(keys)


def test_all_trials_are_counted():
    """Steps of 0.4 fail where the scale is 0.1, a quarter of them does not. Trials: n steps, 4 n, and n from there."""
    _, first = one_transition(hm.hmc(narrow, 0.4, jnp.ones(2), may_retry=False))
    ends, info = one_transition(hm.hmc(narrow, 0.4, jnp.ones(2)))
    np.testing.assert_array_equal(info.acceptance_rate, first.acceptance_rate)
    is_accepted, num_steps = np.asarray(info.is_accepted), np.asarray(first.num_integration_steps)
    assert np.all(~first.is_accepted & first.is_divergent) and not np.any(info.is_divergent)
    assert is_accepted.mean() > 0.9
    np.testing.assert_array_equal(info.num_integration_steps[is_accepted], 6 * num_steps[is_accepted])
    assert np.all(info.energy > -jax.vmap(narrow)(ends.position))  # with the kinetic one


def test_where_no_trajectory_fails_nothing_changes():
    positions, info = chain(hm.hmc(skewed_logdensity, 0.4, jnp.ones(5)), jnp.zeros(5))
    others, other_info = chain(hm.hmc(skewed_logdensity, 0.4, jnp.ones(5), may_retry=False), jnp.zeros(5))
    assert 0.5 < info.is_accepted.mean() < 1
    jax.tree.map(np.testing.assert_array_equal, (positions, info), (others, other_info))


@pytest.mark.parametrize("frequency, share", [(10, 1.0), (40, 0.25), (160, 0.0625)])
def test_how_many_trials_there_are(frequency, share):
    """The trial that passes is the first, the second or the third. Of 3000, five standard errors are 0.04 at most.

    In float32 steps of 160 times the scale end in energies beyond its range.
    """
    _, info = one_transition(hm.hmc(partial(narrow, frequency=frequency), 0.4, jnp.ones(2)), frequency)
    error = 5 * np.sqrt(share / 3000)
    assert 0.9 * share - error <= info.is_accepted.mean() <= share + error


def test_no_trial_has_more_steps_than_the_most():
    kernel, state = hm.hmc.build_kernel(), hm.hmc.init(jnp.array([0.1, -0.1]), narrow)
    for limit, num_steps in {1000: 30, 20: 30, 19: 5}.items():  # 5 steps, 20 and 5 more
        _, info = kernel(jax.random.key(0), state, narrow, 0.4, jnp.ones(2), max_integration_steps=limit)
        assert info.num_integration_steps == num_steps


def test_a_trial_that_is_lost_stops():
    """Steps of 40 times the scale, then of 10, are lost after one or two; with all there would be 5 + 20 and more."""
    kernel = hm.hmc(partial(narrow, frequency=100), 0.4, jnp.ones(2))
    _, info = one_transition(kernel, 100)
    is_one_trial = ~info.is_accepted & (info.num_integration_steps < 12)
    assert is_one_trial.mean() > 0.6


@pytest.mark.parametrize("value", [jnp.nan, -jnp.inf])
def test_beyond_a_wall_there_are_no_trials(value):
    """Shorter steps would end beyond it too, at five times the cost."""

    def half(x):
        return jnp.where(x[0] > 0, -jnp.sum(x**2) / 2, value)

    _, info = chain(hm.hmc(half, 0.5, jnp.ones(2)), jnp.full(2, 0.5), 300)
    assert info.is_nonfinite.any() and info.num_integration_steps.max() <= 4


def test_chains_under_vmap_are_those_that_run_alone(build):
    kernel = build()
    keys = jax.random.split(jax.random.key(2), 50)
    states = jax.vmap(lambda key: kernel.init(draw_funnel(key)))(jax.random.split(jax.random.key(3), 50))
    together, info = jax.jit(jax.vmap(kernel.step))(keys, states)
    alone, alone_info = jax.lax.map(lambda args: kernel.step(*args), (keys, states))
    assert info.num_integration_steps.max() > 5 * info.num_integration_steps.min()
    np.testing.assert_array_equal(info.num_integration_steps, alone_info.num_integration_steps)
    np.testing.assert_allclose(together.position, alone.position, rtol=1e-3, atol=1e-6)
