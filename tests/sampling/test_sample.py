"""The call from a model to draws: starts, blocks, interrupts, resumed runs and streams."""

import re
import signal
import subprocess
import sys
import time

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import householder_mcmc as hm
from householder_mcmc.results import diagnostics
from householder_mcmc.sampling import sample as sample_module
from householder_mcmc.sampling.blocks import Draws, draw_blocks
from householder_mcmc.sampling.interrupts import interrupts
from householder_mcmc.sampling.progress import Progress
from householder_mcmc.sampling.starts import find_starts, find_superchains

NUM_CHAINS = 3


def logdensity(position):
    """mu ~ N(2, 1), x ~ N(0, diag(1, 4)), log_tau ~ N(0, 1/4)."""
    return -0.5 * (
        (position["mu"] - 2) ** 2
        + position["x"][0] ** 2
        + position["x"][1] ** 2 / 4
        + jnp.sum(position["log_tau"] ** 2) / 0.25
    )


MODEL = hm.Model(
    logdensity,
    initial={"mu": 0.0, "x": np.zeros(2), "log_tau": np.zeros(1)},
    constrain=lambda p: {"mu": p["mu"], "x": p["x"], "tau": jnp.exp(p["log_tau"])},
    coords={"axis": ["first", "second"]},
    dims={"x": ["axis"]},
    log_likelihood=lambda p: {"y": -0.5 * (p["x"] - 1) ** 2},
    predict=lambda key, p: {"y": p["x"] + 0.0 * jax.random.normal(key, (2,))},
)


def run(num_draws=60, model=MODEL, seed=1, **options):
    options = {"num_chains": NUM_CHAINS, "num_warmup": 100, "progress": False, **options}
    return hm.sample(model, rng_key=seed, num_draws=num_draws, **options)


def assert_equal(one, other):
    """All that is kept of two runs, bit for bit, and where the chains are."""
    for name in ("trace", "state", "parameters"):
        left, right = (jax.tree.leaves(getattr(result, name)) for result in (one, other))
        for a, b in zip(left, right, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def result():
    return run()


def test_draws_have_names_and_shapes(result):
    assert {name: draws.shape for name, draws in result.draws.items()} == {
        "mu": (NUM_CHAINS, 60),
        "x": (NUM_CHAINS, 60, 2),
        "tau": (NUM_CHAINS, 60, 1),
    }
    np.testing.assert_allclose(result.draws["tau"], np.exp(result.positions["log_tau"]), rtol=1e-6)
    one = jax.tree.map(lambda leaf: leaf[1, 7], result.positions)
    np.testing.assert_allclose(result.logdensity[1, 7], logdensity(one), rtol=1e-5)
    last = jax.tree.map(lambda leaf: leaf[:, -1], result.positions)
    np.testing.assert_array_equal(ravel_pytree(last)[0], ravel_pytree(result.state.position)[0])
    assert result.infos.acceptance_rate.shape == (NUM_CHAINS, 60)


@pytest.mark.parametrize("sampler", ["hmc", "mala", pytest.param("nuts", marks=pytest.mark.slow)])
def test_moments(sampler):
    """z of means and of mean squares, with the ESS of each; Bonferroni over 8 of them to 1e-4."""
    found = run(1000, sampler=sampler, num_warmup=300)
    x, _ = found.columns()  # log_tau, mu, x
    means, variances = np.array([0.0, 2, 0, 0]), np.array([0.25, 1, 1, 4])
    for power in (1, 2):
        values = (x - means) ** power
        _, ess, _ = diagnostics.ess_and_rhat(values)
        assert np.all(ess > 200)
        truth = 0 if power == 1 else variances
        z = (values.mean(axis=(0, 1)) - truth) / (values.std(axis=(0, 1)) / np.sqrt(ess))
        assert np.abs(z).max() < 4.4


def test_draws_do_not_depend_on_blocks(result):
    for block_size in (1, 7, 200):
        assert_equal(result, run(block_size=block_size))


def test_no_chain_waits_for_a_longer_trajectory(result):
    """All chains make equally many steps in a transition, in the warm-up too, where none was behind."""
    assert not result.warmup_info.is_behind.any() and np.ptp(result.warmup_info.num_gradients) == 0
    shorter = result.parameters | {"step_size": jnp.full_like(result.parameters["step_size"], 0.3)}
    block = next(draw_blocks(result.model, result.plan, result.rng_key, shorter, result.state, 0, 4))
    steps = block[1].infos.num_integration_steps
    assert np.all(steps == steps[:, :1]) and np.ptp(steps) > 0


@pytest.mark.parametrize("thin", [1, 2])
def test_a_resumed_run_is_one_that_was_not_stopped(thin, tmp_path):
    short, whole = run(23, thin=thin), run(60, thin=thin)
    assert_equal(short.extend(30, progress=False).extend(7, progress=False), whole)
    hm.save(tmp_path / "run.npz", short)
    assert_equal(hm.load(tmp_path / "run.npz", MODEL).extend(37, progress=False), whole)


def test_thinned_draws_are_every_second(result):
    """Draw i has thin transitions: chains move on between, counts are summed."""
    thinned = run(30, thin=2)
    assert thinned.draws["mu"].shape == (NUM_CHAINS, 30)
    steps, single = thinned.infos.num_integration_steps, result.infos.num_integration_steps
    assert 1.6 < steps.mean() / single.mean() < 2.4


@pytest.mark.parametrize("after", [0, 17])
def test_an_interrupt_returns_what_there_is(result, monkeypatch, after):
    def interrupt(self, draws, num_done, num_draws, step_size):
        if num_done >= after:
            raise KeyboardInterrupt

    monkeypatch.setattr(sample_module.Progress, "follow", interrupt)
    stopped = run(block_size=9)
    monkeypatch.undo()
    assert after <= stopped.num_draws < 60
    assert stopped.warnings[0] == f"the run was interrupted after {stopped.num_draws} of 60 draws."
    assert_equal(stopped.extend(60 - stopped.num_draws, progress=False), result)


def test_an_interrupt_of_a_warm_up_is_raised(monkeypatch):
    def interrupt(self, text):
        raise KeyboardInterrupt

    monkeypatch.setattr(sample_module.Progress, "show", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run()


PROGRAM = """
import sys
import jax, jax.numpy as jnp, numpy as np
import householder_mcmc as hm
from householder_mcmc.sampling.progress import Progress

def logdensity(x):  # slow: some milliseconds
    y = jax.lax.fori_loop(0, 4000, lambda i, y: jnp.cos(y), jax.lax.stop_gradient(x))
    return -0.5 * jnp.sum(x**2) + 0 * jnp.sum(y)

follow = Progress.follow

def say(self, *arguments):
    print("SAMPLING", file=sys.stderr, flush=True)
    follow(self, *arguments)

Progress.follow = say
num_draws = int(sys.argv[1])
result = hm.sample(logdensity, jnp.zeros(3), 5, num_chains=2, num_warmup=50, num_draws=num_draws, block_size=5)
np.savez(sys.argv[2], x=result.draws["x"], warnings=result.warnings)
print("saved", flush=True)
"""


@pytest.mark.slow
def test_ctrl_c_in_a_process_of_its_own(tmp_path):
    """SIGINT while draws come: the process ends well, and its draws are the first ones of a run that is not stopped."""

    def start(num_draws, name):
        command = [sys.executable, "-c", PROGRAM, str(num_draws), str(tmp_path / name)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    stopped = start(10**6, "stopped.npz")
    for line in stopped.stderr:  # the first block is there
        if "SAMPLING" in line:
            break
    time.sleep(1)
    stopped.send_signal(signal.SIGINT)
    output, errors = stopped.communicate(timeout=120)
    assert stopped.returncode == 0 and "saved" in output, errors
    with np.load(tmp_path / "stopped.npz") as file:
        x, warnings = file["x"], file["warnings"]
    assert x.shape[1] > 0 and "interrupted" in warnings[0]
    num_draws = min(x.shape[1], 50)
    whole = start(num_draws, "whole.npz")
    whole.communicate(timeout=300)
    with np.load(tmp_path / "whole.npz") as file:
        np.testing.assert_array_equal(x[:, :num_draws], file["x"])


def test_a_stream_is_the_run_in_memory(result, tmp_path):
    streamed = run(store=tmp_path / "new" / "run", block_size=9)
    assert_equal(result, streamed)
    assert isinstance(streamed.trace.logdensity, np.memmap)
    np.testing.assert_array_equal(
        np.load(tmp_path / "new" / "run" / "variables.x.npy", mmap_mode="r"), np.swapaxes(result.draws["x"], 0, 1)
    )
    assert str(streamed.summary()) == str(result.summary())


def test_a_stream_goes_on_after_its_process_is_gone(result, tmp_path):
    run(23, store=str(tmp_path))
    again = hm.load(tmp_path, MODEL)
    assert again.num_draws == 23
    assert_equal(again.extend(37, progress=False), result)
    assert_equal(hm.load(tmp_path), result)


def test_a_stream_that_is_cut_off_has_whole_blocks(result, tmp_path, monkeypatch):
    """Killed between the files of a block and the state after it: as though the block had not come."""
    write = sample_module.write_block

    def cut_off(folder, draws, first, *others):
        write(folder, draws, first, *others)
        if first >= 9:
            monkeypatch.setattr(sample_module, "write_block", torn)

    def torn(folder, draws, first, *others):
        sample_module.Folder(folder).write(draws, first)
        raise MemoryError

    monkeypatch.setattr(sample_module, "write_block", cut_off)
    with pytest.raises(MemoryError):
        run(store=tmp_path, block_size=9)
    monkeypatch.undo()
    found = hm.load(tmp_path, MODEL)
    assert 9 < found.num_draws < 60
    assert_equal(found.extend(60 - found.num_draws, progress=False), result)


def test_only_some_variables_are_kept(result):
    some = run(store=["tau"])
    assert set(some.draws) == {"tau"} and some.positions is None
    # another program: the same up to rounding
    np.testing.assert_allclose(some.draws["tau"][:, :20], result.draws["tau"][:, :20], rtol=1e-2)
    assert_equal(some.extend(5, progress=False), run(65, store=["tau"]))
    with pytest.raises(ValueError, match="positions were not kept"):
        some.log_likelihood()
    plain = run(model=logdensity, initial=MODEL.initial, store=["mu"])
    assert set(plain.draws) == {"mu"}


def test_until_there_is_enough():
    found = run(50, until=hm.Until(ess=300, rhat=1.05, max_draws=2000), block_size=40)
    x, _ = found.columns()
    bulk, _, rhat = diagnostics.ess_and_rhat(x)
    assert bulk.min() >= 300 and rhat.max() <= 1.05 and found.num_draws < 2000
    assert_equal(found, run(50, until=hm.Until(ess=300, rhat=1.05, max_draws=2000)))  # whatever the blocks
    few = run(50, until=hm.Until(ess=1e6, max_draws=80))
    assert few.num_draws == 80
    assert few.warnings[0] == "ended at 80 draws, before all ESS were 1000000 and R-hat 1.01."


def test_a_second_call_compiles_nothing():
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None
    )
    try:
        run(20, model=logdensity, initial=MODEL.initial)
        first = len(compiled)
        run(30, model=logdensity, initial=MODEL.initial, seed=2).extend(5, progress=False)
        assert first > 0 and len(compiled) == first
    finally:
        jax.monitoring.clear_event_listeners()


def test_starts_are_apart_and_finite():
    def positive(x):
        return jnp.where(x[0] > 0.2, -0.5 * jnp.sum(x**2), -jnp.inf)

    model = hm.Model(positive, jnp.array([0.3, 5.0]))
    starts = np.asarray(find_starts(model, None, None, jax.random.key(0), 50))
    assert starts.shape == (50, 2) and np.all(starts[:, 0] > 0.2)
    assert np.abs(starts - model.initial).max() <= 1 and np.ptp(starts[:, 1]) > 1.5
    assert len(np.unique(starts[:, 0])) == 50
    drawn = find_starts(model, lambda key: jax.random.normal(key, (2,)), None, jax.random.key(0), 50)
    assert np.all(np.asarray(drawn)[:, 0] > 0.2)


def test_positions_of_chains():
    def of_two(x):
        return -0.5 * (x @ x)

    def of_rows(x):
        return -0.5 * jnp.sum(x[:, 0] ** 2)

    def any_shape(x):
        return -0.5 * jnp.sum(x**2)

    many, key = jnp.ones((2, 2)), jax.random.key(0)
    np.testing.assert_array_equal(find_starts(hm.Model(of_two), many, None, key, 2), many)
    assert find_starts(hm.Model(of_rows), many, None, key, 2).shape == (2, 2, 2)
    assert find_starts(hm.Model(of_two), jnp.ones(4), None, key, 4).shape == (4, 4)
    with pytest.raises(ValueError, match="may be one position or those of 2 chains"):
        hm.sample(any_shape, many, num_chains=2)
    np.testing.assert_array_equal(find_starts(hm.Model(any_shape), None, many, key, 2), many)
    assert find_starts(hm.Model(any_shape, many), None, None, key, 2).shape == (2, 2, 2)


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ((3,), TypeError, "model must be a log-density or an hm.Model, got int"),
        ((logdensity,), ValueError, "a log-density needs `initial`"),
        ((logdensity, {"mu": 1}), KeyError, "x"),
        ((MODEL, {"mu": "a"}), TypeError, r"initial\['mu'\] must be an array, got str"),
        ((lambda x: x, jnp.zeros(3)), ValueError, "must be one number"),
        ((lambda x: jnp.sum(x), jnp.arange(3)), TypeError, "must be floating point, got int32"),
        ((MODEL, None, 1.5), TypeError, "rng_key must be a seed or a random key, got 1.5"),
        ((MODEL, None, -1), ValueError, "a seed must be from 0"),
        ({"num_draws": -1}, ValueError, "num_draws must be at least 0, got -1"),
        ({"num_draws": 1.5}, TypeError, "num_draws must be an integer"),
        ({"num_chains": 0}, ValueError, "num_chains must be at least 1"),
        ({"num_warmup": -3}, ValueError, "num_steps must be at least 0"),
        ({"thin": 0}, ValueError, "thin must be at least 1"),
        ({"block_size": 0}, ValueError, "block_size must be at least 1"),
        ({"sampler": "gibbs"}, ValueError, r"sampler must be one of \['hmc', 'mala', 'nuts'\]"),
        ({"sampler": 3}, TypeError, "or a Sampler, got 3"),
        ({"scheme": "dense"}, TypeError, "scheme must be a Scheme"),
        ({"until": {"ess": 3}}, TypeError, "until must be an hm.Until"),
        ({"until": hm.Until(ess=-1)}, ValueError, "positive ess"),
        ({"until": hm.Until(max_draws=3)}, ValueError, "max_draws must be at least 1000"),
        ({"store": 3}, TypeError, "store must be names of variables, or a folder"),
        ({"store": []}, TypeError, "store must be names of variables, or a folder"),
        ({"store": ["sigma"]}, ValueError, r"store has \['sigma'\], .* there are \['mu', 'tau', 'x'\]"),
        ({"dtype": "float16"}, ValueError, "dtype must be float32 or float64, got 'float16'"),
        ({"target_acceptance_rate": 1.5}, ValueError, "target_acceptance_rate must be between 0 and 1"),
        ({"starts": jnp.zeros(3), "initial": jnp.zeros(3)}, ValueError, "not both"),
    ],
)
def test_bad_input(arguments, error, text, monkeypatch):
    def no_warm_up(*_, **__):
        raise AssertionError("the input was not refused before the warm-up")

    options = {"num_warmup": 10, "progress": False}
    if "num_warmup" not in arguments:
        monkeypatch.setattr(sample_module, "_wait", no_warm_up)
    with pytest.raises(error, match=text):
        if isinstance(arguments, dict):
            hm.sample(MODEL, **{**options, **arguments})
        else:
            hm.sample(*arguments, **options)


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="exists already"):
        run(store=tmp_path)


def test_bar_and_warnings_are_shown(capsys):
    run(30, progress=True, model=hm.Model(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2)))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("[####################] 30/30 draws, step size ")
    assert "0 divergent, R-hat " in lines[0]
    assert any(line.startswith("WARNING: bulk ESS is ") and "(x[" in line for line in lines)


def test_warnings_that_take_long_are_not_waited_for(result, capsys):
    """60 draws of 12 numbers are judged within a share of any run's time, but not of no time."""
    bar = Progress(True)
    bar.show("x")
    bar.end(result)
    said = capsys.readouterr().err
    assert "not judged yet, which takes about 0 s: result.warnings" in said and "WARNING" not in said
    bar.begins -= 60
    bar.end(result)
    assert "WARNING: bulk ESS is " in capsys.readouterr().err


def test_the_bar_knows_rhat():
    """Of blocks of different sizes, thinned, the R-hat of all draws without splits and ranks, to its own error."""
    x = np.random.default_rng(0).normal(size=(4000, 3, 2)) + 0.3 * np.arange(3)[:, None] * np.array([0, 1])
    x += np.linspace(0, 5, 4000)[:, None, None] * (1 + 0.2 * np.arange(3))[:, None]  # means of blocks differ
    bar = Progress(True)
    for first, last in ((0, 4), (4, 36), (36, 1000), (1000, 4000)):
        block = Draws(x[first:last], np.zeros((last - first, 3)), None, {})
        bar.follow(block, last, 4000, 0.1)
    between, within = x.mean(axis=0).var(axis=0, ddof=1), x.var(axis=0, ddof=1).mean(axis=0)
    shown = float(re.search(r"R-hat ([\d.]+)", bar.text)[1])
    assert shown == pytest.approx(np.sqrt(1 + np.max(between / within)), abs=0.01)


def test_summary(result):
    table = result.summary()
    assert list(table) == ["mu", "tau[0]", "x[0]", "x[1]"]
    row, x = table["x[1]"], np.asarray(result.draws["x"][..., 1], np.float64)
    assert row.mean == pytest.approx(x.mean()) and row.sd == pytest.approx(x.std(ddof=1))
    np.testing.assert_allclose([row.q5, row.median, row.q95], np.quantile(x, [0.05, 0.5, 0.95]))
    for name, method in (("ess_bulk", "bulk"), ("ess_tail", "tail")):
        np.testing.assert_allclose(getattr(row, name), arviz.ess(x, method=method), rtol=1e-6)
    np.testing.assert_allclose(row.rhat, arviz.rhat(x), rtol=1e-6)
    np.testing.assert_allclose(row.mcse, arviz.mcse(x), rtol=1e-3)
    lines = str(table).splitlines()
    assert lines[0].split() == ["mean", "sd", "q5", "median", "q95", "mcse", "ess_bulk", "ess_tail", "rhat"]
    assert lines[1].split()[0] == "mu" and len(lines) == 5


def test_arviz(result):
    trace = result.to_arviz(coords={"which": ["only"]}, dims={"tau": ["which"]}, log_likelihood=True)
    assert list(trace["posterior"]["x"].coords["axis"].values) == ["first", "second"]
    assert trace["posterior"]["tau"].dims == ("chain", "draw", "which")
    np.testing.assert_array_equal(trace["posterior"]["mu"], result.draws["mu"])
    stats = trace["sample_stats"]
    assert {"diverging", "n_steps", "acceptance_rate", "lp", "step_size"} <= set(stats.data_vars)
    np.testing.assert_array_equal(stats["lp"], result.logdensity)
    np.testing.assert_allclose(
        trace["log_likelihood"]["y"], -0.5 * (np.asarray(result.draws["x"]) - 1) ** 2, rtol=1e-5, atol=1e-6
    )
    predicted = result.to_arviz(posterior_predictive=True)["posterior_predictive"]["y"]
    np.testing.assert_array_equal(predicted, result.draws["x"])


@pytest.mark.slow
def test_nuts_has_energies():
    stats = run(300, sampler="nuts").to_arviz()["sample_stats"]
    energy = stats["energy"].values + stats["lp"].values  # kinetic, chi^2_4 / 2
    assert 1.5 < energy.mean() < 2.5
    assert np.all(arviz.bfmi(stats["energy"].values) > 0.5)


def test_a_warm_up_goes_on(result):
    on = run(20, initial=result.warmup_info.last_state, num_warmup=50)
    assert int(on.warmup_info.last_state.num_steps) == int(result.warmup_info.last_state.num_steps) + 50


def test_an_interrupt_is_remembered_and_a_second_one_raises_at_once():
    """Raised where it is asked for, as an exception in a callback would be lost. The handler is put back."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with interrupts() as check:
        check()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts() as check:
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_many_chains_start_together():
    """64 chains at 16 places, whose nested R-hat judges 30 draws of each; and starts that are the user's."""
    starts = np.asarray(find_starts(hm.Model(lambda x: -0.5 * x @ x, np.zeros(2)), None, None, jax.random.key(0), 64))
    assert len(np.unique(starts, axis=0)) == 16
    many = run(30, num_chains=64)
    np.testing.assert_array_equal(many.superchains, np.repeat(np.arange(16), 4))
    assert not [text for text in many.warnings if "R-hat" in text or "ESS" in text]
    expected = hm.nested_rhat(many.draws["x"], many.superchains)
    assert [many.summary()[f"x[{i}]"].rhat for i in range(2)] == expected.tolist()
    assert expected.max() < 1.02 and many.summary()["mu"].ess_bulk > 500
    alone = {name: leaf + np.arange(64.0).reshape(-1, *[1] * np.ndim(leaf)) for name, leaf in MODEL.initial.items()}
    assert len(np.unique(find_superchains(alone))) == 64


@pytest.mark.slow
def test_float64_needs_no_setting(tmp_path):
    """The digits of log-densities that float32 does not have, in a run, and in one that goes on from a file."""
    whole, short = run(30, dtype="float64"), run(20, dtype=np.float64)
    assert not jax.config.jax_enable_x64
    assert {draws.dtype for draws in whole.draws.values()} == {np.dtype(np.float64)}
    position = jax.tree.map(lambda leaf: leaf[2, 5], whole.positions)
    x, mu = position["x"], position["mu"]
    by_hand = -0.5 * ((mu - 2) ** 2 + x[0] ** 2 + x[1] ** 2 / 4 + position["log_tau"][0] ** 2 / 0.25)
    assert abs(whole.logdensity[2, 5] - by_hand) < 1e-13
    hm.save(tmp_path / "run.npz", short)
    assert_equal(hm.load(tmp_path / "run.npz", MODEL).extend(10, progress=False), whole)
    assert whole.warnings is not None and whole.log_likelihood()["y"].dtype == np.float64
    with jax.enable_x64(True):
        assert run(5, dtype="float32").draws["mu"].dtype == np.float32


def test_seconds_are_those_of_warm_up_and_draws(result, tmp_path):
    longer = result.extend(40, progress=False)
    assert longer.warmup_seconds == result.warmup_seconds > 0
    assert longer.sampling_seconds > result.sampling_seconds > 0
    run(23, store=tmp_path)
    assert hm.load(tmp_path).sampling_seconds > 0
