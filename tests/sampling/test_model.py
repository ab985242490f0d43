"""Models, and variables on restricted sets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

import householder_mcmc as hm
from householder_mcmc.results import diagnostics

constraints = pytest.importorskip("numpyro.distributions.constraints")


def test_half_normal_has_its_mean():
    """sqrt(2 / pi) = 0.798. Without the Jacobian log sigma has no proper posterior."""
    model = hm.constrained(lambda p: -0.5 * p["sigma"] ** 2, {"sigma": "positive"}, initial={"sigma": 1.0})
    result = hm.sample(model, num_warmup=300, num_draws=2000, progress=False)
    sigma = result.draws["sigma"]
    _, ess, _ = diagnostics.ess_and_rhat(sigma[..., None])
    assert ess[0] > 1000
    z = (sigma.mean(dtype=np.float64) - np.sqrt(2 / np.pi)) / (sigma.std() / np.sqrt(ess[0]))
    assert abs(z) < norm.ppf(1 - 0.5e-4)


# variable -> constraint, unconstrained -> original, log of its derivative
CASES = {
    "positive": ("positive", np.exp, lambda u: u),
    "unit": (constraints.unit_interval, expit, lambda u: np.log(expit(u) * expit(-u))),
    "interval": (
        constraints.interval(-1.0, 3.0),
        lambda u: -1 + 4 * expit(u),
        lambda u: np.log(4 * expit(u) * expit(-u)),
    ),
    "above": (constraints.greater_than(2.0), lambda u: 2 + np.exp(u), lambda u: u),
    "real": ("real", lambda u: u, lambda u: 0 * u),
}


@pytest.mark.parametrize("name", CASES)
def test_density_has_the_jacobian(name, x64):
    """log pi(t(u)) + sum of log t'(u), by hand; variables without a constraint are as they are."""
    constraint, transform, log_slope = CASES[name]
    model = hm.constrained(lambda p: -jnp.sum(p["v"] ** 2) + p["free"], {"v": constraint})
    u = np.array([-1.5, 0.2, 0.9])
    expected = -np.sum(transform(u) ** 2) + 0.7 + np.sum(log_slope(u))
    np.testing.assert_allclose(model.logdensity({"v": jnp.asarray(u), "free": 0.7}), expected, rtol=1e-12)
    np.testing.assert_allclose(model.constrain({"v": jnp.asarray(u), "free": 0.7})["v"], transform(u), rtol=1e-12)


def test_a_simplex_is_drawn_uniformly(x64):
    """Its last number is not free: d is one less. Log-density 0 is uniform: each mean is 1/3, each variance 1/18."""
    model = hm.constrained(lambda x: 0.0 * x.sum(), "simplex", initial=jnp.ones(3) / 3)
    assert model.initial.shape == (2,)
    np.testing.assert_allclose(model.constrain(model.initial), np.ones(3) / 3)
    x = hm.sample(model, num_warmup=300, num_draws=1500, progress=False).draws["x"]
    np.testing.assert_allclose(x.sum(axis=2), 1)
    for values, truth in ((x, 1 / 3), ((x - 1 / 3) ** 2, 1 / 18)):
        _, ess, _ = diagnostics.ess_and_rhat(values)
        z = (values.mean(axis=(0, 1)) - truth) / (values.std(axis=(0, 1)) / np.sqrt(ess))
        assert np.all(ess > 500) and np.abs(z).max() < norm.ppf(1 - 0.5e-4 / 6)


def test_starts_in_the_original_variables():
    model = hm.constrained(lambda p: -p["s"], {"s": "positive"}, initial={"s": 3})
    np.testing.assert_allclose(model.initial["s"], np.log(3), rtol=1e-6)
    drawn = hm.constrained(lambda p: -p["s"], {"s": "positive"}, lambda key: {"s": jnp.exp(jax.random.normal(key))})
    key = jax.random.key(0)
    np.testing.assert_allclose(drawn.initial(key)["s"], jax.random.normal(key), rtol=1e-5)


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        (({"s": "positve"},), ValueError, "'positve' is no constraint"),
        (({"s": "interval"},), ValueError, "'interval' is no constraint of numpyro.distributions.constraints without"),
        (({"s": 3},), ValueError, "3 is no constraint"),
        (({"s": constraints.boolean},), ValueError, "cannot be made unconstrained"),
        (({"s": "positive"}, {"s": -1.0}), ValueError, r"initial\['s'\] violates its constraint"),
        (({"s": "positive"}, {"t": 1.0}), ValueError, r"constraints are of \['s'\], but the position has \['t'\]"),
        (("positive", jnp.array([1.0, -1.0])), ValueError, "initial violates its constraint"),
    ],
)
def test_bad_constraints(arguments, error, text):
    with pytest.raises(error, match=text):
        hm.constrained(lambda p: 0.0, *arguments)


def test_a_position_without_the_variable():
    model = hm.constrained(lambda p: -p["s"], {"s": "positive"})
    with pytest.raises(ValueError, match=r"constraints are of \['s'\], but the position has \['t'\]"):
        hm.sample(model, {"t": 1.0}, progress=False)
