"""The demo's model."""

from importlib.resources import files

import jax
import numpy as np

from householder_mcmc.cli import item_response


def test_item_response_density_is_the_models(x64):
    """Against the definition, written as Bernoulli log-probabilities of the asked entries."""
    logdensity, initial_position, reference = item_response.load()
    position = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), initial_position(jax.random.key(0)))
    with (files("householder_mcmc.cli") / "data" / "item_response.npz").open("rb") as file:
        responses = np.load(file)["responses"]
    student, question, mean = position
    right = 1 / (1 + np.exp(-(mean + student[:, None] - question)))
    expected = np.log(right[responses == 1]).sum() + np.log(1 - right[responses == 0]).sum()
    expected -= 0.5 * ((student**2).sum() + (question**2).sum() + (mean - 0.75) ** 2)
    np.testing.assert_allclose(logdensity(position), expected, rtol=1e-10)
    assert [np.shape(leaf) for leaf in reference.sd] == [(400,), (100,), ()]
