"""Trajectories that solve a Gaussian exactly, so that only the rest of the log-density costs steps.

With x = center + L z and momenta v ~ N(0, I) the energy is -log pi(x) + |v|^2 / 2. Let N(center, L L^T) be near the
target, and write -log pi(x) = |z|^2 / 2 + U(z). The first part and the kinetic energy turn (z, v) by one radian in unit
time, which has a closed form; the rest gives kicks -grad U = L^T grad log pi(x) + z. One step of size h is half a kick,
a rotation by h, half a kick: reversible, of unit volume, one gradient, and the leapfrog step in the limit of small h.

Where the target is that Gaussian there are no kicks, and a step of any size is exact. Where it is another, such a step
is stable for sizes up to about those of a leapfrog step, and its error is of the same order.

Other splittings were measured by the smallest ESS of x and of squares per 1000 gradients: HMC on frozen maps, an
acceptance of 0.8, medians of two or three seeds. Only this one has draws of one gradient where the Gaussian fits, and
it loses nothing to leapfrog on the banana (32) and the quartic (135).

- Rotation by h / 2, kick, rotation by h / 2. It needs the log-density once more where the trajectory ends, here
  counted as half a gradient. Diamonds 442 against 604, German credit 376 against 417, second Gaussian 348 against 374
  at d = 100 and 192 against 181 at d = 1000, a banana in ten dimensions about 22 against 31.
- Two rotations by h between kicks by 2 a h, (2 - 4 a) h and 2 a h, a = 0.193 (McLachlan 1995). They need two
  gradients or more. First Gaussian of d = 100 412 against 779, German credit 372 against 417, second Gaussian 404
  against 374 at d = 100 and 225 against 181 at d = 1000.
- Such pairs only where one step is not enough. German credit and breast cancer as here, second Gaussian of d = 1000
  193 against 169, a quartic log-density 128 against 140, the banana 19 against 31. With a = 1 / 6, which is best for
  small kicks, second Gaussian 218, quartic 115, diamonds and item response as here.

Source: Shahbaba, Lan, Johnson & Neal (2014), Split Hamiltonian Monte Carlo. Casas, Sanz-Serna & Shaw (2022), Split
Hamiltonian Monte Carlo revisited: it needs momenta that are preconditioned like the Gaussian, as here.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from blackjax.mcmc.integrators import IntegratorState
from blackjax.types import Array, ArrayLikeTree
from jax.flatten_util import ravel_pytree

from householder_mcmc.mcmc.logdensity import value_and_grad
from householder_mcmc.preconditioners.maps import as_preconditioner, cast_floats
from householder_mcmc.preconditioners.metric import to_metric

__all__ = ["for_blackjax", "is_known", "rotate", "to_integrator", "whiten"]


def to_integrator(inverse_mass_matrix, center: ArrayLikeTree) -> Callable:
    """A BlackJAX `integrator` that solves N(center, L L^T) exactly, for `blackjax.hmc`, `nuts`, `ghmc`, ...

    Use it with `hm.to_metric` of the same map, whose momenta it takes. A step costs one gradient, and five products
    with L where `hm.hmc` has two, since BlackJAX's momenta are not whitened.

    Parameters
    ----------
    inverse_mass_matrix
        L L^T, in any form that `as_preconditioner` takes; the map must have `solve` and `solve_transpose`.
    center
        A position: the mean of the Gaussian. If it is not finite, steps are those of leapfrog.

    Raises
    ------
    TypeError
        If the map has no inverse.
    ValueError
        At a step, on a center of another d.

    Examples
    --------
    .. code-block:: python

        (state, parameters), _ = hm.warmup(logdensity_fn, hm.two_ended()).run(rng_key, positions)
        kernel = blackjax.nuts(logdensity_fn, **hm.for_blackjax(parameters))
    """
    given: Any = as_preconditioner(inverse_mass_matrix)
    _require_inverse(given)

    def integrator(logdensity_fn, kinetic_energy_fn=None):
        del kinetic_energy_fn
        evaluate = value_and_grad(logdensity_fn)

        def one_step(state: IntegratorState, step_size: Any) -> IntegratorState:
            x, unravel = ravel_pytree(state.position)
            preconditioner: Any = cast_floats(given, x.dtype)
            z, frequency = whiten(preconditioner, state.position, center)
            momentum = preconditioner.apply_transpose(ravel_pytree(state.momentum)[0])
            kick = preconditioner.apply_transpose(ravel_pytree(state.logdensity_grad)[0]) + frequency * z
            move, momentum = rotate(z, jnp.zeros_like(z), momentum + step_size / 2 * kick, step_size, frequency)
            position = unravel(x + preconditioner.apply(move))
            logdensity, logdensity_grad = evaluate(position)
            kick = preconditioner.apply_transpose(ravel_pytree(logdensity_grad)[0]) + frequency * (z + move)
            momentum = preconditioner.solve_transpose(momentum + step_size / 2 * kick)
            return IntegratorState(position, unravel(momentum), logdensity, logdensity_grad)

        return one_step

    return integrator


def for_blackjax(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a warm-up as BlackJAX's kernels take them: step_size, inverse_mass_matrix, integrator.

    The step size is right for the integrator: BlackJAX's own needs shorter steps. Without a center in the parameters
    there is no integrator among the results.
    """
    preconditioner = parameters["inverse_mass_matrix"]
    metric = {"step_size": parameters["step_size"], "inverse_mass_matrix": to_metric(preconditioner)}
    center = parameters.get("center")
    return metric if center is None else metric | {"integrator": to_integrator(preconditioner, center)}


def rotate(
    start: Array | float, move: Array, momentum: Array, time: Array | float, frequency: Array | float = 1.0
) -> tuple[Array, Array]:
    """The whitened positions start + move, and momenta, some time later: (move, momentum), all (d,).

    frequency: 1 of a standard Gaussian; 0 where there is none, and positions move in straight lines. The move is kept
    apart from where it began, so that a start far out does not round it away.
    """
    cosine_less_1, sine = -2 * jnp.sin(frequency * time / 2) ** 2, jnp.sin(frequency * time)
    z, pace = start + move, jnp.where(frequency > 0, sine, time)
    return move + cosine_less_1 * z + pace * momentum, momentum + cosine_less_1 * momentum - sine * z


def is_known(center: ArrayLikeTree) -> Array:
    """Whether there is a Gaussian to solve: whether the center is finite, ()."""
    return jnp.all(jnp.isfinite(ravel_pytree(center)[0]))


def whiten(preconditioner, position: ArrayLikeTree, center: ArrayLikeTree) -> tuple[Array, Array]:
    """z = L^{-1} (position - center), (d,), and the frequency of the Gaussian about the center, 1.

    Both are 0 if the center is not finite: then there is no Gaussian to solve.

    Raises
    ------
    TypeError
        If the map has no `solve`.
    ValueError
        If the center is of another d.
    """
    _require_inverse(preconditioner)
    x, c = ravel_pytree(position)[0], ravel_pytree(center)[0]
    if x.shape != c.shape:
        raise ValueError(f"center must be a position with d = {x.size}, got {c.size} numbers.")
    known = is_known(center)
    z = preconditioner.solve(jnp.where(known, x - c.astype(x.dtype), 0))
    return z, known.astype(x.dtype)


def _require_inverse(preconditioner):
    if not (hasattr(preconditioner, "solve") and hasattr(preconditioner, "solve_transpose")):
        name = type(preconditioner).__name__
        raise TypeError(f"a center needs the inverse map: {name} has no solve and solve_transpose.")
