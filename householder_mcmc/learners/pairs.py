"""Draws and scores as pairs of rows, and what a low-rank map makes of them: what `two_ended` measures on a block.

Pairs are two arrays (n, d), draws and scores: slices and stacks of one array take as long as the products. A row of
draws and the same row of scores are of one draw, or of one combination of draws.
"""

import jax.numpy as jnp

from householder_mcmc.linalg import dot, mean_of_rows, project

__all__ = [
    "centre",
    "eigenvectors_in_own_units",
    "energies",
    "fold",
    "log_errors",
    "products",
    "rounding_of_whitened",
    "squares",
    "where_positive",
    "whiten",
]

# Rows that stand for a block in the eigenproblem of rank + 64 rows, whose cost is cubic in them. Draws beyond that are
# summed in groups; 40, of 4 chains and 10 steps, never are.
_MOST_ROWS = 64

# Scores that vary by less than this many units of rounding of their mean do not vary. Draws and scores along a
# direction, and what is left of a coordinate without the low-rank part, are known to as many units of all coordinates.
_ROUNDING = 8


def centre(block, mean):
    """Draws and scores (n, d) of a block (2, steps, num_chains, d) about the means (2, num_chains, d).

    The rows are those of the first chain, then those of the second: where chains are sharded each device has its own.

    Scores that do not vary are zero, without their rounding.
    """
    block = jnp.swapaxes(block, 1, 2)
    draws, scores = (part - of[:, None] for part, of in zip(block, mean, strict=True))
    rounding = _ROUNDING * jnp.finfo(mean.dtype).eps * jnp.abs(mean[1])[:, None]
    scores = jnp.where(jnp.abs(scores) > rounding, scores, 0)
    return draws.reshape(-1, mean.shape[2]), scores.reshape(-1, mean.shape[2])


def fold(rows, num_chains):
    """At most `_MOST_ROWS` rows whose Gram matrix estimates that of the given rows (n, d), the chains' one by one.

    Draws of different chains are summed, which are independent.
    """
    if len(rows) > _MOST_ROWS:
        num_steps = len(rows) // num_chains
        by_chain = rows.reshape(num_chains, num_steps, -1)
        rows = _sum_in_groups(by_chain, max(_MOST_ROWS // num_steps, 1)).reshape(-1, rows.shape[1])
    return rows if len(rows) <= _MOST_ROWS else _sum_in_groups(rows, _MOST_ROWS)


def _sum_in_groups(x, num):
    """Sums of x[i], x[i + num], x[i + 2 num], ... for i < num. A product: of sharded chains only the sums are sent."""
    is_member = jnp.arange(len(x))[None] % num == jnp.arange(num)[:, None]
    return jnp.einsum("gn,n...->g...", is_member.astype(x.dtype), x, precision="highest")


def squares(rows):
    """Sums over the rows by coordinate, (2, d)."""
    return jnp.stack([len(part) * mean_of_rows(part**2) for part in rows])


def where_positive(one, other):
    """Both where both are positive, else 1 and 1, so that a log of their ratio is 0 there; and where they are."""
    is_positive = (one > 0) & (other > 0)
    return jnp.where(is_positive, one, 1), jnp.where(is_positive, other, 1), is_positive


def energies(preconditioner, rows):
    """Of draws and scores in units of the scales: along each eigenvector (2, rank), and in all (2,)."""
    along = zip(eigenvectors_in_own_units(preconditioner), rows, strict=True)
    of_each = [jnp.sum(project(eigenvectors, part) ** 2, axis=1) for eigenvectors, part in along]
    return jnp.stack(of_each), _total_energies(preconditioner, rows)


def _total_energies(preconditioner, rows):
    units = (1 / preconditioner.scales, preconditioner.scales)
    return jnp.stack([jnp.sum((part * unit[None]) ** 2) for part, unit in zip(rows, units, strict=True)])


def log_errors(preconditioner, energies, totals):
    """log(eigenvalue / that in the map), (rank,), by draws and scores that the map has not learnt from.

    The energies of draws and scores along an eigenvector have the ratio eigenvalue^2.
    """
    least = _rounding(totals)[:, None]
    draws, scores, is_known = where_positive(*energies)
    is_known &= jnp.any(energies > least, axis=0)
    log_eigenvalues = (jnp.log(jnp.maximum(draws, least[0])) - jnp.log(jnp.maximum(scores, least[1]))) / 2
    return jnp.where(is_known, log_eigenvalues - jnp.log(preconditioner.eigenvalues), 0)


def products(preconditioner, rows, energies, totals):
    """|z|^2, |g|^2 and -z.g of draws and scores in whitened units, (3,)."""
    eigenvalues = preconditioner.eigenvalues
    stretch = jnp.stack([1 / eigenvalues, eigenvalues]) - 1
    of_each = jnp.maximum(totals + jnp.sum(stretch * energies, axis=1), 0)
    return jnp.append(of_each, -jnp.sum(rows[0] * rows[1]))


def whiten(preconditioner, rows):
    """Draws and scores without the low-rank part of the map, in the target's own units."""
    for_draws, for_scores = eigenvectors_in_own_units(preconditioner)
    root = jnp.sqrt(preconditioner.eigenvalues)[:, None]

    def stretch(rows, factors, there, back):
        return rows + dot((factors * project(there, rows)).T, back)

    draws, scores = rows
    return stretch(draws, 1 / root - 1, for_draws, for_scores), stretch(scores, root - 1, for_scores, for_draws)


def _rounding(energies):
    """Of the energies of draws and scores, in units of the scales, those along one direction that rounding may have."""
    return (_ROUNDING * jnp.finfo(energies.dtype).eps) ** 2 * energies


def rounding_of_whitened(preconditioner, rows):
    """The squares that the rounding of `whiten` may have, by coordinate, (2, d)."""
    scales, eigenvectors, eigenvalues = preconditioner
    root = jnp.sqrt(eigenvalues)[:, None]
    factors = jnp.stack([jnp.sum(((root - 1) * eigenvectors) ** 2, axis=0) for root in (1 / root, root)])
    rounding = _rounding(_total_energies(preconditioner, rows))
    return rounding[:, None] * factors * jnp.stack([scales, 1 / scales]) ** 2


def eigenvectors_in_own_units(preconditioner):
    """The eigenvectors (rank, d) times the scales, for draws and for scores that are not scaled."""
    scales, eigenvectors, _ = preconditioner
    return eigenvectors / scales[None], eigenvectors * scales[None]
