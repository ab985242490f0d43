"""What `hm.sample` returns: draws, their diagnostics, and files of them."""

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from householder_mcmc.adaptation.samplers import Sampler
from householder_mcmc.adaptation.warmup import WarmupInfo
from householder_mcmc.results import arviz, diagnostics
from householder_mcmc.results.diagnose import diagnose
from householder_mcmc.sampling.blocks import Draws, Plan
from householder_mcmc.sampling.files import Folder, read_tree, write_tree
from householder_mcmc.sampling.model import Model, as_model
from householder_mcmc.sampling.nuts import ALL_SAMPLERS
from householder_mcmc.sampling.summary import Summary, summarise

__all__ = ["Result", "as_key", "begin_folder", "in_precision_of", "load", "save", "write_block"]

# Draws whose predictions or likelihoods are computed at once.
_BATCH = 100

# Files of a folder beside those of its draws: what is known when the run begins, and what each block replaces.
_RUN, _STATE = "run.npz", "state.npz"


@dataclass(frozen=True)
class Result:
    """Draws of chains, and how they came about.

    model: what was sampled.
    plan: sampler, thinning and what is kept.
    rng_key: random key of the draws.
    parameters: of the frozen kernel, as from `hm.warmup`.
    warmup_info: a `WarmupInfo`.
    state: last states of the chains.
    trace: what is kept of each draw, leaves (num_draws, num_chains, ...).
    superchains (num_chains,): a number for each chain. Chains with the same number began at the same place.
    notes: what happened in the run, in sentences.
    warmup_seconds: wall time of starts and warm-up, with compilation.
    sampling_seconds: wall time of the draws, without compilation.
    folder: where draws are streamed to, or None.
    """

    model: Model
    plan: Plan
    rng_key: Any
    parameters: dict[str, Any]
    warmup_info: WarmupInfo
    state: Any
    trace: Draws
    superchains: np.ndarray
    notes: tuple[str, ...] = ()
    warmup_seconds: float = 0.0
    sampling_seconds: float = 0.0
    folder: Path | None = None

    def __repr__(self):
        return f"Result({self.num_chains} chains, {self.num_draws} draws each: {', '.join(self.draws)})"

    @property
    def num_draws(self) -> int:
        """Number of draws of each chain."""
        return self.trace.logdensity.shape[0]

    @property
    def num_chains(self) -> int:
        """Number of chains."""
        return self.trace.logdensity.shape[1]

    @property
    def draws(self) -> dict[str, np.ndarray]:
        """Variables by name, as the user reads them, (num_chains, num_draws, ...)."""
        return arviz.named_draws(self.trace.variables or self.trace.position)

    @property
    def positions(self) -> Any:
        """Unconstrained positions, leaves (num_chains, num_draws, ...); None if only some variables were kept."""
        return _chains_first(self.trace.position)

    @property
    def logdensity(self) -> np.ndarray:
        """Log-density of the unconstrained positions, (num_chains, num_draws)."""
        return _chains_first(self.trace.logdensity)

    @property
    def infos(self) -> Any:
        """Infos of the sampler, fields (num_chains, num_draws).

        If the run is thinned, they are of all transitions since the draw before: whether any had a flag, the sum of
        counts, and other numbers of the last transition.
        """
        return _chains_first(self.trace.infos)

    @functools.cached_property
    def warnings(self) -> list[str]:
        """Reasons to distrust the draws, one sentence each: from the run, the draws and the warm-up."""
        found = list(self.notes)
        if self.num_draws:
            x, label = self.columns()
            bulk, _, rhat = diagnostics.ess_and_rhat(x, self.superchains)
            rates = np.mean(self.infos.acceptance_rate, axis=1)
            found += diagnostics.warnings(x, rates, bulk, rhat, label, self.superchains)
        target = self.plan.target_acceptance_rate
        with in_precision_of(self.state.position):
            return found + diagnose(self.warmup_info, self.parameters, self.infos, target_acceptance_rate=target)

    def columns(self) -> tuple[np.ndarray, Callable[[int], str]]:
        """The numbers that warnings judge, (num_chains, num_draws, d), and a function: index in d -> its name.

        They are the unconstrained positions. If positions were not kept, they are the stored variables, without
        numbers that are constant in every chain, as deterministic variables may be.
        """
        if self.trace.position is not None:
            return arviz.ravelled_draws(self.trace.position)
        x, label = arviz.ravelled_draws(self.trace.variables)
        moves = np.flatnonzero(np.any(x != x[:, :1], axis=(0, 1)))
        return x[:, :, moves], lambda index: label(int(moves[index]))

    def summary(self) -> Summary:
        """A table with a row for each number of each variable: print it, or read `result.summary()["theta[2]"].mean`.

        mean, sd, quantiles (5%, 50%, 95%), Monte Carlo standard error of the mean, ESS of the bulk and of the tails,
        and R-hat. The last four are NaN for fewer than 4 draws of each chain. For 64 chains and more, with fewer than
        400 draws each, they are as in `diagnostics.ess_and_rhat`, with the nested R-hat of chains that share starts.
        Raises ValueError if there are no draws.
        """
        if not self.num_draws:
            raise ValueError("there are no draws.")
        return summarise(self.draws, self.superchains)

    def to_arviz(self, *, coords=None, dims=None, log_likelihood: bool = False, posterior_predictive: bool = False):
        """ArviZ's InferenceData (ArviZ 0.23) or DataTree (1.x) of draws and sample statistics.

        Parameters
        ----------
        coords, dims
            Dimension -> labels, and variable -> names of its dimensions, beside those of the model.
        log_likelihood, posterior_predictive
            Whether to compute these groups too, which takes an evaluation of the model for each draw.

        Raises
        ------
        ImportError
            Without ArviZ.
        ValueError
            If the model cannot give a group that is asked for.
        """
        statistics = arviz.statistics(
            self.infos, self.logdensity, self.logdensity.shape, chain_axis=0, step_size=self.parameters["step_size"]
        )
        groups: dict[str, Any] = {"posterior": self.draws, "sample_stats": statistics}
        if log_likelihood:
            groups["log_likelihood"] = self.log_likelihood()
        if posterior_predictive:
            groups["posterior_predictive"] = self.posterior_predictive()
        coords, dims = {**(self.model.coords or {}), **(coords or {})}, {**(self.model.dims or {}), **(dims or {})}
        return arviz.from_groups(groups, coords=coords or None, dims=dims or None)

    def log_likelihood(self) -> dict[str, np.ndarray]:
        """Log-density of each observation at each draw, by name, (num_chains, num_draws, ...).

        Raises ValueError if the model has no `log_likelihood`, or if positions were not kept.
        """
        function = self.model.log_likelihood
        if function is None:
            raise ValueError("the model has no log_likelihood: see hm.Model.")
        return self._map_draws(lambda position, index: function(position))

    def posterior_predictive(self, rng_key: Any = 0) -> dict[str, np.ndarray]:
        """A new value of each observed variable for each draw, by name, (num_chains, num_draws, ...).

        rng_key: a key or a seed. Raises ValueError if the model has no `predict`, or if positions were not kept.
        """
        function = self.model.predict
        if function is None:
            raise ValueError(
                "the model has no predict: see hm.Model. (Of PyMC: pymc.sample_posterior_predictive(result.to_arviz(), "
                "model).)"
            )
        key = as_key(rng_key)
        return self._map_draws(lambda position, index: function(jax.random.fold_in(key, index), position))

    def _map_draws(self, function):
        """function(position, index) for each draw, leaves (num_chains, num_draws, ...).

        index: place of the draw among those of all chains.
        """
        if self.trace.position is None:
            raise ValueError("positions were not kept, because `store` named variables.")
        shape = self.logdensity.shape
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), self.positions)
        indices = np.arange(np.prod(shape), dtype=np.uint32)
        run = jax.jit(lambda *xs: jax.lax.map(lambda x: function(*x), xs, batch_size=_BATCH))
        with in_precision_of(flat):
            values = run(flat, indices)
        return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(*shape, *leaf.shape[1:]), values)

    def extend(self, num_draws: int, *, until=None, progress: bool = True) -> "Result":
        """The result with `num_draws` more draws of each chain, as though the run had not been stopped.

        The draws are the same, bit for bit, as those of one longer run. until, progress: as for `hm.sample`. Raises
        ValueError if `num_draws` is negative, or if the result was loaded without its model.
        """
        from householder_mcmc.sampling.sample import continue_run  # which makes Results

        return continue_run(self, num_draws, until, progress)


def _chains_first(tree):
    return jax.tree.map(lambda leaf: np.moveaxis(leaf, 1, 0), tree)


def in_precision_of(tree: Any) -> contextlib.AbstractContextManager:
    """A context with JAX's x64 on, if a tree of arrays or dtypes has float64; else one that changes nothing."""
    is_double = any(getattr(leaf, "dtype", leaf) == np.float64 for leaf in jax.tree.leaves(tree))
    return jax.enable_x64(True) if is_double else contextlib.nullcontext()


def as_key(rng_key: Any) -> Any:
    """The random key, or that of a seed.

    Raises ValueError if a seed is not from 0 to 2^32 - 1, TypeError on anything else than a seed or a key.
    """
    if isinstance(rng_key, int | np.integer) and not isinstance(rng_key, bool):
        if not 0 <= rng_key < 2**32:
            raise ValueError(f"a seed must be from 0 to 2^32 - 1, got {rng_key}.")
        return jax.random.key(int(rng_key))
    dtype, shape = getattr(rng_key, "dtype", None), getattr(rng_key, "shape", None)
    is_typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and shape == ()
    if is_typed or dtype == np.uint32 and shape is not None and len(shape) == 1:
        return rng_key
    raise TypeError(f"rng_key must be a seed or a random key, got {rng_key!r}.")


def save(path: str | Path, result: Result) -> None:
    """Write a result to one .npz file, without pickle; `hm.load` reads it.

    The file has arrays, and a text that says where in the result they belong. Functions are not saved. (A result that
    is streamed to a folder is on disk already: `hm.load` takes the folder.)

    Raises
    ------
    TypeError
        If `result` is no `Result`, or if positions are of other classes than dicts, lists, tuples and NamedTuples.
    """
    if not isinstance(result, Result):
        raise TypeError(f"hm.save takes a path and a Result, got a {type(result).__name__}.")
    write_tree(Path(path), {**_run_fields(result), "state": result.state, "trace": result.trace})


def load(path: str | Path, model: Any = None, sampler: Sampler | None = None) -> Result:
    """Read what `hm.save` wrote, or the folder that `hm.sample` streamed to.

    Parameters
    ----------
    path
        A file, or a folder. The folder of a run that was killed has the draws up to its last whole block.
    model
        The `hm.Model` or the log-density, because functions are not saved. It is needed for `extend`, for predictions,
        and for the model's coords and dims.
    sampler
        The `Sampler` of the run if it was none of "hmc", "mala" and "nuts", because it is not saved either.

    Returns
    -------
    Result. Draws of a folder are mapped from its files.

    Raises
    ------
    ValueError
        If the file is no result, if it needs a NamedTuple whose module is not imported, or if `sampler` is missing.

    Examples
    --------
    .. code-block:: python

        hm.save("run.npz", result)
        longer = hm.load("run.npz", model).extend(1000)
    """
    path = Path(path)
    is_folder = path.is_dir()
    saved = read_tree(path / _RUN if is_folder else path)
    if not isinstance(saved, dict) or "plan" not in saved:
        raise ValueError(f"{path} is no result of householder_mcmc.")
    plan = saved["plan"]
    if is_folder:
        last = read_tree(path / _STATE)
        saved |= {**last, "trace": Folder(path).read(saved["trace"], int(last["num_draws"]))}
    if sampler is None and plan["sampler"] is None:
        raise ValueError("the run had a sampler of its own: hm.load(path, model, sampler).")
    return Result(
        model=as_model(_raise_without_model if model is None else model),
        plan=Plan(
            sampler=sampler or ALL_SAMPLERS[plan["sampler"]],
            target_acceptance_rate=float(plan["target_acceptance_rate"]),
            thin=int(plan["thin"]),
            names=None if plan["names"] is None else tuple(plan["names"]),
            block_size=None if plan["block_size"] is None else int(plan["block_size"]),
        ),
        rng_key=saved["rng_key"],
        parameters=saved["parameters"],
        warmup_info=saved["warmup_info"],
        state=saved["state"],
        trace=saved["trace"],
        superchains=saved["superchains"],
        notes=tuple(saved["notes"]),
        warmup_seconds=float(saved["warmup_seconds"]),
        sampling_seconds=float(saved["sampling_seconds"]),
        folder=path if is_folder else None,
    )


def begin_folder(folder: Path, result: Result) -> None:
    """Make the folder, and write what does not change while draws come."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tree(folder / _RUN, {**_run_fields(result), "trace": result.trace})


def write_block(
    folder: Path, draws: Draws, first: int, state: Any, notes: tuple[str, ...], sampling_seconds: float
) -> None:
    """Write a block of draws after the first `first` ones, then the state after it."""
    Folder(folder).write(draws, first)
    num_draws = first + len(draws.logdensity)
    last = {"state": state, "num_draws": num_draws, "notes": list(notes), "sampling_seconds": sampling_seconds}
    write_tree(folder / _STATE, last)


def _raise_without_model(position):
    raise ValueError("the result was loaded without its model: hm.load(path, model).")


def _run_fields(result):
    names = {sampler: name for name, sampler in ALL_SAMPLERS.items()}
    return {
        "plan": {**result.plan._asdict(), "sampler": names.get(result.plan.sampler)},
        "rng_key": result.rng_key,
        "parameters": result.parameters,
        "warmup_info": result.warmup_info,
        "superchains": result.superchains,
        "notes": list(result.notes),
        "warmup_seconds": result.warmup_seconds,
        "sampling_seconds": result.sampling_seconds,
    }
