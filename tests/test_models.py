"""Models of other libraries, by their own routes to a JAX function of unconstrained parameters.

A conjugate model: rate_i ~ Gamma(2, 1), counts_i ~ Poisson(rate_i), so rate_i | counts ~ Gamma(2 + sum, 1 + number).
The averages of 16 chains are replicates, so each z is Student's t with 15 degrees of freedom; Bonferroni over the six
statistics, 1e-4 per test.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import warm_up_and_sample
from scipy.stats import t as student

import householder_mcmc as hm

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("keep_precision")]  # warnings of theirs

COUNTS = np.array([[0, 1, 3, 2], [7, 5, 9, 8], [1, 0, 0, 1]])
SHAPES, RATE = 2 + COUNTS.sum(axis=1), 1 + COUNTS.shape[1]
NUM_CHAINS = 16


def draws(logdensity, position):
    """Frozen draws, leaves (num_draws, num_chains, ...)."""
    positions = jax.tree.map(lambda leaf: jnp.stack([leaf] * NUM_CHAINS), position)
    states, _ = warm_up_and_sample(logdensity, hm.eigen(1), positions, 1000, 2000)
    return states.position


def assert_posterior(rates):
    """rates (num_draws, num_chains, 3)."""
    averages = np.stack([rates, rates**2], axis=-1).mean(axis=0, dtype=np.float64)
    truths = np.stack([SHAPES / RATE, SHAPES * (SHAPES + 1) / RATE**2], axis=-1)
    z = (averages.mean(axis=0) - truths) / (averages.std(axis=0, ddof=1) / np.sqrt(NUM_CHAINS))
    assert np.abs(z).max() < student.ppf(1 - 1e-4 / (2 * z.size), NUM_CHAINS - 1)


def test_numpyro():
    numpyro = pytest.importorskip("numpyro")
    from numpyro.infer.util import initialize_model

    def model(counts):
        rate = numpyro.sample("rate", numpyro.distributions.Gamma(2.0, 1.0).expand([3]).to_event(1))
        numpyro.sample("counts", numpyro.distributions.Poisson(rate[:, None]).to_event(2), obs=counts)

    start, potential_fn, constrain, _ = initialize_model(jax.random.key(0), model, model_args=(COUNTS,))
    xs = draws(lambda position: -potential_fn(position), start.z)
    assert_posterior(np.asarray(jax.vmap(jax.vmap(constrain))(xs)["rate"]))


def test_pymc():
    pymc = pytest.importorskip("pymc")
    from pymc.sampling.jax import get_jaxified_logp

    with pymc.Model() as model:
        rate = pymc.Gamma("rate", 2.0, 1.0, shape=3)
        pymc.Poisson("counts", rate[:, None], observed=COUNTS)

    logp = get_jaxified_logp(model)
    start = {name: jnp.asarray(value, jnp.float32) for name, value in model.initial_point().items()}
    xs = draws(lambda position: logp([position[variable.name] for variable in model.value_vars]), start)
    assert_posterior(np.exp(xs["rate_log__"]))
