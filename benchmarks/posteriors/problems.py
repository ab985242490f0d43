"""Posteriors with known moments: a problem is one entry of `PROBLEMS`.

Data and reference moments are those of inference-gym 0.0.5 (Apache License 2.0: German credit, stochastic volatility,
log-Gaussian Cox process, item response), of posteriordb (BSD 3-clause: 10,000 reference draws each) and, for the breast
cancer data (UCI, through scikit-learn, BSD 3-clause), a long run of NUTS in double precision. Positions are
unconstrained vectors: positive parameters are sampled as their logarithms.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.stats import t as student_t

from benchmarks import targets
from benchmarks.posteriors import cox_grid
from householder_mcmc.cli import item_response

_DATA = Path(__file__).parents[1] / "data"


class Problem(NamedTuple):
    """starts: (seed, num_chains) -> (num_chains, d). statistics: draws (..., d) -> (..., p).

    means and variances (p,): of the statistics, known.
    """

    logdensity: Callable
    starts: Callable
    means: np.ndarray
    variances: np.ndarray
    statistics: Callable = np.asarray


def _of_target(target, means):
    """Chains start in equilibrium, or at the mode: as in the paper."""

    def starts(seed, num_chains):
        return jnp.asarray(target.start(np.random.default_rng(seed), num_chains))

    return Problem(target.logdensity, starts, means, np.diag(target.covariance()))


def _first_gaussian(dim):
    target = targets.gaussian_first(dim, np.random.default_rng(0), 3)
    return _of_target(target, target.mean)


def _second_gaussian(dim):
    target = targets.gaussian_second(dim, np.random.default_rng(0))
    return _of_target(target, target.mean)


def _synthetic_logistic():
    target = targets.logistic(100, np.random.default_rng(0))
    return _of_target(target, target.mean())


def _xy():
    """The cosine and the sine of each angle; all angles are uniform on the circle."""
    target = targets.xy(20, np.random.default_rng(0))
    return Problem(
        target.logdensity,
        lambda seed, num_chains: jnp.asarray(target.start(None, num_chains)),
        np.zeros(40),
        np.full(40, 0.5),
        lambda draws: np.concatenate([np.cos(draws), np.sin(draws)], axis=-1),
    )


def _prior_draws(dim):
    return lambda seed, num_chains: jax.random.normal(jax.random.key(seed), (num_chains, dim))


def _regression(name):
    """Bayesian logistic regression, weights ~ N(0, 1); chains start in draws of the prior."""
    data = np.load(_DATA / f"{name}.npz")
    features, labels = jnp.asarray(data["features"], float), jnp.asarray(data["labels"], float)

    def logdensity(weights):
        logits = jnp.matmul(features, weights, precision="highest")
        return jnp.sum(labels * logits - jnp.logaddexp(0, logits)) - 0.5 * jnp.sum(weights**2)

    return Problem(logdensity, _prior_draws(features.shape[1]), data["weights_mean"], data["weights_sd"] ** 2)


def _item_response():
    """Chains start in draws of the prior."""
    logdensity, initial_position, reference = item_response.load()
    _, unravel = ravel_pytree(initial_position(jax.random.key(0)))
    mean, sd = (np.asarray(ravel_pytree(moments)[0]) for moments in (reference.mean, reference.sd))

    def starts(seed, num_chains):
        keys = jax.random.split(jax.random.key(seed), num_chains)
        return jax.vmap(lambda key: ravel_pytree(initial_position(key))[0])(keys)

    return Problem(lambda x: logdensity(unravel(x)), starts, mean, sd**2)


def _dispersed(mean, sd):
    """Starts at twice the marginal standard deviations: in a narrow direction that can be thousands of its own."""

    def starts(seed, num_chains):
        return jnp.asarray(mean + 2 * sd * np.random.default_rng(seed).normal(size=(num_chains, len(mean))))

    return starts


def _stochastic_volatility():
    """r_t ~ N(0, exp(h_t)), h a stationary AR(1); position: h, mu, 2 atanh(phi), log s, the statistics: h, mu, phi, s.

    (phi + 1) / 2 ~ Beta(20, 1.5), mu ~ Cauchy(0, 5), s ~ HalfCauchy(2).
    """
    data = np.load(_DATA / "stochastic_volatility_sp500.npz")
    squared_returns = jnp.asarray(data["centered_log_returns"] ** 2)

    def logdensity(x):
        h, mu, logit, log_s = x[:-3], x[-3], x[-2], x[-1]
        phi, precision = jnp.tanh(logit / 2), jnp.exp(-2 * log_s)
        centred = h - mu
        first = jnp.log1p(-(phi**2)) - precision * (1 - phi**2) * centred[0] ** 2
        squares = jnp.sum((centred[1:] - phi * centred[:-1]) ** 2)
        of_volatility = 0.5 * (first - precision * squares) - len(squared_returns) * log_s
        of_returns = -0.5 * jnp.sum(h + squared_returns * jnp.exp(-h))
        prior = -jnp.log1p((mu / 5) ** 2) - jnp.log1p(jnp.exp(2 * log_s) / 4) + log_s
        prior += 20 * jax.nn.log_sigmoid(logit) + 1.5 * jax.nn.log_sigmoid(-logit)
        return of_volatility + of_returns + prior

    names = ("log_volatility", "mean_log_volatility", "persistence", "shock_scale")
    means, sds = (np.concatenate([np.atleast_1d(data[f"{n}_{moment}"]) for n in names]) for moment in ("mean", "sd"))
    phi, s = means[-2:]
    start = np.r_[means[:-2], 2 * np.arctanh(phi), np.log(s)]
    spread = np.r_[sds[:-2], 2 * sds[-2] / (1 - phi**2), sds[-1] / s]

    def statistics(draws):
        return np.concatenate([draws[..., :-2], np.tanh(draws[..., -2:-1] / 2), np.exp(draws[..., -1:])], axis=-1)

    return Problem(logdensity, _dispersed(start, spread), means, sds**2, statistics)


def _log_gaussian_cox():
    """Counts ~ Poisson(extent exp(f)), f a Matern 3/2 process; position: whitened f, log amplitude, log length scale.

    The references are of the amplitude and the length scale. Chains start in draws of a standard normal.
    """
    data = np.load(_DATA / "log_gaussian_cox.npz")
    counts, extents, locations = (jnp.asarray(data[name], float) for name in ("counts", "extents", "locations"))
    distances = jnp.sqrt(jnp.sum((locations[:, None] - locations) ** 2, axis=2))
    level = jnp.mean(jnp.log(counts) - jnp.log(extents))

    def logdensity(x):
        white, log_amplitude, log_length = x[:-2], x[-2], x[-1]
        scaled = jnp.sqrt(3) * distances / (jnp.exp(log_length) + 0.001)
        covariance = (jnp.exp(log_amplitude) + 0.001) ** 2 * (1 + scaled) * jnp.exp(-scaled)
        f = level + jnp.linalg.cholesky(covariance + 1e-6 * jnp.eye(len(white))) @ white
        prior = -0.5 * jnp.sum(white**2) - 0.5 * ((log_amplitude + 1) / 0.5) ** 2 - 0.5 * (log_length + 1) ** 2
        return jnp.sum(counts * f - extents * jnp.exp(f)) + prior

    means, sds = (np.array([data[f"{n}_{moment}"] for n in ("amplitude", "length_scale")]) for moment in ("mean", "sd"))
    return Problem(
        logdensity, _prior_draws(len(counts) + 2), means, sds**2, lambda draws: np.exp(np.asarray(draws)[..., -2:])
    )


def _cox_grid(kernel):
    """Chains start in draws of the prior."""
    with np.load(cox_grid.PATH) as file:
        data = {name: file[f"{kernel}/{name}"] for name in ("counts", "mean", "sd")}
    factor = np.linalg.cholesky(cox_grid.covariance(kernel))

    def starts(seed, num_chains):
        noise = np.random.default_rng([seed, 1]).normal(size=(num_chains, len(factor)))  # not that of the data
        return jnp.asarray(cox_grid.level() + noise @ factor.T)

    return Problem(cox_grid.logdensity(kernel, data["counts"]), starts, data["mean"], data["sd"] ** 2)


def _posteriordb(file, build, is_positive, statistics=None):
    """build: data -> log-density of the parameters on their own scale, without the Jacobian of the logarithms."""
    data = dict(np.load(_DATA / "posteriordb" / f"{file}.npz"))
    mean, sd = data["mean"], np.sqrt(np.diag(data["covariance"]))
    of_parameters, positive = build(data), np.zeros(len(mean), bool)
    positive[is_positive] = True

    def logdensity(x):
        logs = jnp.where(positive, x, 0)
        return of_parameters(jnp.where(positive, jnp.exp(logs), x)) + jnp.sum(logs)

    def constrain(draws):
        parameters = np.where(positive, np.exp(np.where(positive, draws, 0)), draws)
        return parameters if statistics is None else statistics(data, parameters)

    start = np.where(positive, np.log(np.where(positive, mean, 1)), mean)
    spread = np.where(positive, sd / mean, sd)
    if statistics is not None:  # whitened
        start, spread = np.where(positive, start, 0), np.where(positive, spread, 1)
    return Problem(logdensity, _dispersed(start, spread), mean, sd**2, constrain)


def _normal(x, scale):
    return -0.5 * jnp.sum((x / scale) ** 2)


def _cauchy(x, scale):
    return -jnp.log1p((x / scale) ** 2)


def _linear_regression(design, y, prior):
    """y ~ N(design beta, sigma), by the QR factors of the design; parameters: beta, then sigma."""
    design, y = np.asarray(design, float), np.asarray(y, float)
    q, r = np.linalg.qr(design)
    r, projected = jnp.asarray(r), jnp.asarray(q.T @ y)
    residual = float(np.sum((y - q @ (q.T @ y)) ** 2))

    def logdensity(parameters):
        beta, sigma = parameters[:-1], parameters[-1]
        squares = residual + jnp.sum((projected - r @ beta) ** 2)
        return -len(y) * jnp.log(sigma) - 0.5 * squares / sigma**2 + prior(beta, sigma)

    return logdensity


def _flat(beta, sigma):
    return 0.0


def _columns(data, *names):
    return np.stack([np.ones(len(data[f"data_{names[0]}"])), *(data[f"data_{name}"] for name in names)], axis=1)


def _diamonds(data):
    features = data["data_X"][:, 1:]
    design = np.c_[features - features.mean(0), np.ones(len(features))]

    def prior(beta, sigma):
        return _normal(beta[:-1], 1) + student_t.logpdf((beta[-1] - 8) / 10, 3) + student_t.logpdf(sigma / 10, 3)

    return _linear_regression(design, data["data_Y"], prior)


def _sblr(data):
    return _linear_regression(
        data["data_X"], data["data_y"], lambda beta, sigma: _normal(beta, 10) + _normal(sigma, 10)
    )


def _kidiq(data):
    design = _columns(data, "mom_hs", "mom_iq")
    return _linear_regression(design, data["data_kid_score"], lambda beta, sigma: _cauchy(sigma, 2.5))


def _mesquite(data):
    design = _columns(data, "diam1", "diam2", "canopy_height", "total_height", "density", "group")
    return _linear_regression(design, data["data_weight"], _flat)


def _nes(data):
    ages = {f"data_age{k}": data["data_age_discrete"] == k for k in (2, 3, 4)}
    names = ("real_ideo", "race_adj", "age2", "age3", "age4", "educ1", "gender", "income")
    return _linear_regression(_columns(data | ages, *names), data["data_partyid7"], _flat)


def _kilpisjarvi(data):
    location, scale = (np.array([data[f"data_p{k}alpha"], data[f"data_p{k}beta"]]) for k in ("mu", "s"))
    return _linear_regression(_columns(data, "x"), data["data_y"], lambda beta, sigma: _normal(beta - location, scale))


def _autoregression(data):
    y, order = data["data_y"], int(data["data_K"])
    lags = [y[order - k : len(y) - k] for k in range(1, order + 1)]
    design = np.stack([np.ones(len(y) - order), *lags], axis=1)
    return _linear_regression(design, y[order:], lambda beta, sigma: _normal(beta, 10) + _cauchy(sigma, 2.5))


def _gp_factor(data, rho, alpha):
    x = np.asarray(data["data_x"], float)
    squares = (x[:, None] - x) ** 2
    covariance = alpha[..., None, None] ** 2 * jnp.exp(-0.5 * squares / rho[..., None, None] ** 2)
    return jnp.linalg.cholesky(covariance + 1e-10 * jnp.eye(len(x)))


def _gp_poisson(data):
    def logdensity(parameters):
        rho, alpha, white = parameters[0], parameters[1], parameters[2:]
        f = _gp_factor(data, rho, alpha) @ white
        prior = 24 * jnp.log(rho) - 4 * rho + _normal(alpha, 2) + _normal(white, 1)
        return jnp.sum(data["data_k"] * f - jnp.exp(f)) + prior

    return logdensity


def _gp_values(data, parameters):
    factors = jax.jit(lambda rho, alpha: _gp_factor(data, rho, alpha))(parameters[..., 0], parameters[..., 1])
    f = np.einsum("...ij,...j->...i", factors, parameters[..., 2:])
    return np.concatenate([parameters[..., :2], f], axis=-1)


PROBLEMS = {
    "first Gaussian, d = 100": lambda: _first_gaussian(100),
    "first Gaussian, d = 1000": lambda: _first_gaussian(1000),
    "second Gaussian, d = 100": lambda: _second_gaussian(100),
    "second Gaussian, d = 1000": lambda: _second_gaussian(1000),
    "synthetic logistic, d = 100": _synthetic_logistic,
    "XY, d = 20": _xy,
    "breast cancer, d = 31": lambda: _regression("breast_cancer"),
    "German credit, d = 25": lambda: _regression("german_credit"),
    "item response, d = 501": _item_response,
    "stochastic volatility, d = 2519": _stochastic_volatility,
    "log-Gaussian Cox process, d = 102": _log_gaussian_cox,
    "Cox process, exponential, d = 256": lambda: _cox_grid("exponential"),
    "Cox process, squared exponential, d = 256": lambda: _cox_grid("squared exponential"),
    "diamonds, d = 26": lambda: _posteriordb("diamonds-diamonds", _diamonds, -1),
    "sblrc, d = 6": lambda: _posteriordb("sblrc-blr", _sblr, -1),
    "sblri, d = 6": lambda: _posteriordb("sblri-blr", _sblr, -1),
    "kidiq, d = 4": lambda: _posteriordb("kidiq-kidscore_momhsiq", _kidiq, -1),
    "mesquite, d = 8": lambda: _posteriordb("mesquite-mesquite", _mesquite, -1),
    "nes2000, d = 10": lambda: _posteriordb("nes2000-nes", _nes, -1),
    "kilpisjarvi, d = 3": lambda: _posteriordb("kilpisjarvi_mod-kilpisjarvi", _kilpisjarvi, -1),
    "AR(5), d = 7": lambda: _posteriordb("arK-arK", _autoregression, -1),
    "Gaussian process, d = 13": lambda: _posteriordb("gp_pois_regr-gp_pois_regr", _gp_poisson, [0, 1], _gp_values),
}


def dimension(name: str) -> int:
    """d, which the name of a problem ends with."""
    return int(name.split("= ")[1])
