"""Our kernels in BlackJAX's warm-ups."""

from functools import partial

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
WARMUPS = {name: partial(blackjax.staged_adaptation, metric=metric) for name, metric in METRICS.items()} | {
    "window": blackjax.window_adaptation,
    "window_low_rank": partial(blackjax.window_adaptation_low_rank, max_rank=3),
}
KERNELS = {"mala": (hm.mala, 0.574, 0.35, 0.85), "hmc": (hm.hmc, 0.8, 0.65, 0.95)}  # target acceptance, bounds


@pytest.mark.parametrize(
    "kernel, name",
    [*(("mala", name) for name in WARMUPS), *(("hmc", name) for name in ("ours", "window", "window_low_rank"))],
)
def test_blackjaxs_warmups_take_our_kernels(kernel, name):
    """1000 steps on a Gaussian: every variance found within a factor of 2, and a step size that is accepted."""

    def logdensity(x):
        return -0.5 * jnp.sum(x**2 / jnp.asarray(VARIANCES, x.dtype))

    api, target, low, high = KERNELS[kernel]
    warmup = WARMUPS[name](api, logdensity, target_acceptance_rate=target)
    (state, parameters), _ = warmup.run(jax.random.key(0), jnp.ones(10), 1000)
    root = np.asarray(hm.as_preconditioner(parameters["inverse_mass_matrix"]).to_dense())
    ratios = np.diag(root @ root.T) / VARIANCES
    assert 0.5 < ratios.min() and ratios.max() < 2
    kernel = api(logdensity, **parameters)
    _, acceptance = jax.lax.scan(
        lambda state, key: (lambda s, i: (s, i.acceptance_rate))(*kernel.step(key, state)),
        state,
        jax.random.split(jax.random.key(1), 500),
    )
    assert low < acceptance.mean() < high
