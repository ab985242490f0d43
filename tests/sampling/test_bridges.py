"""Models of NumPyro and PyMC in one call: names, dimensions, predictions, and the posterior of their own samplers."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import householder_mcmc as hm
from householder_mcmc.results import diagnostics

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("keep_precision")]  # warnings of theirs

# Eight schools (Rubin 1981).
EFFECTS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
ERRORS = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def schools(errors, effects):
    import numpyro
    from numpyro.distributions import HalfCauchy, Normal

    mu, tau = numpyro.sample("mu", Normal(0, 5)), numpyro.sample("tau", HalfCauchy(5))
    with numpyro.plate("school", len(errors)):
        z = numpyro.sample("z", Normal(0, 1))
        theta = numpyro.deterministic("theta", mu + tau * z)
        numpyro.sample("effect", Normal(theta, errors), obs=effects)


def pymc_schools():
    import pymc

    with pymc.Model(coords={"school": list("ABCDEFGH")}) as model:
        mu, tau = pymc.Normal("mu", 0, 5), pymc.HalfCauchy("tau", 5)
        z = pymc.Normal("z", 0, 1, dims="school")
        theta = pymc.Deterministic("theta", mu + tau * z, dims="school")
        pymc.Normal("effect", theta, ERRORS, observed=EFFECTS, dims="school")
    return model


def joint(mu, tau, z):
    """The log-density of eight schools by hand, up to a constant, of log tau."""
    theta = mu + tau * z
    prior = norm.logpdf(mu, 0, 5) - np.log1p((tau / 5) ** 2) + norm.logpdf(z).sum()
    return prior + norm.logpdf(EFFECTS, theta, ERRORS).sum() + np.log(tau)


def positions():
    rng = np.random.default_rng(0)
    return [{"mu": rng.normal(), "tau": rng.normal(), "z": rng.normal(size=8)} for _ in range(3)]


def assert_joint(model):
    """Differences of the log-density, so that constants do not count, and what positions mean."""
    found = [float(model.logdensity(jax.tree.map(jnp.asarray, position))) for position in positions()]
    expected = [joint(p["mu"], np.exp(p["tau"]), p["z"]) for p in positions()]
    np.testing.assert_allclose(np.diff(found), np.diff(expected), rtol=1e-4)
    first = positions()[0]
    values = model.constrain(jax.tree.map(jnp.asarray, first))
    assert set(values) == {"mu", "tau", "z", "theta"}
    np.testing.assert_allclose(values["tau"], np.exp(first["tau"]), rtol=1e-5)
    np.testing.assert_allclose(values["theta"], first["mu"] + np.exp(first["tau"]) * first["z"], rtol=1e-5)
    terms = model.log_likelihood(jax.tree.map(jnp.asarray, first))
    np.testing.assert_allclose(terms["effect"], norm.logpdf(EFFECTS, values["theta"], ERRORS), rtol=1e-4)


def test_numpyro_model():
    pytest.importorskip("numpyro")
    model = hm.from_numpyro(schools, ERRORS, EFFECTS)
    assert_joint(model)
    assert model.dims == {"z": ["school"], "theta": ["school"], "effect": ["school"]}
    position = jax.tree.map(jnp.asarray, positions()[0])
    predicted = jax.vmap(lambda key: model.predict(key, position)["effect"])(jax.random.split(jax.random.key(1), 4000))
    theta = model.constrain(position)["theta"]
    z = (predicted.mean(axis=0) - theta) / (ERRORS / np.sqrt(4000))
    assert np.abs(z).max() < norm.ppf(1 - 0.5e-4 / 8)
    np.testing.assert_allclose(predicted.std(axis=0), ERRORS, rtol=0.06)  # 5 standard errors


def test_pymc_model():
    pytest.importorskip("pymc")
    before = os.environ.get("XLA_FLAGS"), jax.config.jax_enable_x64
    model = hm.from_pymc(pymc_schools())
    assert (os.environ.get("XLA_FLAGS"), jax.config.jax_enable_x64) == before
    assert_joint(model)
    assert model.coords == {"school": list("ABCDEFGH")}
    assert model.dims["theta"] == ["school"]


def test_models_that_cannot_be_sampled():
    pymc, numpyro = pytest.importorskip("pymc"), pytest.importorskip("numpyro")
    with pymc.Model() as counts:
        pymc.Poisson("n", 3)
    with pytest.raises(ValueError, match=r"discrete variables \['n'\]: sum them out first"):
        hm.from_pymc(counts)
    with pymc.Model() as empty, pytest.raises(ValueError, match="the model has no free variable"):
        hm.from_pymc(empty)
    with pytest.raises(ValueError, match="no latent variable"):
        hm.from_numpyro(lambda: numpyro.sample("y", numpyro.distributions.Normal(0, 1), obs=1.0))


def assert_same_means(ours, theirs):
    """Two samplers' means of variables and of their squares agree; Bonferroni over all to 1e-4."""
    zs = []
    for name in ours:
        for power in (1, 2):
            means, errors = [], []
            for draws in (ours[name], theirs[name]):
                x = np.asarray(draws, np.float64).reshape(*draws.shape[:2], -1) ** power
                _, ess, _ = diagnostics.ess_and_rhat(x)
                assert np.all(ess > 400)
                means.append(x.mean(axis=(0, 1)))
                errors.append(x.var(axis=(0, 1)) / ess)
            zs.append((means[0] - means[1]) / np.sqrt(errors[0] + errors[1]))
    z = np.concatenate(zs)
    assert np.abs(z).max() < norm.ppf(1 - 0.5e-4 / z.size)


# Of tau only the logarithm: its square has a heavy tail, whose mean no short run knows.
def with_log_tau(draws):
    return {"mu": draws["mu"], "log tau": np.log(draws["tau"]), "theta 0": draws["theta"][..., :1], "z": draws["z"]}


@pytest.fixture(scope="module")
def by_nuts():
    numpyro = pytest.importorskip("numpyro")
    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(schools, target_accept_prob=0.95),
        num_warmup=1000,
        num_samples=4000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), ERRORS, EFFECTS)
    return with_log_tau(jax.tree.map(np.asarray, mcmc.get_samples(group_by_chain=True)))


@pytest.mark.slow
def test_numpyro_has_the_posterior_of_its_own_nuts(by_nuts):
    numpyro = pytest.importorskip("numpyro")
    result = hm.sample(hm.from_numpyro(schools, ERRORS, EFFECTS), num_draws=4000, progress=False)
    assert_same_means(with_log_tau(result.draws), by_nuts)
    predictive = numpyro.infer.Predictive(schools, result.draws, batch_ndims=2)
    assert predictive(jax.random.key(0), ERRORS, None)["effect"].shape == (4, 4000, 8)
    trace = result.to_arviz(posterior_predictive=True)
    assert trace["posterior_predictive"]["effect"].dims == ("chain", "draw", "school")


@pytest.mark.slow
def test_numpyro_runs_our_kernel(by_nuts):
    """In its own MCMC, warm-up and draws apart: the same posterior, and the fields that it prints."""
    numpyro = pytest.importorskip("numpyro")
    kernel = hm.numpyro_kernel(schools)
    options = {"num_chains": 4, "chain_method": "vectorized", "progress_bar": False}
    mcmc = numpyro.infer.MCMC(kernel, num_warmup=1000, num_samples=4000, **options)
    mcmc.warmup(jax.random.key(1), ERRORS, EFFECTS)
    mcmc.run(jax.random.key(2), ERRORS, EFFECTS, extra_fields=("num_steps", "accept_prob"))
    assert_same_means(with_log_tau(jax.tree.map(np.asarray, mcmc.get_samples(group_by_chain=True))), by_nuts)
    fields = mcmc.get_extra_fields(group_by_chain=True)
    assert fields["num_steps"].shape == (4, 4000) and np.all(fields["num_steps"] > 0)
    assert 0.6 < fields["accept_prob"].mean() <= 1 and fields["diverging"].mean() < 0.05


def test_numpyro_runs_our_kernel_on_chains_together():
    numpyro = pytest.importorskip("numpyro")
    mcmc = numpyro.infer.MCMC(hm.numpyro_kernel(schools), num_warmup=5, num_samples=5, progress_bar=False)
    with pytest.raises(ValueError, match="num_chains of at least 2 and chain_method='vectorized'"):
        mcmc.run(jax.random.key(0), ERRORS, EFFECTS)


@pytest.mark.slow
def test_pymc_has_the_same_posterior(by_nuts):
    pymc = pytest.importorskip("pymc")
    theirs = pymc_schools()
    result = hm.sample(hm.from_pymc(theirs), num_draws=4000, progress=False)
    assert_same_means(with_log_tau(result.draws), by_nuts)
    trace = result.to_arviz(log_likelihood=True)
    assert list(trace["posterior"]["theta"].coords["school"].values) == list("ABCDEFGH")
    predicted = pymc.sample_posterior_predictive(trace, theirs, progressbar=False)
    assert predicted["posterior_predictive"]["effect"].shape == (4, 4000, 8)


def radon(group, floor, y):
    """Levels of 85 groups of unequal size, and a slope."""
    from numpyro import plate, sample
    from numpyro.distributions import HalfNormal, Normal

    mu, slope = sample("mu", Normal(0, 5)), sample("slope", Normal(0, 5))
    tau, sigma = sample("tau", HalfNormal(1)), sample("sigma", HalfNormal(1))
    with plate("group", 85):
        z = sample("z", Normal(0, 1))
    sample("y", Normal(mu + tau * z[group] + slope * floor, sigma), obs=y)


def radon_data():
    rng = np.random.default_rng(0)
    group = rng.choice(85, size=900, p=rng.dirichlet(np.ones(85)))
    floor = rng.integers(2, size=900)
    return group, floor, 1.5 + 0.3 * rng.normal(size=85)[group] - 0.7 * floor + 0.7 * rng.normal(size=900)


def logistic(x, y):
    """Weights with a scale that is unknown and positive."""
    from numpyro import sample
    from numpyro.distributions import Bernoulli, HalfNormal, Normal

    scale = sample("scale", HalfNormal(1))
    weights = sample("weights", Normal(0, scale).expand([x.shape[1]]).to_event(1))
    sample("y", Bernoulli(logits=x @ weights), obs=y)


def logistic_data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 5)) @ (np.eye(5) + 0.5)
    return x, (rng.random(200) < 1 / (1 + np.exp(-x @ [1.0, -1, 0.5, 0, 0.2]))).astype(np.int32)


def logistic_by_hand(x, y):
    """The same in JAX alone, of the scale itself."""

    def logdensity(position):
        scale, weights = position["scale"], position["weights"]
        prior = -0.5 * scale**2 - 0.5 * jnp.sum((weights / scale) ** 2) - 5 * jnp.log(scale)
        logits = jnp.asarray(x, weights.dtype) @ weights
        return prior + jnp.sum(y * logits - jnp.logaddexp(0, logits))

    return hm.constrained(logdensity, {"scale": "positive"}, {"scale": 1.0, "weights": np.zeros(5)})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["radon", "logistic"])
def test_posteriors_are_those_of_numpyros_nuts(name):
    numpyro = pytest.importorskip("numpyro")
    model, data = {"radon": (radon, radon_data()), "logistic": (logistic, logistic_data())}[name]
    ours = hm.from_numpyro(radon, *data) if name == "radon" else logistic_by_hand(*data)
    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model),
        num_warmup=500,
        num_samples=1000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), *data)
    theirs = jax.tree.map(np.asarray, mcmc.get_samples(group_by_chain=True))
    draws = hm.sample(ours, num_draws=1500, progress=False).draws
    assert draws.keys() == theirs.keys()
    assert_same_means(draws, theirs)
