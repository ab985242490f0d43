"""Directions that matter, whatever scales a map was split with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import householder_mcmc as hm

SHAPES = [(20, 0, 2, 10), (100, 3, 2, 32), (100, 0, 5, 32), (100, 5, 0, 32), (400, 10, 10, 64), (1000, 5, 5, 32)]


def split(dim, num_wide, num_narrow, rank, seed=0):
    """The map of T (I + V^T (diag(lambda) - I) V) T, split with scales that are wrong in 8 coordinates."""
    rng = np.random.default_rng(seed)
    rows = np.linalg.qr(rng.normal(size=(dim, num_wide + num_narrow)))[0].T
    variances = np.r_[np.full(num_wide, 1e4), np.full(num_narrow, 1e-2)]
    scales = np.exp(rng.normal(size=dim))
    wrong = np.where(np.arange(dim) < 8, 0.3, 1.0)
    matrix = (np.eye(dim) + (rows.T * (variances - 1)) @ rows) / np.outer(wrong, wrong)
    eigenvalues, eigenvectors = np.linalg.eigh(matrix)
    used = np.argsort(-np.abs(np.log(eigenvalues)))[:rank]
    return hm.LowRank(*map(jnp.asarray, (scales * wrong, eigenvectors.T[used], eigenvalues[used])))


@pytest.mark.parametrize("dim, num_wide, num_narrow, rank", SHAPES)
def test_counts_the_true_directions(dim, num_wide, num_narrow, rank, x64):
    preconditioner = split(dim, num_wide, num_narrow, rank)
    assert preconditioner.effective_rank() == num_wide + num_narrow
    assert jax.jit(lambda p: p.effective_rank())(preconditioner) >= num_wide + num_narrow + 5  # in its own scales


def test_a_map_that_is_diagonal_has_none(x64):
    """A diagonal map has effective rank 0, even if its low-rank part holds large scales of coordinates."""
    eigenvalues = jnp.array([100.0, 0.01, 7.0])
    assert hm.LowRank(jnp.ones(6), jnp.eye(3, 6), eigenvalues).effective_rank() == 0
    assert hm.LowRank(jnp.ones(6), jnp.zeros((3, 6)), jnp.ones(3)).effective_rank() == 0


def test_what_two_ended_learns_of_two_narrow_directions():
    """The learner uses nine directions of its rank 10, most of them to undo scales. The effective rank is two."""
    rng = np.random.default_rng(0)
    rows = np.linalg.qr(rng.normal(size=(20, 2)))[0].T
    covariance = np.eye(20) - (rows.T * np.array([0.99, 0.96])) @ rows
    draws = rng.normal(size=(300, 4, 20)) @ np.linalg.cholesky(covariance).T
    scores = -draws @ np.linalg.inv(covariance)
    scheme = hm.two_ended(10)

    def learn(state, pair):
        return scheme.update(state, *pair), None

    pairs = jnp.asarray(draws, jnp.float32), jnp.asarray(scores, jnp.float32)
    state, _ = jax.jit(lambda pairs: jax.lax.scan(learn, scheme.init(pairs[0][0]), pairs))(pairs)
    preconditioner = scheme.preconditioner(state)
    assert jnp.sum(jnp.maximum(preconditioner.eigenvalues, 1 / preconditioner.eigenvalues) > 2) > 5
    assert preconditioner.effective_rank() == 2
