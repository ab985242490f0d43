"""Samplers with their warm-ups: a method is one entry of `METHODS`.

A method is a function (logdensity, starts (num_chains, d), key, budget) -> `Sample` that uses about
`budget.num_gradients` gradients of the log-density, all chains and the warm-up together.
"""

import itertools
import time
from collections.abc import Callable
from typing import NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

import householder_mcmc as hm
from householder_mcmc.adaptation.samplers import SAMPLERS
from householder_mcmc.mcmc.chains import step_chains

RANK = 32  # of `eigen` and of BlackJAX's low rank; `two_ended` and nutpie choose theirs
_BLOCK = 100  # draws of NUTS or HMC between counts of the gradients


class Budget(NamedTuple):
    """num_gradients: of all chains. warmup: draws of a chain. fewest_draws: of NUTS and HMC, after it."""

    num_gradients: int = 100_000
    warmup: int = 500
    fewest_draws: int = 300


class Sample(NamedTuple):
    """draws (num_draws, num_chains, d), without the warm-up. num_gradients: with it. seconds: of the processor, for
    sampling alone.

    num_warmup_gradients: of the warm-up. MALA's chains run side by side, those of the others one after another.
    """

    draws: np.ndarray
    num_gradients: int
    num_warmup_gradients: int
    seconds: float


def _thinning(dim, num_steps):
    """Steps of which one is kept, where a step is one or two gradients: ArviZ takes minutes for more numbers."""
    return max(1, dim * num_steps // 6_000_000)


def _timed(function, *args):
    compiled = jax.jit(function).lower(*args).compile()
    started = time.process_time()
    result = np.asarray(compiled(*args))
    return result, time.process_time() - started


def _collect(step, state, key, num_steps, thinning):
    """Every `thinning`-th position of a chain, or of chains."""

    def one_draw(carry, key):
        state, _ = jax.lax.scan(lambda state, key: (step(key, state), None), carry, jax.random.split(key, thinning))
        return state, state.position

    return jax.lax.scan(one_draw, state, jax.random.split(key, num_steps // thinning))[1]


def mala(scheme: Callable) -> Callable:
    """Our warm-up, then frozen MALA. scheme: d -> `hm.Scheme`."""

    def run(logdensity, starts, key, budget):
        num_chains, dim = starts.shape
        key_warmup, key = jax.random.split(key)
        warmup = hm.warmup(logdensity, scheme(dim), num_chains, sampler="mala")
        (state, parameters), info = warmup.run(key_warmup, starts, budget.warmup)
        num_warmup = int(info.num_gradients.sum())
        num_steps = (budget.num_gradients - num_warmup) // num_chains

        def sample(key, state, parameters):
            kernel = hm.mala(logdensity, **parameters)

            def all_chains(key, state):
                return step_chains(kernel.step, key, state)[0]

            return _collect(all_chains, state, key, num_steps, _thinning(dim, num_steps))

        draws, seconds = _timed(sample, key, state, parameters)
        return Sample(draws, budget.num_gradients, num_warmup, seconds)

    return run


def trajectories(algorithm: Callable, adapt: Callable) -> Callable:
    """NUTS or HMC, in blocks of draws until the gradients are used up.

    adapt: (logdensity, starts, key, budget) -> states, parameters, both with a leading chain axis, and gradients used.
    """

    def run(logdensity, starts, key, budget):
        key_warmup, key = jax.random.split(key)
        state, parameters, num_warmup = adapt(logdensity, starts, key_warmup, budget)

        def sample(key, state, parameters):
            def one_chain(args):
                key, state, parameters = args
                kernel = algorithm(logdensity, **parameters)

                def one_step(state, key):
                    state, info = kernel.step(key, state)
                    return state, (state.position, info.num_integration_steps)

                state, (draws, steps) = jax.lax.scan(one_step, state, jax.random.split(key, _BLOCK))
                return state, draws, steps.sum()

            return jax.lax.map(one_chain, (jax.random.split(key, len(starts)), state, parameters))

        compiled, blocks = jax.jit(sample).lower(key, state, parameters).compile(), []
        total = num_warmup
        started = time.process_time()
        while total < budget.num_gradients or len(blocks) * _BLOCK < budget.fewest_draws:
            key, key_block = jax.random.split(key)
            state, draws, num_gradients = compiled(key_block, state, parameters)
            blocks.append(np.asarray(draws))
            total += int(num_gradients.sum())
        seconds = time.process_time() - started
        return Sample(np.moveaxis(np.concatenate(blocks, axis=1), 0, 1), total, num_warmup, seconds)

    return run


def each_chain(build: Callable) -> Callable:
    """A BlackJAX warm-up of every chain by itself. build: (logdensity, d) -> (warm-up, info -> gradients used)."""

    def adapt(logdensity, starts, key, budget):
        warmup, count = build(logdensity, starts.shape[1])

        @jax.jit
        def run(keys, starts):
            def one_chain(args):
                (state, parameters), info = warmup.run(*args, budget.warmup)
                return state, parameters, count(info)

            return jax.lax.map(one_chain, (keys, starts))

        state, parameters, num_gradients = run(jax.random.split(key, len(starts)), starts)
        return state, parameters, int(num_gradients.sum())

    return adapt


def staged(metric) -> Callable:
    """BlackJAX's staged adaptation of NUTS with a metric, in each chain."""

    def build(logdensity, dim):
        warmup = blackjax.staged_adaptation(
            blackjax.nuts, logdensity, metric=metric, adaptation_info_fn=lambda _, info, __: info.num_integration_steps
        )
        return warmup, lambda info: info.sum()

    return each_chain(build)


def window_low_rank(rank: int) -> Callable:
    """BlackJAX's low-rank window adaptation of NUTS, in each chain."""

    def build(logdensity, dim):
        warmup = blackjax.window_adaptation_low_rank(blackjax.nuts, logdensity, max_rank=min(rank, dim))
        return warmup, lambda info: info.info.num_integration_steps.sum()

    return each_chain(build)


# Our HMC with leapfrog steps.
LEAPFROG = SAMPLERS["hmc"]._replace(longest_sigma=None)


def together(scheme: hm.Scheme, sampler: str | hm.Sampler = "hmc") -> Callable:
    """Our warm-up of all chains together."""

    def adapt(logdensity, starts, key, budget):
        warmup = hm.warmup(logdensity, scheme, len(starts), sampler=sampler)
        (state, parameters), info = warmup.run(key, starts, budget.warmup)
        of_each = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(starts), *leaf.shape)), parameters)
        return state, of_each, int(info.num_gradients.sum())

    return adapt


def nuts_on_map(logdensity, step_size, inverse_mass_matrix):
    """BlackJAX's NUTS on one of our maps, with leapfrog steps."""
    return blackjax.nuts(logdensity, step_size, inverse_mass_matrix.to_inverse_mass_matrix())


def nuts_on_gaussian(logdensity, **parameters):
    """BlackJAX's NUTS on one of our maps, with trajectories that solve the learnt Gaussian."""
    return blackjax.nuts(logdensity, **hm.for_blackjax(parameters))


def mclmc(logdensity, starts, key, budget):
    """BlackJAX's unadjusted microcanonical sampler, each chain tuned by itself; two gradients a step."""
    num_chains, dim = starts.shape
    key_tune, key = jax.random.split(key)

    @jax.jit
    def tune(keys, starts):
        def one_chain(args):
            key_init, key_tune = jax.random.split(args[0])
            state = blackjax.mcmc.mclmc.init(position=args[1], logdensity_fn=logdensity, rng_key=key_init)
            return blackjax.mclmc_find_L_and_step_size(
                mclmc_kernel=blackjax.mcmc.mclmc.build_kernel(),
                num_steps=10 * budget.warmup,  # each phase is a tenth of it
                state=state,
                rng_key=key_tune,
                logdensity_fn=logdensity,
            )

        return jax.lax.map(one_chain, (keys, starts))

    state, parameters, num_tuning = tune(jax.random.split(key_tune, num_chains), starts)
    num_tuning = int(num_tuning[0])
    num_steps = budget.num_gradients // (2 * num_chains) - num_tuning

    def sample(keys, state, parameters):
        def one_chain(args):
            key, state, parameters = args
            kernel = blackjax.mclmc(logdensity, **parameters._asdict())
            return _collect(
                lambda key, state: kernel.step(key, state)[0], state, key, num_steps, _thinning(dim, num_steps)
            )

        return jax.lax.map(one_chain, (keys, state, parameters))

    draws, seconds = _timed(sample, jax.random.split(key, num_chains), state, parameters)
    num_gradients = 2 * num_chains * (num_tuning + num_steps)
    return Sample(np.moveaxis(draws, 0, 1), num_gradients, 2 * num_chains * num_tuning, seconds)


def nutpie_model(logdensity, starts):
    """A log-density for nutpie, in double precision. Chains take the `starts` in turn, over and over."""
    from nutpie.compiled_pyfunc import from_pyfunc

    dim = starts.shape[1]
    value_and_grad = jax.jit(jax.value_and_grad(logdensity))
    handed_out = itertools.count()

    def logp(x):
        with jax.enable_x64(True):  # the setting is a thread's own, and nutpie calls from its own
            value, gradient = value_and_grad(x)
        return float(value), np.asarray(gradient)

    def initial_point(seed):
        return np.asarray(starts[next(handed_out) % len(starts)])

    return from_pyfunc(
        dim,
        lambda: logp,
        lambda *seeds: lambda x: {"x": np.asarray(x)},
        [np.dtype("float64")],
        [(dim,)],
        ["x"],
        make_initial_point_fn=initial_point,
    )


def nutpie(logdensity, starts, key, budget):
    """nutpie with its low-rank mass matrix, one chain after another; seconds include its calls of Python."""
    import nutpie as package

    model = nutpie_model(logdensity, starts)
    seed = int(jax.random.randint(key, (), 0, 2**30))

    def sample(num_draws):
        trace = package.sample(
            model,
            draws=num_draws,
            tune=budget.warmup,
            chains=len(starts),
            cores=1,
            seed=seed,
            low_rank_modified_mass_matrix=True,
            progress_bar=False,
            save_warmup=True,
        )
        steps = [int(stats.n_steps.sum()) for stats in (trace.warmup_sample_stats, trace.sample_stats)]
        return trace, np.array(steps)

    _, steps = sample(budget.fewest_draws)
    num_draws = int(budget.fewest_draws * (budget.num_gradients - steps[0]) / steps[1])
    started = time.process_time()
    trace, steps = sample(max(num_draws, budget.fewest_draws))
    seconds = (time.process_time() - started) * steps[1] / steps.sum()
    draws = np.swapaxes(trace.posterior["x"].to_numpy(), 0, 1)
    return Sample(draws, int(steps.sum()), int(steps[0]), seconds)


METHODS = {
    "MALA, two_ended": mala(lambda dim: hm.two_ended()),
    "MALA, eigen": mala(lambda dim: hm.eigen(min(RANK, dim))),
    "MALA, diagonal": mala(lambda dim: hm.diagonal()),
    "HMC, two_ended": trajectories(hm.hmc, together(hm.two_ended())),
    "HMC, two_ended, leapfrog": trajectories(hm.hmc, together(hm.two_ended(), LEAPFROG)),
    "HMC, diagonal": trajectories(hm.hmc, together(hm.diagonal())),
    "NUTS, two_ended": trajectories(nuts_on_gaussian, together(hm.two_ended())),
    "NUTS, two_ended, leapfrog": trajectories(nuts_on_map, together(hm.two_ended(), LEAPFROG)),
    "NUTS, two_ended in each chain": trajectories(blackjax.nuts, staged(hm.metric_core())),
    "NUTS, BlackJAX low rank": trajectories(blackjax.nuts, window_low_rank(RANK)),
    "NUTS, BlackJAX dense": trajectories(blackjax.nuts, staged("welford_dense")),
    "NUTS, BlackJAX diagonal": trajectories(blackjax.nuts, staged("welford_diag")),
    "NUTS, nutpie low rank": nutpie,
    "MCLMC, BlackJAX": mclmc,
}
OURS = tuple(name for name in METHODS if "two_ended" in name)
