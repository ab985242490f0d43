"""What a warm-up is called with and what it returns."""

from typing import Any, NamedTuple, Protocol

from blackjax.base import AdaptationAlgorithm
from blackjax.types import Array, ArrayLikeTree, ArrayTree, PRNGKey

from householder_mcmc.adaptation.adaptive import AdaptiveState
from householder_mcmc.mcmc.metropolis import ChainState

__all__ = ["RunWarmup", "Warmup", "WarmupInfo", "WarmupResults"]


class WarmupInfo(NamedTuple):
    """What happened in a warm-up.

    acceptance_rate (num_chains,): mean over the last phase, in which the map is frozen; NaN if that has no step.
    num_nonfinite (num_chains,): non-finite proposals in the whole warm-up.
    num_gradients (num_chains,): of the log-density, beyond that of the start.
    num_steps (): steps made in both phases.
    num_learnt (): learning steps since the learner last started anew, at most nine tenths of all steps. If they are
    much fewer, chains were on their way from a far start until shortly before the end: make the warm-up longer.
    has_settled (): whether at some look the map and the step size had settled and the chains agreed.
    is_behind (num_chains,): chains that ended with log-densities more than d + 10 below those of the others, or so
    large in size that rounding moves them by as much. Nothing was learnt from them. They are on their way, or in a
    lower mode.
    num_moves (num_chains,): how often a chain took the state of another because it was in a place of negligible mass.
    explained (): how much of the scores a linear function of the draws explains, on draws that were not learnt from. It
    is 1 for a Gaussian whose map is known, and near 0 where no linear map helps, as in funnels. None if the scheme does
    not say.
    last_state: an `AdaptiveState`, from which `run` can go on.
    history: what `keep` returned at each learning step, stacked; None without it.
    """

    acceptance_rate: Array
    num_nonfinite: Array
    num_gradients: Array
    num_steps: Array
    num_learnt: Array
    has_settled: Array
    is_behind: Array
    num_moves: Array
    explained: Array | None
    last_state: AdaptiveState
    history: ArrayTree | None


class WarmupResults(NamedTuple):
    """What a warm-up returns beside its `WarmupInfo`.

    state: the sampler's states, with a leading chain axis. parameters: a dict of step_size (), inverse_mass_matrix, a
    preconditioner, and center, a position, if the sampler takes one and the scheme learns one.
    """

    state: ChainState
    parameters: dict[str, Any]


class RunWarmup(Protocol):
    """Type of `Warmup.run`."""

    def __call__(
        self, rng_key: PRNGKey, positions: ArrayLikeTree | AdaptiveState, num_steps: int | None = None
    ) -> tuple[WarmupResults, WarmupInfo]: ...


class Warmup(AdaptationAlgorithm):
    """A warm-up. run: (rng_key, positions, num_steps=None) -> ((state, parameters), info)."""

    run: RunWarmup  # pyright: ignore[reportIncompatibleVariableOverride]: of BlackJAX's, with a number of steps
