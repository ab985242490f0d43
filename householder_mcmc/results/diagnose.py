"""What happened in a warm-up and in the transitions after it, in words."""

from typing import Any

import numpy as np

from householder_mcmc.adaptation.warmup_types import WarmupInfo
from householder_mcmc.mcmc.integrator import is_known
from householder_mcmc.preconditioners.maps import LowRank
from householder_mcmc.results import arviz, diagnostics

__all__ = ["diagnose"]

# Chains arrived late if the map was learnt in a smaller part of the warm-up than this. If the learner never started
# anew, the part is 9/10. Chosen, without a source.
_SMALLEST_PART_LEARNT = 1 / 3

# If the mean acceptance of the last phase is further than `_FAR` from its target, the step size does not fit. Its
# standard error is 0.02 in a last phase of 40 steps of 4 chains. A chain that accepts less than `_STUCK_PART` of the
# target hardly moves.
_FAR = 0.1
_STUCK_PART = 0.25


# The part of the scores that a linear function of the draws explains, below which a linear map is of little use. On
# public posteriors that HMC samples well it is 0.33-1, on funnels, Cauchy tails and a centred horseshoe 0.02-0.06.
_LEAST_EXPLAINED = 0.1


def diagnose(
    warmup_info: WarmupInfo,
    parameters: dict[str, Any] | None = None,
    info: Any = None,
    *,
    positions: Any = None,
    target_acceptance_rate: float | None = None,
) -> list[str]:
    """Reasons to look again at a run, one sentence each.

    Parameters
    ----------
    warmup_info, parameters
        What `Warmup.run` returned. With the parameters a full use of the rank is reported.
    info
        Infos of the transitions after the warm-up, fields (num_draws, num_chains). With them divergences are counted.
    positions
        Trace of the positions of these transitions, leaves (num_draws, num_chains, ...). With it R-hat, ESS, chains
        that are stuck and heavy tails are judged, and, if there are infos, each chain's acceptance. Variables have the
        names that `to_arviz` gives them.
    target_acceptance_rate
        What the step size was tuned to. With it the acceptance of the last phase of the warm-up is judged.

    Returns
    -------
    A list of sentences, empty if nothing was found.

    Raises
    ------
    ValueError
        On positions whose first two axes differ from each other's or from those of `info`, and on two variables of the
        same name.

    Examples
    --------
    .. code-block:: python

        (state, parameters), warmup_info = hm.warmup(logdensity_fn, hm.two_ended()).run(rng_key, positions)
        kernel = hm.hmc(logdensity_fn, **parameters)
        state, (states, info) = ...  # a scan over transitions of all chains
        print(*hm.diagnose(warmup_info, parameters, info, positions=states.position), sep="\\n")
    """
    found = []
    num_steps, num_learnt = int(warmup_info.num_steps), int(warmup_info.num_learnt)
    if num_learnt < _SMALLEST_PART_LEARNT * num_steps:
        found.append(
            f"chains arrived late: the map is that of {num_learnt} of {num_steps} steps. Lengthen the warm-up."
        )
    elif not warmup_info.has_settled:
        found.append(f"the map, the step size or the chains had not settled after {num_steps} steps.")
    if np.any(warmup_info.is_behind):
        found.append(
            f"chains {_indices(warmup_info.is_behind)} ended the warm-up far below the others, on their way or in a "
            "lower mode. Nothing was learnt from them."
        )
    if np.any(warmup_info.num_moves):
        found.append(
            f"chains {_indices(warmup_info.num_moves)} were in places of negligible mass, and were set to the state of "
            "another chain."
        )
    rates = np.asarray(warmup_info.acceptance_rate, float)
    if target_acceptance_rate is not None and np.all(np.isfinite(rates)):
        is_stuck = rates < _STUCK_PART * target_acceptance_rate
        mean = rates.mean()
        if np.any(is_stuck):
            found.append(f"chains {_indices(is_stuck)} accepted almost nothing in the last phase of the warm-up.")
        elif (
            target_acceptance_rate - mean > _FAR or mean - target_acceptance_rate > _FAR and not _is_solved(parameters)
        ):
            found.append(
                f"the acceptance of the last phase is {mean:.2f}, far from its target of {target_acceptance_rate}."
            )
    explained = warmup_info.explained
    if explained is not None and float(explained) < _LEAST_EXPLAINED:
        found.append(
            f"a linear function of the draws explains {float(explained):.2f} of the scores: no linear map fits this "
            "posterior. Reparameterise (a funnel, heavy tails), or expect slow mixing."
        )
    found += [] if parameters is None else _rank_used(parameters["inverse_mass_matrix"])
    num_divergent = int(np.sum(getattr(info, "is_divergent", 0)))
    if num_divergent:
        found.append(f"{num_divergent} trajectories diverged: they met places too narrow for their steps, or a wall.")
    return found + ([] if positions is None else _judge_draws(positions, info))


def _judge_draws(positions, info):
    draws, label = arviz.ravelled_draws(positions)
    ess_bulk, _, rhat = diagnostics.ess_and_rhat(draws)
    if info is not None and (found := np.shape(info.acceptance_rate)) != (expected := draws.shape[1::-1]):
        raise ValueError(f"info must have fields (num_draws, num_chains) = {expected}, as positions, got {found}.")
    acceptance_rate = 1.0 if info is None else np.mean(info.acceptance_rate, axis=0)
    return diagnostics.warnings(draws, acceptance_rate, ess_bulk, rhat, label)


def _is_solved(parameters):
    """Whether there is a center. Then even the longest step may have an acceptance above its target."""
    center = None if parameters is None else parameters.get("center")
    return center is not None and bool(is_known(center))


def _indices(are):
    return np.flatnonzero(np.asarray(are)).tolist()


def _rank_used(preconditioner):
    if not isinstance(preconditioner, LowRank):
        return []
    rank, dim = preconditioner.eigenvectors.shape
    if rank == dim or int(preconditioner.effective_rank()) < rank:
        return []
    return [f"all {rank} directions of the map are used: a higher rank may help."]
