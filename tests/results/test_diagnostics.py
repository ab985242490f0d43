"""Diagnostics that do not flatter: frozen chains, modes, funnels and heavy tails are said to be what they are."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import warm_up_and_sample

import householder_mcmc as hm
from householder_mcmc.cli import main as command_line
from householder_mcmc.results import diagnostics

pytestmark = pytest.mark.filterwarnings("ignore")  # of ArviZ

MODEL = """
import jax
import jax.numpy as jnp

DISTANCE = {distance}

def logdensity(x):
    modes = -0.5 * (x[0] - DISTANCE * jnp.array([-0.5, 0.5])) ** 2
    return jax.nn.logsumexp(modes) - 0.5 * jnp.sum(x[1:] ** 2)

def initial_position(key):
    key_side, key_rest = jax.random.split(key)
    side = jax.random.rademacher(key_side, (), float) * DISTANCE / 2
    return jax.random.normal(key_rest, (3,)).at[0].add(side)
"""


@pytest.fixture(params=["arviz", "blackjax"])
def library(request, monkeypatch):
    """Where ESS and R-hat come from."""
    if request.param == "arviz":
        pytest.importorskip("arviz")
    else:
        monkeypatch.setitem(sys.modules, "arviz", None)


def independent_draws(seed=0, distribution="normal", size=(4, 1000, 3), **parameters):
    return getattr(np.random.default_rng(seed), distribution)(size=size, **parameters)


def summarise(draws, acceptance_rate=0.5):
    return diagnostics.summarise(draws.astype(np.float32), acceptance_rate, 0, 4000, 400, 1.0, 1.0)


def summarise_run(states, info):
    """Of frozen draws, leaves (num_draws, num_chains, ...)."""
    return summarise(np.moveaxis(np.asarray(states.position), 0, 1), np.mean(info.acceptance_rate, axis=0))


def test_frozen_chains_have_no_ess_and_no_rhat(library):
    """Each parameter in its own way; only the last is sampled."""
    draws = independent_draws(size=(4, 100, 6))
    draws[..., 0] = 1.5  # all chains at one point
    draws[..., 1] = np.arange(4)[:, None]  # each at its own
    draws[2, :, 2] = 0.0  # one of them, in the middle
    draws[1, 50:, 3] = draws[1, 50, 3]  # one, from half-way on
    draws[0, :, 4] = np.nan
    bulk, mean, rhat = diagnostics.ess_and_rhat(draws)
    for ess in (bulk, mean, diagnostics.tail_ess(draws)):
        np.testing.assert_array_equal(ess[:4], 0)
        assert np.isnan(ess[4]) and ess[5] > 200
    np.testing.assert_array_equal(rhat[:5], [np.nan, np.nan, np.inf, np.inf, np.nan])
    assert rhat[5] < 1.05


def test_a_frozen_chain_is_named(library):
    draws = independent_draws()
    draws[2] = draws[2, 0]
    summary = summarise(draws, np.array([0.5, 0.5, 0.0, 0.5]))
    assert (summary["min_ess"], summary["max_rhat"]) == (0, np.inf)
    text = " ".join(summary["warnings"])
    assert "chains [2] did not move" in text and "chains [2] accepted less than 20%" in text
    assert "R-hat is inf" in text and "bulk ESS is 0" in text and "tail ESS is 0" in text


def test_one_chain_and_few_draws_have_no_rhat(library):
    draws = independent_draws()
    assert np.all(np.isnan(diagnostics.ess_and_rhat(draws[:1])[2]))
    assert [text for text in summarise(draws[:1])["warnings"] if "one chain" in text]
    assert np.all(np.isnan(diagnostics.ess_and_rhat(draws[:, :3])))
    assert "fewer than 4 draws" in summarise(draws[:, :3])["warnings"][0]


@pytest.mark.parametrize("distribution", ["normal", "laplace", "exponential"])
def test_good_draws_give_no_warning(distribution):
    """Ten times, with a probability below 10^-3 each of one in error."""
    for seed in range(10):
        assert summarise(independent_draws(seed, distribution))["warnings"] == []


def test_few_draws_are_no_heavy_tail():
    """50 draws of 4 chains have 20 in the tail: an estimated Pareto shape of standard deviation 0.2.

    An exponential tail has shape 0, to which BlackJAX's prior adds 0.17, so the estimate is above 0.3 in a quarter of
    the runs. t with 0.5 degrees of freedom has shape 2.
    """

    def is_heavy(*distribution, **parameters):
        draws = independent_draws(*distribution, (4, 50, 1), **parameters)
        return any("heavy" in text for text in summarise(draws)["warnings"])

    assert not any(is_heavy(seed, "laplace") for seed in range(30))
    assert sum(is_heavy(seed, "standard_t", df=0.5) for seed in range(10)) > 7


def test_each_warning_alone():
    draws = independent_draws()
    is_last = (np.arange(4) == 3)[:, None, None]
    assert "R-hat" in " ".join(summarise(draws + 0.3 * is_last)["warnings"])
    wider = draws * (1 + 0.5 * is_last)
    assert "R-hat" in " ".join(summarise(wider)["warnings"])
    one_apart = np.concatenate([draws, draws[..., :1] + is_last], axis=2)
    (text,) = (text for text in summarise(one_apart)["warnings"] if "R-hat" in text)
    assert f"(parameter {draws.shape[2]})" in text
    few = " ".join(summarise(draws[:, :90])["warnings"])
    assert "bulk ESS" in few and "tail ESS" in few and "distance from the medians" in few
    with_infinity = draws.copy()
    with_infinity[0, 5, 1] = np.inf
    assert summarise(with_infinity)["warnings"] == ["numbers that are not finite: 1, the first of parameter 1."]
    (text,) = summarise(draws, np.array([0.5, 0.6, 0.1, 0.5]))["warnings"]
    assert "chains [2] accepted" in text
    one_heavy = np.concatenate([draws, independent_draws(1, "standard_t", (4, 1000, 1), df=2)], axis=2)
    (text,) = summarise(one_heavy)["warnings"]
    assert "tails are heavy" in text


def test_summary_of_independent_draws():
    """1000 independent draws of 4 chains: ESS near 4000, errors as for 4000 draws, in the units the names say."""
    rng = np.random.default_rng(0)
    mean, sd = np.array([1.0, -2.0, 3.0]), np.array([1.0, 2.0, 4.0])
    draws = (mean + sd * rng.normal(size=(4, 1000, 3))).astype(np.float32)
    reference = mean + 0.5 * sd, 2 * sd, 0.05 * sd
    summary = diagnostics.summarise(draws, [0.2, 0.4, 0.6, 0.8], 7, 4000, 1000, 3.0, 2.0, reference)
    np.testing.assert_allclose(summary["ess"], 4000, rtol=0.15)
    for name, of in (("min", np.min), ("median", np.median)):
        ess = of(summary["ess"])
        # 2 seconds of sampling; 4000 gradients, or 5000 with those of the warm-up
        units = {"": 1, "_per_second": 2, "_per_1000_gradients": 4, "_per_1000_gradients_with_warmup": 5}
        for unit, value in units.items():
            np.testing.assert_allclose(summary[f"{name}_ess{unit}"], ess / value)
    # half an sd from a mean that is itself known to 0.05 sd; the draws' mean is within 3 of its errors of the truth
    np.testing.assert_allclose(summary["max_abs_z"], 0.5 / np.sqrt(1 / 4000 + 0.05**2), rtol=0.1)
    np.testing.assert_allclose([summary["min_sd_ratio"], summary["median_sd_ratio"]], 0.5, rtol=0.05)
    np.testing.assert_allclose(summary["acceptance_rate"], 0.5)
    assert abs(summary["max_rhat"] - 1) < 0.01 and summary["num_nonfinite"] == 7
    assert (summary["warmup_seconds"], summary["sampling_seconds"]) == (3, 2)
    # one chain elsewhere: chains and draws are told apart
    draws[0] += 3 * sd
    assert diagnostics.summarise(draws, 0.5, 0, 4000, 1000, 3.0, 2.0)["max_rhat"] > 1.3


def test_a_stuck_chain_has_no_z():
    """Its error is not known: infinite, not the 0 of a perfect mean."""
    draws = independent_draws().astype(np.float32)
    draws[1] = 50.0
    reference = np.zeros(3), np.ones(3), np.zeros(3)
    assert diagnostics.summarise(draws, 0.5, 0, 4000, 400, 1.0, 1.0, reference)["max_abs_z"] == np.inf


def test_a_large_mean_changes_nothing(library):
    """float32 has steps of 1/16 at 10^6: draws of unit variance are rounded, sums of 1000 of them lose the rest."""
    large = (1e6 + independent_draws()).astype(np.float32)
    small = (large.astype(np.float64) - 1e6).astype(np.float32)  # exact
    for ours, expected in zip(diagnostics.ess_and_rhat(large), diagnostics.ess_and_rhat(small), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-3)


def test_distances_from_medians():
    """By hand. Coordinate 0: median 2, distances 2 1 0 1 98, their median 1. Coordinate 1: 3, 3 0 1 1 27, 1 as well.

    Coordinate 2 hardly moves: its median distance is 0, so it has no unit and does not count.
    """
    x = np.array([[0, 0, 7], [1, 3, 7], [2, 2, 7], [3, 4, 7], [100, 30, 9]])
    distances = diagnostics._distances(x[None].astype(np.float32))
    np.testing.assert_array_equal(distances[0, :, 0], [3, 1, 1, 1, 98])


def test_diagnostics_with_and_without_arviz_agree(monkeypatch):
    """The two correct for a finite length differently: by a few percent at 200 draws."""
    pytest.importorskip("arviz")
    draws = np.random.default_rng(0).normal(size=(4, 200, 3)).astype(np.float32)
    with_arviz = diagnostics.ess_and_rhat(draws)
    monkeypatch.setitem(sys.modules, "arviz", None)
    for ours, theirs in zip(diagnostics.ess_and_rhat(draws), with_arviz, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0.05)


def funnel(x):
    return -(x[0] ** 2) / 18 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) - 0.5 * (len(x) - 1) * x[0]


def student(x):
    """Independent coordinates, t with 2 degrees of freedom: no variance."""
    return -1.5 * jnp.sum(jnp.log1p(x**2 / 2))


@pytest.mark.slow
@pytest.mark.parametrize("logdensity", [funnel, student], ids=lambda f: f.__name__)
def test_hard_targets_end_with_a_warning(logdensity):
    positions = jax.random.normal(jax.random.key(1), (4, 4))
    scheme = hm.eigen(2)
    states, info = warm_up_and_sample(logdensity, scheme, positions, 1000, 2000)
    summary = summarise_run(states, info)
    assert np.all(np.mean(info.acceptance_rate, axis=0) > 0.3)  # nothing to see there
    assert "ESS" in " ".join(summary["warnings"])


def flat_coordinate(x):
    return -0.5 * jnp.sum(x[1:] ** 2)


def flat_direction(x):
    return -0.5 * jnp.sum((x - jnp.mean(x)) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [hm.eigen(1), hm.two_ended()], ids=["eigen", "two_ended"])
@pytest.mark.parametrize("logdensity", [flat_coordinate, flat_direction], ids=lambda f: f.__name__)
def test_improper_targets_end_with_a_warning(logdensity, scheme):
    positions = jax.random.normal(jax.random.key(1), (4, 4))
    states, info = warm_up_and_sample(logdensity, scheme, positions, 1000, 1000, "hmc")
    summary = summarise_run(states, info)
    assert "R-hat" in " ".join(summary["warnings"])


@pytest.mark.slow
@pytest.mark.parametrize("distance", [0, 10])
def test_command_line_prints_warnings(tmp_path, capsys, distance):
    """Two modes 10 standard deviations apart with chains in both; the same model with its modes in one place."""
    model, results = tmp_path / "model.py", tmp_path / "results.json"
    model.write_text(MODEL.format(distance=distance))
    arguments = ["sample", str(model), "--warmup", "1000", "--draws", "2000", "--json", str(results)]
    assert command_line.main([*arguments, "--output", str(tmp_path / "draws.npz")]) == 0
    summary = json.loads(results.read_text())["schemes"]["two_ended"]
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("WARNING")]
    assert printed == [f"WARNING (two_ended): {text}" for text in summary["warnings"]]
    if distance == 0:
        assert not printed
    else:
        assert "R-hat" in printed[0] and "bulk ESS" in printed[1]


def short_chains(offset=0.0, scale=0.0, size=(1000, 20, 3)):
    """AR(1) of correlation 0.8 and variance 1, from equilibrium, of 16 superchains.

    offset, scale: standard deviation of the means, and of the logarithms of the widths, of superchains in the first
    parameter.
    """
    rng = np.random.default_rng(0)
    superchains = np.arange(size[0]) * 16 // size[0]
    x = np.empty(size)
    x[:, 0] = rng.normal(size=x[:, 0].shape)
    for i in range(1, size[1]):
        x[:, i] = 0.8 * x[:, i - 1] + 0.6 * rng.normal(size=x[:, 0].shape)
    widths, means = np.exp(scale * rng.normal(size=16)), offset * rng.normal(size=16)
    x[..., 0] = x[..., 0] * widths[superchains, None] + means[superchains, None]
    return x, superchains


def test_many_short_chains_in_equilibrium_are_good():
    """Plain R-hat asks for 100 effective draws of each chain, of which these have 3. The ESS is known.

    The mean of n draws has the variance (n + 2 sum_k (n - k) 0.8^k) / n^2. That of 1000 chains is known to 4.5%; the
    largest of three errors is within 4 standard deviations.
    """
    draws, superchains = short_chains()
    bulk, mean, rhat = diagnostics.ess_and_rhat(draws, superchains)
    lags = np.arange(1, 20)
    expected = 1000 / ((20 + 2 * np.sum((20 - lags) * 0.8**lags)) / 400)
    np.testing.assert_allclose(mean, expected, rtol=0.18)
    np.testing.assert_allclose(bulk, expected, rtol=0.18)
    assert np.all(rhat < 1.01) and np.all(diagnostics.tail_ess(draws) > 1000)
    assert diagnostics.warnings(draws, np.full(1000, 0.5), bulk, rhat, str, superchains) == []
    bulk, _, plain = diagnostics.ess_and_rhat(draws)  # starts that are not known
    (text,) = diagnostics.warnings(draws, np.full(1000, 0.5), bulk, plain, str)
    assert np.all(plain > 1.05) and "or have fewer than 100 effective draws each" in text


@pytest.mark.parametrize("difference", [{"offset": 0.3}, {"scale": 0.3}], ids=str)
def test_many_short_chains_that_remember_their_start_are_not(difference):
    draws, superchains = short_chains(**difference)
    bulk, _, rhat = diagnostics.ess_and_rhat(draws, superchains)
    assert rhat[0] > 1.01 > rhat[1:].max()
    (text,) = diagnostics.warnings(draws, 0.5, bulk, rhat, "number {}".format, superchains)
    assert text.startswith(f"nested R-hat is {rhat[0]:.3f} (number 0), above 1.01: chains remember their start")


def test_a_few_of_many_chains_may_be_stuck():
    draws, superchains = short_chains()
    for num_stuck, is_named in ((10, False), (11, True)):
        draws[:num_stuck] = draws[:num_stuck, :1]
        bulk, _, rhat = diagnostics.ess_and_rhat(draws, superchains)
        text = " ".join(diagnostics.warnings(draws, 0.5, bulk, rhat, str, superchains))
        assert ("did not move" in text) == is_named and np.all(bulk > 2000)


@pytest.mark.parametrize("num_draws", [1, 5])
def test_nested_rhat_is_its_definition(num_draws):
    """By loops, of normal scores as they are: equation (5) of Margossian et al. for 3 superchains of 4 chains."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 4, num_draws)) + rng.normal(size=(3, 1, 1))
    means = x.mean(axis=2)
    between = np.var(means.mean(axis=1), ddof=1)
    within = [
        np.var(means[k], ddof=1) + (np.var(x[k], axis=1, ddof=1).mean() if num_draws > 1 else 0) for k in range(3)
    ]
    order = rng.permutation(12)
    labels = np.repeat([7, 2, 5], 4)
    found = diagnostics._nested_rhat(
        x.reshape(12, num_draws, 1)[order], np.unique(labels[order], return_inverse=True)[1]
    )
    np.testing.assert_allclose(found, np.sqrt(1 + between / np.mean(within)))
    assert hm.nested_rhat(np.ones((12, num_draws, 2, 3)), labels).shape == (2, 3)
    assert np.all(np.isnan(hm.nested_rhat(np.ones((12, num_draws)), labels)))


@pytest.mark.parametrize("superchains", [np.zeros(12, int), np.arange(4)], ids=str)
def test_nested_rhat_needs_superchains(superchains):
    with pytest.raises(ValueError, match="at least two numbers for 12 chains"):
        hm.nested_rhat(np.ones((12, 5)), superchains)


def test_long_chains_are_judged_by_themselves():
    """Every other chain of each superchain in a mode of its own: nested R-hat is of means that agree, R-hat sees it."""
    draws, superchains = short_chains(size=(64, 400, 1))
    draws[::2] += 5
    assert hm.nested_rhat(draws, superchains) < 1.1
    bulk, _, rhat = diagnostics.ess_and_rhat(draws, superchains)
    assert rhat > 1.5 and bulk < 200
    assert diagnostics.ess_and_rhat(draws[:, :399], superchains)[2] < 1.1
