"""The paper study: its machinery exactly, and a miniature of every experiment."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import householder_mcmc as hm

pd = pytest.importorskip("pandas")
pytest.importorskip("arviz")
pytest.importorskip("matplotlib")

from benchmarks.paper import figures, results, settings, study, tables  # noqa: E402
from benchmarks.paper.__main__ import main  # noqa: E402
from benchmarks.paper.experiments import ADAPTIVE, experiments  # noqa: E402
from benchmarks.targets import gaussian_first  # noqa: E402

PROGRAM, TEXT = experiments("program"), experiments("text")


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("num_steps", [6, 7])
def test_draws_are_the_second_half(num_steps):
    """As in the authors' program: states floor((n + 1) / 2) to n + 1, where the first is the start."""
    targets = [gaussian_first(6, np.random.default_rng(r), num_significant=1) for r in range(3)]
    positions = np.stack([target.start(np.random.default_rng(9), 2) for target in targets])
    learner = settings.adaptive(1, hm.AUTHORS_GAINS)["eigen"]
    key = jax.random.key(0)
    program = study.build(study.stack(targets), positions, learner, num_steps)
    sampled = study.sample(key, program, study.stack(targets), positions)

    scheme = hm.eigen(1, gains=hm.AUTHORS_GAINS)
    key_of_replicate = jax.random.split(jax.random.split(key)[1], 3)[1]
    state = hm.adaptive_mala.init(jnp.asarray(positions[1]), targets[1].logdensity, scheme, 2)
    states = [state.position]
    step = jax.jit(lambda key, state: hm.adaptive_mala.build_kernel(scheme)(key, state, targets[1].logdensity))
    for count in range(1, num_steps + 1):
        state, _ = step(jax.random.fold_in(key_of_replicate, count), state)
        states.append(state.position)
    expected = np.stack(states)[(num_steps + 1) // 2 - 1 :].swapaxes(0, 1)
    np.testing.assert_allclose(sampled.draws[1], expected, rtol=1e-5)
    np.testing.assert_allclose(sampled.sigma[1], np.exp(state.log_sigma), rtol=1e-9)


@pytest.mark.usefixtures("x64")
def test_recovery_is_the_angle_to_the_leading_eigenvector():
    angle = 0.3
    vector = jnp.array([jnp.cos(angle), jnp.sin(angle), 0.0])
    preconditioner = hm.LowRank(jnp.ones(3), vector[None], jnp.array([9.0]))
    np.testing.assert_allclose(study._distance(preconditioner, jnp.eye(3)[0]), np.sin(angle) ** 2, rtol=1e-9)


@pytest.mark.usefixtures("x64")
def test_wrapped_mean_wraps_the_mean_only():
    """By hand: mean 1, gain 2^-0.7, positions 9 and 11; the mean of 6.5 becomes 0.26, the deviations stay about 10."""
    gains = hm.AUTHORS_GAINS
    scheme = settings.with_wrapped_mean(hm.diagonal(gains), lambda centred: jnp.mean(centred**2, axis=0), gains)
    state = scheme.init(jnp.array([[1.0], [1.0]]))
    state = scheme.update(state, jnp.array([[9.0], [11.0]]))
    gain = 2**-0.7
    mean = 1 + 9 * gain - 2 * np.pi
    np.testing.assert_allclose(state.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(state.second, 1 - gain + gain * ((9 - mean) ** 2 + (11 - mean) ** 2) / 2, rtol=1e-12)
    plain = hm.diagonal(gains)
    inside = jnp.array([[1.5], [2.0]])
    np.testing.assert_allclose(
        scheme.update(scheme.init(inside), inside).second, plain.update(plain.init(inside), inside).second, rtol=1e-12
    )


@pytest.mark.usefixtures("x64")
def test_repair_is_made_only_where_needed():
    scheme = settings.with_repair(hm.dense(hm.AUTHORS_GAINS), 0.5)
    positions = jnp.array([[1.0, 2.0], [1.0, 2.0]])
    state = scheme.init(positions)
    np.testing.assert_array_equal(
        scheme.update(state, positions).second, hm.dense(hm.AUTHORS_GAINS).update(state, positions).second
    )
    broken = state._replace(second=jnp.array([[1.0, 2.0], [2.0, 1.0]]))
    gain = 2**-0.7
    np.testing.assert_allclose(scheme.update(broken, positions).second, (1 - gain) * broken.second + 0.5 * np.eye(2))


def results_like(**columns):
    """Two replicates of a configuration that the authors have: dense, ESS 606-695 over three runs."""
    row = {"source": "gaussian1", "experiment": "gaussian1", "variant": "authors", "d": 50, "iterations": 3535}
    row |= {"scheme": "dense", "chains": 2, "medESS": 600.0, "medESS_cos": np.nan, "medESS_sin": np.nan, "bulkESS": 1.0}
    row |= {"rhat": 1.0, "us_per_iter": 10.0, "setup_seconds": 0.0, "cpu_seconds": 1.0}
    row |= {"exploration_1": 1.0, "exploration_2": 1.0, "exploration_3": np.nan}
    return pd.DataFrame([row | columns] * 2)


@pytest.mark.parametrize(
    "ess, passes", [(0.74 * 606.1, False), (0.76 * 606.1, True), (1.24 * 694.5, True), (1.26 * 694.5, False)]
)
def test_check_widens_the_authors_range(ess, passes):
    checks = tables.check(tables.summarise(results_like(medESS=ess)))
    assert list(checks["passes"]) == [passes]


def test_check_of_speed():
    rows = {"scheme": "eigen", "d": 200, "iterations": 7071, "medESS": 670.0}
    for us, passes in [(3625 / 19, False), (3625 / 21, True)]:
        checks = tables.check(tables.summarise(results_like(us_per_iter=us, **rows)))
        assert list(checks["passes"]) == [True, passes]


def test_an_ess_counts_where_every_leading_direction_is_explored():
    assert tables.explored(results_like())
    assert not tables.explored(results_like(exploration_2=0.79))
    assert not tables.explored(results_like(exploration_1=1.26))


@pytest.mark.parametrize("columns, is_counted", [({}, True), ({"rhat": 1.06}, False), ({"exploration_2": 0.79}, False)])
def test_an_ess_counts_where_the_chains_agree_too(columns, is_counted):
    rows = results_like(**({"rhat": 1.04} | columns))
    assert list(tables.summarise(rows)["counts"]) == [is_counted]
    assert f"| {'yes' if is_counted else 'no'} |" in tables.side_by_side(tables.summarise(rows))


def test_the_short_table_has_brackets_around_what_does_not_count():
    """600 draws' worth of 2 x 3535 / 2 gradients are 170 per 1000."""
    rows = pd.concat([results_like(), results_like(scheme="eigen", rhat=1.06), results_like(d=100, scheme="eigen")])
    lines = tables.by_dimension(tables.summarise(rows)).splitlines()
    assert lines[0] == "| scheme | variant | chains | d = 50 | d = 100 |"
    assert lines[2:] == ["| dense | authors | 2 | 170 |  |", "| eigen | authors | 2 | (170) | 170 |"]


def test_fill_replaces_marked_blocks_only():
    text = "a\n<!-- program checks -->\nold\n<!-- end -->\nb\n<!-- other -->\nkept\n<!-- end -->\n"
    filled = tables.fill(text, {"program checks": "new"})
    assert filled == text.replace("old", "new")


def test_unknown_experiment_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "nothing"])
    assert "gaussian1" in capsys.readouterr().err


# Of every experiment some learners run in CI, so that each learner runs in one; all of the dear ones do with -m study.
IN_CI = {
    ("program", "recovery"): ["eigen"],
    ("program", "gaussian1"): ["dense", "diagonal_plus_LR", "exact"],
    ("program", "gaussian1_long"): ["eigen"],
    ("program", "gaussian2"): ["eigen", "pBaM"],
    ("program", "logistic"): ["diagonal", "eigen_identity"],
    ("program", "logistic_code"): ["none", "diagonal", "dense", "eigen", "eigen_identity"],
    ("program", "xy2"): ["none"],
    ("program", "xy"): ["dense", "pBaM"],
    ("program", "xy_unwrapped"): ["diagonal", "dense"],
    ("text", "recovery"): ["eigen"],
}
DEAR = ["dense", "eigen", "diagonal_plus_LR", "pBaM", "exact"]
MINIATURES = [(*key, schemes) for key, schemes in IN_CI.items()]
MINIATURES += [pytest.param(*key, DEAR, marks=pytest.mark.study) for key in IN_CI if "none" not in IN_CI[key]]


def test_every_experiment_has_a_miniature():
    assert {name for which, name in IN_CI if which == "program"} == set(PROGRAM)


@pytest.mark.slow
@pytest.mark.parametrize("which, name, schemes", MINIATURES)
def test_miniature(which, name, schemes, tmp_path):
    """Every number of a row is there, and figures and tables can be made of it. A small dimension, few steps."""
    entry = {"program": PROGRAM, "text": TEXT}[which][name]
    schemes = [scheme for scheme in entry.schemes if scheme in schemes]
    entry = entry._replace(dims=(min(entry.dims[0], 40),), steps=entry.steps // 10, schemes=tuple(schemes))
    results.run(name, entry, 2, tmp_path, is_quick=True)
    table = results.load(tmp_path)
    num_configurations = sum(len(variant.learners.keys() & set(schemes)) for variant in entry.variants.values())
    assert len(table) == 2 * num_configurations > 0
    measured = table[["medESS", "minESS", "seconds", "us_per_iter", "sigma_final", "bulkESS", "rhat", *entry.views]]
    assert np.isfinite(measured).all(axis=None) and (measured > 0).all(axis=None)
    assert table["acc_2nd_half"].between(0.05, 0.95).all()
    assert (table["exploration_1"] > 0).all()
    assert table.groupby(["variant", "scheme"])["medESS"].nunique().min() == 2  # replicates differ
    figures.draw(tmp_path)
    tables.report(tmp_path)
    assert (tmp_path / "tables.md").read_text().count(f"## {name} ") == 2


@pytest.mark.slow
@pytest.mark.study
def test_the_study_reproduces_the_authors_program(tmp_path):
    """First Gaussian, d = 50, all adaptive schemes; the authors' settings explore little of it, ours most."""
    entry = PROGRAM["gaussian1"]._replace(dims=(50,))
    kept = {"authors": ADAPTIVE, "latest": ("eigen",)}
    variants = {
        variant: entry.variants[variant]._replace(
            learners={name: entry.variants[variant].learners[name] for name in schemes}
        )
        for variant, schemes in kept.items()
    }
    entry = entry._replace(variants=variants)
    results.run("gaussian1", entry, 5, tmp_path)
    summary = tables.summarise(results.load(tmp_path))
    checks = tables.check(summary)
    assert len(checks) == 5 and checks["passes"].all(), checks
    of_eigen = summary[summary["scheme"] == "eigen"].set_index("variant")
    assert of_eigen.loc["authors", "explored_high"] < 0.15
    assert of_eigen.loc["latest", "counts"]
