"""One process that `benchmarks.first_answer` measures: a sampler on a model.

    python -m benchmarks.first_answer.child MODEL SAMPLER SEED NUM_WARMUP NUM_DRAWS FILE

Writes the draws to FILE, (NUM_CHAINS, NUM_DRAWS, d), and prints one line of JSON: the seconds that the imports of the
sampler and the model took. Imports are within functions because a process must import what its sampler needs and, until
then, nothing else.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import NamedTuple

NUM_CHAINS = 4
_NUM_GROUPS = 85


def main(model, sampler, seed, num_warmup, num_draws, file) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    began = time.perf_counter()
    packages, run = SAMPLERS[sampler]
    for package in packages:
        importlib.import_module(package)
    imported = time.perf_counter()
    build = MODELS[model].of_pymc if "pymc" in packages else MODELS[model].problem
    problem = build()
    built = time.perf_counter()
    draws = run(problem, int(seed), int(num_warmup), int(num_draws))
    importlib.import_module("numpy").save(file, draws)
    print(json.dumps({"import_seconds": imported - began, "model_seconds": built - imported}))


class Model(NamedTuple):
    """problem: () -> `benchmarks.posteriors.problems.Problem`. of_pymc: () -> the same as a `pymc.Model`."""

    problem: Callable
    of_pymc: Callable


class Sampler(NamedTuple):
    """packages: imported first. run: (problem, seed, num_warmup, num_draws) -> draws (NUM_CHAINS, num_draws, d)."""

    packages: tuple[str, ...]
    run: Callable


def ours(problem, seed, num_warmup, num_draws):
    import householder_mcmc as hm

    starts = problem.starts(seed, NUM_CHAINS)
    result = hm.sample(
        problem.logdensity, None, seed, starts=starts, num_warmup=num_warmup, num_draws=num_draws, progress=False
    )
    return result.draws["x"]


def blackjax_nuts(problem, seed, num_warmup, num_draws):
    """One chain after another, each with a window adaptation of its own; under `vmap` a model takes up to half more."""
    import blackjax
    import jax

    warmup = blackjax.window_adaptation(blackjax.nuts, problem.logdensity)

    def one_chain(args):
        key_warmup, key = jax.random.split(args[0])
        (state, parameters), _ = warmup.run(key_warmup, args[1], num_warmup)
        kernel = blackjax.nuts(problem.logdensity, **parameters)

        def one_step(state, key):
            state, _ = kernel.step(key, state)
            return state, state.position

        return jax.lax.scan(one_step, state, jax.random.split(key, num_draws))[1]

    keys = jax.random.split(jax.random.key(seed), NUM_CHAINS)
    return jax.jit(partial(jax.lax.map, one_chain))((keys, problem.starts(seed, NUM_CHAINS)))


def numpyro_nuts(problem, seed, num_warmup, num_draws):
    import jax
    from numpyro.infer import MCMC, NUTS

    mcmc = MCMC(
        NUTS(potential_fn=lambda x: -problem.logdensity(x)),
        num_warmup=num_warmup,
        num_samples=num_draws,
        num_chains=NUM_CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(seed), init_params=problem.starts(seed, NUM_CHAINS))
    return mcmc.get_samples(group_by_chain=True)


def nutpie_of_jax(problem, seed, num_warmup, num_draws, is_low_rank):
    """In double precision, which is nutpie's own."""
    import jax

    from benchmarks.posteriors.methods import nutpie_model

    with jax.enable_x64(True):
        compiled = nutpie_model(problem.logdensity, problem.starts(seed, NUM_CHAINS))
    return _nutpie(compiled, seed, num_warmup, num_draws, is_low_rank)


def nutpie_of_pymc(model, seed, num_warmup, num_draws, is_low_rank):
    """On the default backend, Numba; chains start where nutpie has them start."""
    import nutpie

    return _nutpie(nutpie.compile_pymc_model(model), seed, num_warmup, num_draws, is_low_rank)


def _nutpie(compiled, seed, num_warmup, num_draws, is_low_rank):
    import numpy as np
    import nutpie

    trace = nutpie.sample(
        compiled,
        draws=num_draws,
        tune=num_warmup,
        chains=NUM_CHAINS,
        cores=1,
        seed=seed,
        low_rank_modified_mass_matrix=is_low_rank,
        progress_bar=False,
    )
    variables = trace.posterior.data_vars.values()
    return np.concatenate([values.to_numpy().reshape(NUM_CHAINS, num_draws, -1) for values in variables], axis=2)


SAMPLERS = {
    "ours": Sampler(("jax", "householder_mcmc"), ours),
    "BlackJAX's NUTS": Sampler(("jax", "blackjax"), blackjax_nuts),
    "NumPyro's NUTS": Sampler(("jax", "numpyro.infer"), numpyro_nuts),
    "nutpie, JAX": Sampler(("jax", "nutpie"), partial(nutpie_of_jax, is_low_rank=False)),
    "nutpie, JAX, low rank": Sampler(("jax", "nutpie"), partial(nutpie_of_jax, is_low_rank=True)),
    "nutpie, PyMC": Sampler(("pymc", "nutpie"), partial(nutpie_of_pymc, is_low_rank=False)),
    "nutpie, PyMC, low rank": Sampler(("pymc", "nutpie"), partial(nutpie_of_pymc, is_low_rank=True)),
}


def _posterior(name):
    """A problem of `benchmarks.posteriors`."""
    from benchmarks.posteriors.problems import PROBLEMS

    return PROBLEMS[name]()


def _logistic_of_pymc():
    import numpy as np
    import pymc as pm

    data = np.load(files("benchmarks") / "data" / "german_credit.npz")
    with pm.Model() as model:
        weights = pm.Normal("weights", shape=data["features"].shape[1])
        pm.Bernoulli("labels", logit_p=data["features"] @ weights, observed=data["labels"])
    return model


def _made_groups():
    """Groups, a covariate of 0 or 1, and values of 900 observations in 85 groups of unequal sizes, as of radon."""
    import numpy as np

    rng = np.random.default_rng(0)
    groups = rng.choice(_NUM_GROUPS, 900, p=rng.dirichlet(np.ones(_NUM_GROUPS)))
    covariate = rng.binomial(1, 0.2, 900)
    intercepts = 1.3 + 0.3 * rng.normal(size=_NUM_GROUPS)
    return groups, covariate, intercepts[groups] - 0.6 * covariate + 0.75 * rng.normal(size=900)


def _hierarchical():
    """y ~ N(mean + tau white_group + slope covariate, sigma); position: mean, slope, log tau, log sigma, white (85,).

    mean, slope ~ N(0, 5), tau, sigma ~ HalfNormal(1), white ~ N(0, 1). Chains start in draws of N(0, 1).
    """
    import jax
    import jax.numpy as jnp

    groups, covariate, y = _made_groups()

    def logdensity(x):
        mean, slope, log_tau, log_sigma = x[:4]
        residuals = y - mean - jnp.exp(log_tau) * x[4:][groups] - slope * covariate
        likelihood = -0.5 * jnp.sum(residuals**2) * jnp.exp(-2 * log_sigma) - len(y) * log_sigma
        priors = (mean**2 + slope**2) / 25 + jnp.exp(2 * log_tau) + jnp.exp(2 * log_sigma) + jnp.sum(x[4:] ** 2)
        return likelihood - priors / 2 + log_tau + log_sigma

    from benchmarks.posteriors.problems import Problem

    def starts(seed, num_chains):
        return jax.random.normal(jax.random.key(seed), (num_chains, 4 + _NUM_GROUPS))

    return Problem(logdensity, starts, None, None)


def _hierarchical_of_pymc():
    import pymc as pm

    groups, covariate, y = _made_groups()
    with pm.Model() as model:
        mean, slope = pm.Normal("mean", sigma=5), pm.Normal("slope", sigma=5)
        tau, sigma = pm.HalfNormal("tau"), pm.HalfNormal("sigma")
        white = pm.Normal("white", shape=_NUM_GROUPS)
        pm.Normal("y", mean + tau * white[groups] + slope * covariate, sigma, observed=y)
    return model


def _item_response_of_pymc():
    import numpy as np
    import pymc as pm

    with (files("householder_mcmc.cli") / "data" / "item_response.npz").open("rb") as file:
        responses = np.load(file)["responses"]
    students, questions = np.nonzero(responses >= 0)
    with pm.Model() as model:
        ability = pm.Normal("student_ability", shape=responses.shape[0])
        difficulty = pm.Normal("question_difficulty", shape=responses.shape[1])
        mean = pm.Normal("mean_ability", 0.75)
        logits = mean + ability[students] - difficulty[questions]
        pm.Bernoulli("responses", logit_p=logits, observed=responses[students, questions])
    return model


def _gaussian_of_pymc():
    import numpy as np
    import pymc as pm

    from benchmarks.targets import gaussian_first

    target = gaussian_first(1000, np.random.default_rng(0), 3)
    with pm.Model() as model:
        centred = pm.Flat("x", shape=1000) - target.mean
        pm.Potential("logdensity", -0.5 * centred @ (target.precision @ centred))
    return model


MODELS = {
    "logistic regression, d = 25": Model(partial(_posterior, "German credit, d = 25"), _logistic_of_pymc),
    "hierarchical regression, d = 89": Model(_hierarchical, _hierarchical_of_pymc),
    "item response, d = 501": Model(partial(_posterior, "item response, d = 501"), _item_response_of_pymc),
    "first Gaussian, d = 1000": Model(partial(_posterior, "first Gaussian, d = 1000"), _gaussian_of_pymc),
}

if __name__ == "__main__":
    main(*sys.argv[1:])
