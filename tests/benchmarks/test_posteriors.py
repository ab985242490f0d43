"""The posteriors benchmark: its log-densities are those of the references, and a miniature of every method."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import spatial, stats

import householder_mcmc as hm

pd = pytest.importorskip("pandas")
pytest.importorskip("arviz")

from benchmarks.posteriors import ablations, choices, methods, problems, results  # noqa: E402
from benchmarks.posteriors.__main__ import PAGES, RESULTS  # noqa: E402
from benchmarks.posteriors.problems import PROBLEMS, Problem  # noqa: E402

DATA = Path(problems.__file__).parents[1] / "data"
pytestmark = pytest.mark.usefixtures("x64")


def laplace(problem):
    """Statistics of 4000 draws of the normal approximation at the mode, found by damped Newton steps."""
    value, hessian = jax.jit(jax.value_and_grad(problem.logdensity)), jax.jit(jax.hessian(problem.logdensity))
    x = np.asarray(problem.starts(0, 1)[0])
    for _ in range(100):
        (level, gradient), (eigenvalues, vectors) = value(x), np.linalg.eigh(-hessian(x))
        sizes = np.maximum(np.abs(eigenvalues), 1e-12 * np.abs(eigenvalues).max())
        step = vectors @ ((vectors.T @ gradient) / sizes)
        shrink = next((0.5**k for k in range(30) if value(x + 0.5**k * step)[0] > level), None)
        if shrink is None:
            break
        x = x + shrink * step
    covariance = np.linalg.pinv(-hessian(x), hermitian=True)
    draws = np.random.default_rng(0).multivariate_normal(x, covariance, size=4000)
    return problem.statistics(draws)


@pytest.mark.parametrize(
    "name",
    ["breast cancer, d = 31", "German credit, d = 25", "diamonds, d = 26", "sblrc, d = 6", "sblri, d = 6"]
    + ["kidiq, d = 4", "nes2000, d = 10", "kilpisjarvi, d = 3", "AR(5), d = 7"]
    + ["Cox process, exponential, d = 256", "Cox process, squared exponential, d = 256"],
)
def test_nearly_normal_posteriors_have_the_reference_moments(name):
    problem = PROBLEMS[name]()
    x = laplace(problem)
    np.testing.assert_allclose((x.mean(axis=0) - problem.means) / np.sqrt(problem.variances), 0, atol=0.5)
    np.testing.assert_allclose(x.var(axis=0) / problem.variances, 1, atol=0.2)


def stochastic_volatility_twin(x):
    data = np.load(DATA / "stochastic_volatility_sp500.npz")
    h, mu, phi, s = x[:-3], x[-3], np.tanh(x[-2] / 2), np.exp(x[-1])
    value = stats.norm.logpdf(data["centered_log_returns"], 0, np.exp(h / 2)).sum()
    value += stats.norm.logpdf(h[0], mu, s / np.sqrt(1 - phi**2))
    value += stats.norm.logpdf(h[1:], mu + phi * (h[:-1] - mu), s).sum()
    value += (
        stats.beta.logpdf((phi + 1) / 2, 20, 1.5) + stats.cauchy.logpdf(mu, 0, 5) + stats.halfcauchy.logpdf(s, 0, 2)
    )
    return value + np.log((1 - phi**2) / 4) + np.log(s)


def log_gaussian_cox_twin(x):
    data = np.load(DATA / "log_gaussian_cox.npz")
    amplitude, length = np.exp(x[-2]) + 0.001, np.exp(x[-1]) + 0.001
    scaled = np.sqrt(3) * spatial.distance.cdist(data["locations"], data["locations"]) / length
    covariance = amplitude**2 * (1 + scaled) * np.exp(-scaled) + 1e-6 * np.eye(100)
    f = np.mean(np.log(data["counts"]) - np.log(data["extents"])) + np.linalg.cholesky(covariance) @ x[:-2]
    value = stats.poisson.logpmf(data["counts"], data["extents"] * np.exp(f)).sum() + stats.norm.logpdf(x[:-2]).sum()
    return value + stats.norm.logpdf(x[-2], -1, 0.5) + stats.norm.logpdf(x[-1], -1, 1)


def cox_grid_twin(f, kernel):
    side, counts = np.arange(16) / 16, np.load(DATA / "cox_grid.npz")[f"{kernel}/counts"]
    cells = np.array([(a, b) for b in side for a in side])
    distances = spatial.distance.cdist(cells, cells) / 0.1
    correlation = np.exp(-0.5 * distances**2) if kernel.startswith("squared") else np.exp(-distances)
    value = stats.poisson.logpmf(counts, np.exp(f) / 256).sum()
    covariance = 1.91 * (correlation + 1e-4 * np.eye(256))
    return value + stats.multivariate_normal.logpdf(f, np.full(256, np.log(126) - 1.91 / 2), covariance)


def gaussian_process_twin(x):
    data = np.load(DATA / "posteriordb" / "gp_pois_regr-gp_pois_regr.npz")
    rho, alpha, distances = np.exp(x[0]), np.exp(x[1]), data["data_x"][:, None] - data["data_x"]
    covariance = alpha**2 * np.exp(-0.5 * distances**2 / rho**2) + 1e-10 * np.eye(11)
    value = stats.poisson.logpmf(data["data_k"], np.exp(np.linalg.cholesky(covariance) @ x[2:])).sum()
    value += stats.norm.logpdf(x[2:]).sum() + stats.gamma.logpdf(rho, 25, scale=1 / 4)
    return value + stats.norm.logpdf(alpha, 0, 2) + x[0] + x[1]


@pytest.mark.parametrize(
    "name, twin",
    [
        ("stochastic volatility, d = 2519", stochastic_volatility_twin),
        ("log-Gaussian Cox process, d = 102", log_gaussian_cox_twin),
        ("Gaussian process, d = 13", gaussian_process_twin),
        ("Cox process, exponential, d = 256", partial(cox_grid_twin, kernel="exponential")),
        ("Cox process, squared exponential, d = 256", partial(cox_grid_twin, kernel="squared exponential")),
    ],
)
def test_log_densities_are_the_models(name, twin):
    """Against SciPy's distributions, up to a constant."""
    problem = PROBLEMS[name]()
    points = 0.5 * np.asarray(problem.starts(0, 3)) + 0.5 * np.asarray(problem.starts(1, 3)).mean(axis=0)
    values = np.asarray(jax.vmap(problem.logdensity)(points))
    expected = np.array([twin(point) for point in points])
    np.testing.assert_allclose(np.diff(values), np.diff(expected), rtol=1e-8)


@pytest.mark.parametrize("name", PROBLEMS)
def test_statistics_and_references_fit(name):
    problem = PROBLEMS[name]()
    starts = problem.starts(0, 4)
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(problem.logdensity)))(starts)
    assert np.isfinite(values).all() and np.isfinite(gradients).all()
    assert problem.statistics(np.asarray(starts)[None]).shape == (1, 4, len(problem.means))
    assert problem.variances.shape == problem.means.shape and (problem.variances > 0).all()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
@pytest.mark.parametrize("name", methods.METHODS)
def test_every_method_samples_a_correlated_gaussian(name):
    """Moments within 0.25 sd and 0.7-1.4 of the variance, at an ESS of at least 500: five standard errors."""
    if "nutpie" in name:
        pytest.importorskip("nutpie")
    budget = methods.Budget(40_000, warmup=200)
    precision = np.array([[10.0, -9.0, 0.0], [-9.0, 10.0, 0.0], [0.0, 0.0, 0.1]])
    problem = Problem(
        lambda x: -0.5 * x @ precision @ x,
        lambda seed, num_chains: jax.random.normal(jax.random.key(seed), (num_chains, 3)),
        np.zeros(3),
        np.diag(np.linalg.inv(precision)),
    )
    sample = methods.METHODS[name](problem.logdensity, problem.starts(0, 4), jax.random.key(1), budget)
    row = results.judge(problem, sample)
    assert sample.draws.shape[1:] == (4, 3) and row["seconds"] > 0
    assert row["num_gradients"] == pytest.approx(budget.num_gradients, rel=0.2)
    assert 0 < sample.num_warmup_gradients < sample.num_gradients
    assert 0.7 < row["min_explored"] and row["max_explored"] < 1.4 and row["max_error"] < 0.25


def test_tables_count_only_what_explored():
    common = {"target": "t", "seed": 0, "num_gradients": 1000, "median_ess": 5.0, "min_ess_of_squares": 9.0}
    common |= {"seconds": 1.0, "worst_per_second": 1.0, "max_rhat": 1.0, "min_explored": 1.0, "max_explored": 1.0}
    rows = pd.DataFrame(
        common | {"max_error": 0.1, "method": method, "min_ess": ess, "counts": counts}
        for method, ess, counts in [
            ("MALA, two_ended", 4.0, True),
            ("MALA, diagonal", 2.0, True),
            ("NUTS, BlackJAX dense", 8.0, False),
        ]
    )
    assert list(results.summarise(rows)["worst"]) == [4.0, 2.0, 0.0]
    assert "4 (MALA, two_ended) | 2 (MALA, diagonal) | 2.00 | 2.00 | - |" in results.verdicts(rows)
    assert results.table(rows).count("does not count") == 1


def test_the_pages_have_the_tables_of_the_rows():
    """`python -m benchmarks.posteriors --tables` fills them."""
    rows = pd.read_csv(RESULTS / "posteriors.csv")
    for page, table in zip(PAGES, (results.familiar(rows), results.verdicts(rows)), strict=True):
        assert table in page.read_text()


def test_the_readme_compares_medians_and_marks_what_did_not_explore():
    target, (ours, diagonal, *_) = results.README_TARGETS[0], results.README_METHODS
    common = {"target": target, "min_ess_of_squares": 300.0}
    rows = pd.DataFrame(
        common | {"method": method, "seed": seed, "commit": commit, "min_ess": ess, "counts": counts}
        for method, seed, commit, ess, counts in [
            (ours, 0, "abc", 120.0, True),
            (ours, 1, "abc", 140.0, True),
            (ours, 2, "def", 500.0, True),
            (diagonal, 0, "abc", 8.0, False),
        ]
    )
    lines = results.familiar(rows).splitlines()
    assert lines[2] == f"| {target} | 140 | no | not run | not run | not run |"
    assert lines[-1] == "Medians over 1 to 3 seeds; commit abc, def."


def test_new_rows_replace_those_of_their_target_and_method():
    def rows(method, seeds, commit):
        return pd.DataFrame({"target": "kidiq, d = 4", "method": method, "seed": seeds, "commit": commit})

    old = pd.concat([rows("MCLMC, BlackJAX", [0, 1], "a"), rows("HMC, two_ended", [0, 1], "a")])
    replaced = results.replace_rows(results.replace_rows(pd.DataFrame(), old), rows("HMC, two_ended", [0], "b"))
    expected = pd.concat([rows("HMC, two_ended", [0], "b"), rows("MCLMC, BlackJAX", [0, 1], "a")], ignore_index=True)
    pd.testing.assert_frame_equal(replaced, expected)


def test_the_table_of_lengths_compares_with_the_best_one():
    """Of 10,000 gradients: 2000 by itself, and 4000 for the best length, whose ESS of squares is the smaller.

    The longest has the highest ESS, which does not count.
    """
    rows = pd.DataFrame(
        {
            "target": "a",
            "option": [0, 500, 1000, 2000],
            "min_ess": [40.0, 90.0, 10.0, 200.0],
            "min_ess_of_squares": [50.0, 60.0, 20.0, 200.0],
            "counts": [True, True, True, False],
            "num_gradients": 10_000,
            "num_warmup_gradients": [2000, 4000, 6000, 8000],
            "warmup_seconds": 1.0,
        }
    )
    line = choices.table_of_lengths(rows).splitlines()[-1]
    assert line == "| a | 40 | 60 | 10 | 0 | 50 | 100 | 2,000 | 4,000 (500) | 0.50 |"


def test_the_table_of_ranks_compares_with_the_best_one(monkeypatch):
    """A run at its smallest size, then its table with numbers put in: 0.8 of the ESS in half the time."""
    study = choices.STUDIES["ranks"]
    assert study.options("second Gaussian, d = 1000") == [None, 8, 32, 128, 1000]  # 65 are chosen
    assert study.options("Cox process, exponential, d = 256") == [None, 8, 32, 128]  # all are
    assert "kidiq, d = 4" not in study.targets

    small = study._replace(options=lambda target: [None], budget=lambda rank, target: methods.Budget(2000, 40))
    monkeypatch.setitem(choices.STUDIES, "ranks", small)
    rows = choices.run("ranks", "nes2000, d = 10", 1)
    assert len(rows) == 1 and rows[0]["option"] == 0 and rows[0]["warmup_seconds"] > 0
    assert rows[0]["num_warmup_gradients"] < rows[0]["num_gradients"]
    of_both = {"min_ess": [40.0, 50.0], "min_ess_of_squares": 60.0, "warmup_seconds": [1.0, 2.0], "counts": True}
    rows = pd.DataFrame([rows[0], rows[0] | {"option": 8}]).assign(**of_both)
    line = choices.table_of_ranks(rows).splitlines()[-1]
    assert line == "| nes2000, d = 10 | 40; 1 s | 50; 2 s |  |  |  | 0.80 | 0.50 |"


def test_ablations_change_what_they_say(monkeypatch):
    learnt = hm.LowRank(jnp.ones(3), jnp.eye(2, 3), jnp.array([4.0, 0.25]))
    state = hm.two_ended(2).init(jnp.zeros((1, 3)))
    state = state._replace(preconditioner=learnt, corrections=jnp.log(jnp.array([0.5, 2.0])))
    expected = {"only wide directions": [2, 1], "only narrow directions": [1, 0.5], "only the scales": [1, 1]}
    expected |= {"two_ended as it is": [2, 0.5], "eigenvalues not corrected": [4, 0.25]}
    for name, eigenvalues in expected.items():
        scheme = ablations.CHANGES[name].scheme()
        np.testing.assert_array_equal(scheme.preconditioner(state).eigenvalues, eigenvalues)

    scheme, draws = hm.two_ended(2), np.random.default_rng(0).normal(size=(10, 1, 3))
    with ablations.without_scales():
        state = scheme.init(jnp.zeros((1, 3)))
        update = jax.jit(scheme.update)
        for x in draws:
            state = update(state, jnp.asarray(x), -jnp.asarray(x) / 4)
    np.testing.assert_array_equal(state.preconditioner.scales, 1)

    monkeypatch.setattr(ablations, "NUM_GRADIENTS", 3000)
    monkeypatch.setitem(ablations.CHANGES, "short", ablations.CHANGES["2 chains"]._replace(num_warmup=40))
    trajectories, budgets = ablations.trajectories, []

    def noting_the_budget(*args):
        method = trajectories(*args)
        return lambda logdensity, starts, key, budget: (
            budgets.append((len(starts), budget)) or method(logdensity, starts, key, budget)
        )

    monkeypatch.setattr(ablations, "trajectories", noting_the_budget)
    row = ablations.run("kidiq, d = 4", "short", 0)
    assert budgets == [(2, methods.Budget(3000, warmup=40))]
    assert row["num_gradients"] >= 3000 and np.isfinite(row["min_ess"])
    assert ablations.table(pd.DataFrame([row])).count("\n") == 2
