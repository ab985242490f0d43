"""One call from a model to draws: starts, warm-up, frozen chains, and their result."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from householder_mcmc.adaptation.adaptive import AdaptiveState
from householder_mcmc.adaptation.samplers import Sampler
from householder_mcmc.adaptation.warmup import warmup
from householder_mcmc.learners.scheme import Scheme
from householder_mcmc.learners.two_ended import two_ended
from householder_mcmc.mcmc.chains import gathered
from householder_mcmc.mcmc.metropolis import require_rate
from householder_mcmc.preconditioners.checks import require_integer
from householder_mcmc.results import diagnostics
from householder_mcmc.sampling.blocks import Draws, Plan, draw_blocks, empty_draws, require_names
from householder_mcmc.sampling.files import Folder
from householder_mcmc.sampling.interrupts import interrupts
from householder_mcmc.sampling.model import Model, as_model
from householder_mcmc.sampling.nuts import ALL_SAMPLERS
from householder_mcmc.sampling.progress import Progress
from householder_mcmc.sampling.result import Result, as_key, begin_folder, in_precision_of, write_block
from householder_mcmc.sampling.starts import find_starts, find_superchains

__all__ = ["Until", "continue_run", "sample"]

# With an `Until`, a run is looked at each time that it has grown by this factor, so that looking costs little.
_GROWTH = 1.5

# Most seconds between two looks at whether the warm-up is done, so that an interrupt is heard soon. At first they are
# this share of the time so far, so that a short warm-up loses no more than that.
_PATIENCE = 0.05
_SHARE = 0.02


class Until(NamedTuple):
    """When a run has enough draws.

    ess: every coordinate must have at least this bulk ESS.
    rhat: every coordinate must have at most this R-hat. With one chain it is not asked for.
    max_draws: most draws of a chain, whatever ESS and R-hat are. None: ten times the draws that were asked for.
    """

    ess: float = 400.0
    rhat: float = 1.01
    max_draws: int | None = None


def sample(
    model: Model | Callable,
    initial: Any = None,
    rng_key: Any = 0,
    *,
    num_chains: int = 4,
    num_warmup: int | None = None,
    num_draws: int = 1000,
    scheme: Scheme | None = None,
    sampler: str | Sampler = "hmc",
    target_acceptance_rate: float | None = None,
    starts: Any = None,
    thin: int = 1,
    until: Until | None = None,
    store: str | Path | Sequence[str] | None = None,
    dtype: Any = None,
    progress: bool | Progress = True,
    block_size: int | None = None,
) -> Result:
    """Sample a model: start chains apart, warm up, freeze the map, and draw.

    After Ctrl-C the draws made so far are returned. `result.extend(num_draws)` goes on as though the run had not been
    stopped. (Ctrl-C in the warm-up raises KeyboardInterrupt.)

    Parameters
    ----------
    model
        A `Model`, or a log-density: position -> log-density up to a constant.
    initial
        Where chains start, unconstrained. One position (a pytree of floating point arrays): each coordinate of each
        start is uniform within +-1 of it. Or a function of a random key, which is called for each start. Or positions
        whose leaves all have a leading axis of length num_chains. By default that of the model. A drawn start where the
        log-density is not finite is drawn anew, up to nine times; around a position within half the distance each time.
        The `last_state` of a `WarmupInfo` goes on with that warm-up.
    rng_key
        A random key, or a seed.
    num_chains
        Number of chains, which learn from each other. 64 chains and more begin at 16 starts, several at each, so that
        `hm.nested_rhat` can say of short chains whether they have forgotten their start. `starts` sets others.
    num_warmup
        Steps of the warm-up. By default it ends by itself, see `hm.warmup`.
    num_draws
        Draws of each chain. With an `until` there may be more.
    scheme
        What is learnt, by default `hm.two_ended()`.
    sampler
        "hmc", "mala", "nuts" (BlackJAX's, on our map), or a `Sampler`.
    target_acceptance_rate
        Acceptance rate that the step size is tuned to, see `hm.warmup`. A higher one makes steps shorter.
    starts
        Positions with a leading chain axis, in place of `initial` where that might be taken for one position.
    thin
        Transitions for each draw that is kept.
    until
        `hm.Until(ess=400, rhat=1.01, max_draws=10_000)`: draw until there is enough of every coordinate. The run is
        looked at when it has `num_draws` draws, and each time it has grown by half.
    store
        Names of the variables to keep; positions are not kept then. Or a new folder, to which draws are written as they
        come, a `.npy` file for each variable. The result maps them from there, so they need not fit into memory.
    dtype
        "float32" or "float64", of positions. By default that of `initial`, as JAX has it. With float64 the run and its
        `extend` are in double precision, whether JAX's x64 is on or not.
    progress
        Whether to show a bar with the step size, the number of divergences and R-hat, and in the end the warnings. Or a
        bar of your own, of a subclass of `sampling.progress.Progress`.
    block_size
        Most draws of a block, after which Python stores them and can be interrupted, at most 1000. Draws do not depend
        on it.

    Returns
    -------
    Result.

    Raises
    ------
    TypeError
        If `model` is neither, the log-density is not a floating point number, a position has other leaves than floating
        point arrays, or `num_chains`, `num_draws` or another count is no integer.
    ValueError
        If there is no `initial`, both it and `starts` are given, or it may be one position as well as those of chains.
        On an unknown sampler, variable or dtype, on numbers out of range, on a folder that is not empty, and what
        `hm.warmup` refuses.

    Examples
    --------
    .. code-block:: python

        result = hm.sample(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(20))
        print(result.summary())
        result.draws["x"].shape  # (4, 1000, 20)
        result = result.extend(1000)

    A second call with the same model compiles nothing. The log-density is compiled anew if it reads other objects.
    """
    model, key = as_model(model), as_key(rng_key)
    num_chains, num_draws = require_integer("num_chains", num_chains), require_integer("num_draws", num_draws, least=0)
    plan, folder = _plan(sampler, target_acceptance_rate, thin, store, block_size)
    _require_until(until, num_draws)
    if scheme is not None and not isinstance(scheme, Scheme):
        raise TypeError(f"scheme must be a Scheme, such as hm.two_ended(), got {scheme!r}.")
    key_starts, key_warmup, key_draws = jax.random.split(key, 3)
    dtype = _as_dtype(dtype)
    goes_on = isinstance(initial, AdaptiveState)
    with in_precision_of(initial.position if goes_on else dtype):
        begin = initial if goes_on else find_starts(model, initial, starts, key_starts, num_chains, dtype)
        require_names(model, plan.names, initial.position if goes_on else begin)

        bar = progress if isinstance(progress, Progress) else Progress(progress)
        begins = time.perf_counter()
        run = warmup(
            model.logdensity,
            scheme or two_ended(),
            num_chains,
            sampler=plan.sampler,
            target_acceptance_rate=plan.target_acceptance_rate,
        )
        try:
            bar.show("warming up")
            (state, parameters), info = _wait(run.run(key_warmup, begin, num_warmup), bar)
        except BaseException:
            bar.end()
            raise
        info = gathered(info._replace(last_state=None))._replace(last_state=info.last_state)
        result = Result(
            model=model,
            plan=plan,
            rng_key=key_draws,
            parameters=parameters,
            warmup_info=info,
            state=state,
            trace=empty_draws(model, plan, key_draws, parameters, state),
            superchains=np.arange(num_chains) if goes_on else find_superchains(gathered(begin)),
            warmup_seconds=time.perf_counter() - begins,
            folder=folder,
        )
        if folder is not None:
            begin_folder(folder, result)
        return _draw(result, num_draws, until, bar)


def continue_run(result: Result, num_draws: int, until: Until | None, progress: bool | Progress) -> Result:
    """The result with more draws: `Result.extend`."""
    num_draws = require_integer("num_draws", num_draws, least=0)
    _require_until(until, result.num_draws + num_draws)
    bar = progress if isinstance(progress, Progress) else Progress(progress)
    with in_precision_of(result.state.position):
        return _draw(replace(result, notes=()), num_draws, until, bar)


def _draw(result: Result, num_draws, until, bar):
    """The result with more draws: `num_draws`, then more until there is enough; fewer after Ctrl-C."""
    draws: list[Draws] = [result.trace]
    state, notes, num_done, seconds = result.state, result.notes, result.num_draws, result.sampling_seconds
    least = num_done + num_draws
    most = least if until is None else until.max_draws or 10 * least
    goal = least
    folder = result.folder

    def joined():
        """All draws so far. In memory they replace their parts."""
        if folder is not None:
            return Folder(folder).read(result.trace, num_done)
        if len(draws) > 1:
            draws[:] = [jax.tree.map(lambda *leaves: np.concatenate(leaves), *draws)]
        return draws[0]

    try:
        with interrupts() as check:
            while num_done < goal:
                blocks = draw_blocks(
                    result.model, result.plan, result.rng_key, result.parameters, state, num_done, goal - num_done
                )
                for new_state, block, block_seconds in blocks:
                    seconds += block_seconds
                    if folder is not None:
                        write_block(folder, block, num_done, new_state, notes, seconds)
                    else:
                        draws.append(block)
                    state, num_done = new_state, num_done + len(block.logdensity)
                    bar.follow(block, num_done, goal, result.parameters["step_size"])
                    check()
                if until is not None and not _is_enough(replace(result, trace=joined()), until):
                    goal = min(int(np.ceil(_GROWTH * goal)), most)
                    if num_done == most:
                        notes = (
                            *notes,
                            f"ended at {most} draws, before all ESS were {until.ess:.0f} and R-hat {until.rhat}.",
                        )
    except KeyboardInterrupt:
        notes = (*notes, f"the run was interrupted after {num_done} of {goal} draws.")
    result = replace(result, state=state, trace=joined(), notes=notes, sampling_seconds=seconds)
    bar.end(result)
    return result


def _is_enough(result, until):
    """Whether every bulk ESS and, of more than one chain, every R-hat is as `until` demands."""
    x, _ = result.columns()
    bulk, _, rhat = diagnostics.ess_and_rhat(x, result.superchains)
    return np.all(bulk >= until.ess) and (len(x) == 1 or np.all(rhat <= until.rhat))


def _as_dtype(dtype):
    """NumPy's float32 or float64, given it, its name or its type; or None. Raises ValueError on anything else."""
    for known in (None, np.dtype(np.float32), np.dtype(np.float64)):
        if dtype is known or dtype is not None and known is not None and dtype in (known, known.name, known.type):
            return known
    raise ValueError(f"dtype must be float32 or float64, got {dtype!r}.")


def _wait(results, bar):
    """The results, once they are computed.

    They are awaited in Python, because an interrupt is not heard inside of XLA.
    """
    begins, leaves = time.perf_counter(), jax.tree.leaves(results)
    while not all(leaf.is_ready() for leaf in leaves):
        seconds = time.perf_counter() - begins
        time.sleep(min(_PATIENCE, 1e-4 + _SHARE * seconds))
        bar.show(f"warming up, {seconds:.0f} s")
    return jax.block_until_ready(results)


def _plan(sampler, target_acceptance_rate, thin, store, block_size):
    """The `Plan`, and the folder that draws are written to, or None. Raises as `sample`."""
    found = ALL_SAMPLERS.get(sampler, sampler) if isinstance(sampler, str) else sampler
    if not isinstance(found, Sampler):
        error = ValueError if isinstance(sampler, str) else TypeError
        raise error(f"sampler must be one of {sorted(ALL_SAMPLERS)} or a Sampler, got {sampler!r}.")
    if block_size is not None:
        block_size = require_integer("block_size", block_size)
    is_folder = isinstance(store, str | Path)
    is_names = isinstance(store, Sequence) and store and all(isinstance(name, str) for name in store)
    if store is not None and not is_folder and not is_names:
        raise TypeError(f"store must be names of variables, or a folder, got {store!r}.")
    names = None if store is None or is_folder else tuple(store)
    folder = Path(store) if is_folder else None
    if folder is not None:
        Folder.require_new(folder)
    target = found.target_acceptance_rate if target_acceptance_rate is None else target_acceptance_rate
    require_rate(target)
    return Plan(found, float(target), require_integer("thin", thin), names, block_size), folder


def _require_until(until, num_draws):
    if until is None:
        return
    if not isinstance(until, Until):
        raise TypeError(f"until must be an hm.Until, got {until!r}.")
    if not (until.ess > 0 and until.rhat > 1):
        raise ValueError(f"until needs a positive ess and an rhat above 1, got {until}.")
    if until.max_draws is not None:
        require_integer("max_draws", until.max_draws, least=max(num_draws, 1))
