"""Options that are traced: batches of runs that differ in them are their members, and nothing traced is kept."""

import gc
import weakref

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from targets import skewed_logdensity

import householder_mcmc as hm
from householder_mcmc.learners.gains import diminishes
from householder_mcmc.sharing import program, shared

VALUES = jnp.array([0.6, 0.9])


def starts():
    return jnp.asarray(np.random.default_rng(0).normal(size=(2, 3)), float)


def adapted(scheme=None, **options):
    """The state after steps of adaptive MALA."""
    sampler = hm.adaptive_mala(skewed_logdensity, scheme or hm.diagonal(), 2, **options)
    keys = jax.random.split(jax.random.key(0), 8)
    return jax.lax.scan(lambda state, key: (sampler.step(key, state)[0], None), sampler.init(starts()), keys)[0]


def oja_gains(coefficient):
    return hm.DEFAULT_GAINS._replace(oja=hm.power_decay(0.7, coefficient, offset=1.0))


ADAPTIVE = {
    "forgetting": lambda value: adapted(hm.two_ended(1, block_size=2, forgetting=5 * value)),
    "target and step_size_gain": lambda value: adapted(
        target_acceptance_rate=value, step_size_gain=hm.power_decay(value, value)
    ),
    "gains of eigen": lambda value: adapted(hm.eigen(1, gains=oja_gains(value))),
    "gains of diagonal": lambda value: adapted(
        hm.diagonal(hm.DEFAULT_GAINS._replace(moments=hm.growing_memory(value)))
    ),
}


@pytest.mark.parametrize("name", ADAPTIVE)
def test_a_batch_of_adaptive_runs_is_its_members(name, x64):
    batch = jax.vmap(ADAPTIVE[name])(jnp.asarray(VALUES, float))
    one = ADAPTIVE[name](float(VALUES[1]))
    chex.assert_trees_all_close(jax.tree.map(lambda leaf: leaf[1], batch), one, rtol=1e-6, atol=1e-6)
    differ = jax.tree.map(lambda leaf: not np.array_equal(leaf[0], leaf[1]), batch)
    assert any(jax.tree.leaves(differ))


def test_a_traced_target_of_a_warmup():
    def step_size(target):
        warmup = hm.warmup(skewed_logdensity, hm.diagonal(), 2, target_acceptance_rate=target)
        return warmup.run(jax.random.key(0), starts(), 200)[0].parameters["step_size"]

    batch = jax.vmap(step_size)(VALUES)
    np.testing.assert_allclose(batch, [step_size(float(value)) for value in VALUES], rtol=1e-4)
    assert batch[0] > batch[1]


def test_a_traced_negligible_says_which_directions_are_scaled():
    """With a traced `negligible` of 5 an eigenvalue of 4 is left as it is."""

    @jax.jit
    def num_scaled(negligible):
        scheme = hm.two_ended(1, negligible=negligible)
        learnt = hm.LowRank(jnp.ones(6), jnp.eye(1, 6), jnp.array([4.0]))
        state = scheme.init(jnp.zeros((2, 6)))._replace(preconditioner=learnt)
        return jnp.sum(scheme.preconditioner(state).eigenvalues != 1)

    assert num_scaled(3.0) == 1 and num_scaled(5.0) == 0
    with pytest.raises(ValueError, match="negligible at least 1"):
        hm.two_ended(negligible=np.float32(0.5))
    with pytest.raises(ValueError, match="forgetting must be positive"):
        hm.two_ended(forgetting=jnp.zeros(()))


@pytest.mark.parametrize("transform", [jax.jit, lambda f: lambda x: jax.vmap(f)(x[None])], ids=["jit", "vmap"])
def test_of_traced_gains_it_is_not_known_whether_they_diminish(transform):
    def f(value):
        assert diminishes(hm.power_decay(value)) and diminishes(hm.growing_memory(value))
        assert not diminishes(lambda count: 0.1)
        return value

    transform(f)(VALUES[0])


@pytest.mark.parametrize("transform", [jax.jit, lambda f: lambda x: jax.vmap(f)(x[None])], ids=["jit", "vmap"])
def test_nothing_traced_leaks(transform):
    """No tracer leaks from schedules that read traced values, in schemes and in programs."""

    def run(value):
        ADAPTIVE["target and step_size_gain"](value)
        warmup = hm.warmup(
            skewed_logdensity, hm.diagonal(hm.DEFAULT_GAINS._replace(moments=hm.growing_memory(value))), 2
        )
        return warmup.run(jax.random.key(0), starts(), 10)[0].parameters

    with jax.checking_leaks():
        transform(run)(VALUES[0])


def test_neither_schemes_nor_programs_are_kept_with_what_is_traced():
    """Tracers that closures of the arguments hold are freed at the end of the trace."""

    @shared
    def factory(schedule):
        return lambda count: schedule(count) + 1

    @program
    def build(function, scheme):
        return lambda x: function(x) + scheme(0)

    refs = []

    def run(value):
        def schedule(count):
            return value * count

        refs.append(weakref.ref(schedule))
        return build(jnp.sum, factory(schedule))(jnp.ones(2))

    jax.vmap(run)(VALUES)
    gc.collect()
    assert refs[0]() is None
