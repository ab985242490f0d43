"""`hm.mala` in BlackJAX's warm-ups."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.adaptation.metric_recipes import REGISTRY

import householder_mcmc as hm

VARIANCES = 1 / np.arange(1.0, 11.0)
METRICS = {
    "welford_diag": "welford_diag",
    "fisher_diag": "fisher_diag",
    "welford_dense": "welford_dense",
    "fisher_low_rank": REGISTRY["fisher_low_rank"].build_core(buffer_size=1000),
    "ours": hm.metric_core(3),
}
WARMUPS = {
    name: lambda f, metric=metric: blackjax.staged_adaptation(hm.mala, f, metric=metric, target_acceptance_rate=0.574)
    for name, metric in METRICS.items()
} | {
    "window": lambda f: blackjax.window_adaptation(hm.mala, f, target_acceptance_rate=0.574),
    "window_low_rank": lambda f: blackjax.window_adaptation_low_rank(
        hm.mala, f, max_rank=3, target_acceptance_rate=0.574
    ),
}


@pytest.mark.parametrize("name", WARMUPS)
def test_blackjaxs_warmups_take_our_kernel(name):
    """1000 steps on a Gaussian: every variance found within a factor of 2, and a step size that is accepted."""

    def logdensity(x):
        return -0.5 * jnp.sum(x**2 / jnp.asarray(VARIANCES, x.dtype))

    (state, parameters), _ = WARMUPS[name](logdensity).run(jax.random.key(0), jnp.ones(10), 1000)
    root = np.asarray(hm.as_preconditioner(parameters["inverse_mass_matrix"]).to_dense())
    ratios = np.diag(root @ root.T) / VARIANCES
    assert 0.5 < ratios.min() and ratios.max() < 2
    kernel = hm.mala(logdensity, **parameters)
    _, acceptance = jax.lax.scan(
        lambda state, key: (lambda s, i: (s, i.acceptance_rate))(*kernel.step(key, state)),
        state,
        jax.random.split(jax.random.key(1), 500),
    )
    assert 0.35 < acceptance.mean() < 0.85
