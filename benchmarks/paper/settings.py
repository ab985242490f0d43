"""What learns in the study: the library's schemes with the settings of the authors' program, of the text, and ours.

The authors' program has details that the library has no use for; they are here, as changes of its schemes. Two are left
out: it accepts a proposal whose density ratio is NaN (never seen), and it fixes signs of eigenvectors (no effect on
L L^T).

`hm.adaptive_mala` with `hm.AUTHORS_GAINS` differs from Algorithm 1 of the paper in three more points:

1. The step size follows a weighted mean of the chains' acceptance. A chain that accepts less than 0.7 of the target has
   a weight above 1 (`adaptive.acceptance_error`). In Algorithm 1 there is one chain, of weight 1.
2. The gain of log sigma stays at its first value until the acceptance has crossed its target. It decays from there on
   (`adaptive.build_kernel`). In Algorithm 1 it decays from the first step on.
3. The variances start at 1. Once that start weighs less than 1%, it is taken out of them where they are used
   (`moments.without_start`). In Algorithm 1 it only fades.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import householder_mcmc as hm
from householder_mcmc.learners.gains import STEP_SIZE_GAIN
from householder_mcmc.learners.moments import MomentsState
from householder_mcmc.preconditioners import reflections

TEXT_GAINS = hm.AUTHORS_GAINS._replace(oja=hm.power_decay(0.1))


class Learner(NamedTuple):
    """scheme: (target, what was fitted to it or None) -> `hm.Scheme`. rank: of its low-rank part, else 0.

    fit: (rng_key, target) -> a preconditioner, before the chain.
    """

    scheme: Callable
    rank: int = 0
    step_size_gain: optax.Schedule = STEP_SIZE_GAIN
    fit: Callable | None = None


class Variant(NamedTuple):
    """Learners by the name of their scheme; start: (target, generator, num_chains) -> positions (num_chains, d)."""

    learners: dict[str, Learner]
    num_chains: int = 2
    start: Callable = lambda target, rng, num_chains: target.start(rng, num_chains)


def adaptive(rank: int, gains: hm.Gains) -> dict[str, Learner]:
    """The library's schemes as they are."""
    schemes = {
        "none": hm.none(),
        "diagonal": hm.diagonal(gains),
        "dense": hm.dense(gains),
        "eigen": hm.eigen(rank, gains=gains),
        "eigen_identity": hm.eigen_identity(rank, gains=gains),
    }
    ranks = {"eigen": rank, "eigen_identity": rank}
    return {name: Learner(always(scheme), ranks.get(name, 0)) for name, scheme in schemes.items()}


def always(scheme: hm.Scheme) -> Callable:
    return lambda target, fitted: scheme


def authors_xy(rank: int) -> dict[str, Learner]:
    """XY model: the running mean is wrapped where the program wraps it, and its covariance repaired."""
    gains = hm.AUTHORS_GAINS
    diagonal = with_wrapped_mean(hm.diagonal(gains), lambda centred: jnp.mean(centred**2, axis=0), gains)
    dense = with_wrapped_mean(hm.dense(gains), lambda centred: centred.T @ centred / centred.shape[0], gains)
    changed = {"diagonal": Learner(always(diagonal)), "dense": Learner(always(with_repair(dense, 1.0)))}
    return adaptive(rank, gains) | changed


def authors_logistic(rank: int) -> dict[str, Learner]:
    """Logistic regression in the published file: small gains, and a start at the answer.

    eigen starts from the exact eigenvectors, dense from (X^T X / n)^(-1).
    """
    decay = hm.power_decay(0.9, offset=1.0)
    gains = hm.Gains(moments=decay, oja=hm.power_decay(0.9, coefficient=1e-5), relative=False)
    dense_decay = hm.power_decay(1.0, offset=1.0)
    dense = hm.dense(gains._replace(moments=dense_decay))
    eigen, identity = hm.eigen(rank, gains=gains), hm.eigen_identity(rank, gains=gains)

    def from_covariance(target, fitted):
        design = target.design
        covariance = jnp.linalg.inv(design.T @ design / design.shape[0])
        return starting_with(dense, second=covariance, weight=jnp.zeros((), covariance.dtype))

    return {
        "none": Learner(always(hm.none()), 0, decay),
        "diagonal": Learner(always(hm.diagonal(gains)), 0, decay),
        "dense": Learner(from_covariance, 0, dense_decay),
        "eigen": Learner(
            lambda target, fitted: starting_with(eigen, basis=reflections.compact(target.directions)), rank, decay
        ),
        "eigen_identity": Learner(lambda target, fitted: starting_with(identity, basis=target.directions), rank, decay),
    }


def starting_with(scheme: hm.Scheme, **parts) -> hm.Scheme:
    """A scheme with parts of its first state replaced."""
    return scheme._replace(init=lambda positions: scheme.init(positions)._replace(**parts))


def with_repair(scheme: hm.Scheme, amount: float) -> hm.Scheme:
    """`dense` where a covariance that has lost positive definiteness to rounding gains `amount` times the identity."""

    def update_fn(state, positions, scores=None):
        del scores
        state = scheme.update(state, positions)
        is_definite = jnp.all(jnp.isfinite(jnp.linalg.cholesky(state.second)))
        repair = jnp.where(is_definite, 0, amount).astype(state.second.dtype)
        return state._replace(second=state.second + repair * jnp.eye(*state.second.shape, dtype=repair.dtype))

    return scheme._replace(update=update_fn, preconditioner=lambda state: hm.Dense(jnp.linalg.cholesky(state.second)))


def with_wrapped_mean(scheme: hm.Scheme, increment: Callable, gains: hm.Gains) -> hm.Scheme:
    """`diagonal` or `dense` with the running mean taken modulo 2 pi, while the states are not."""

    def update_fn(state, positions, scores=None):
        del scores
        gain = gains.moments(state.count)
        mean = jnp.mod(state.mean + gain * (jnp.mean(positions, axis=0) - state.mean), 2 * jnp.pi)
        second = state.second + gain * (increment(positions - mean) - state.second)
        return MomentsState(optax.safe_increment(state.count), mean, second, state.weight * (1 - gain))

    return scheme._replace(update=update_fn)


def start_near_mode(target, rng: np.random.Generator, num_chains: int) -> np.ndarray:
    """Logistic regression: where the authors' 10,000 steps of preconditioned gradient descent from 0 end.

    That is not the mode: the log-density there is 0.3 (d = 50) to 13 (d = 150) below it.
    """
    del rng
    with jax.enable_x64(True):
        end = _descend(target)
    return np.tile(np.asarray(end), (num_chains, 1))


@jax.jit
def _descend(target):
    covariance = jnp.matmul(target.design.T, target.design, precision="highest") / target.design.shape[0]
    eigenvalues, eigenvectors = jnp.linalg.eigh(covariance)
    root = jnp.matmul(eigenvectors / jnp.sqrt(eigenvalues), eigenvectors.T, precision="highest")
    rate = 2 / (eigenvalues[0] + eigenvalues[-1])

    def step(count, position):
        score = jax.grad(target.logdensity)(position)
        return position + rate * (count + 1.0) ** -0.9 * jnp.matmul(root, score, precision="highest")

    return jax.lax.fori_loop(0, 10_000, step, jnp.zeros(target.design.shape[1], covariance.dtype))
