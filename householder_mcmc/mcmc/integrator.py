"""Trajectories that solve a Gaussian exactly, so that only the rest of the log-density costs steps.

With x = center + L z and momenta v ~ N(0, I) the energy is -log pi(x) + |v|^2 / 2. Let N(center, L L^T) be near the
target, and write -log pi(x) = |z|^2 / 2 + U(z). The first part and the kinetic energy rotate (z, v) by one radian in
unit time, in closed form. U changes v alone, at the rate -grad U = L^T grad log pi(x) + z: these are the kicks. One
step of size h is a kick over h / 2, a rotation by h, and a kick over h / 2. It is reversible, keeps volume and costs
one gradient. For small h it is the leapfrog step.

If the target is that Gaussian, the kicks are zero and a step of any size is exact. For another target a step is stable
up to about the size of a stable leapfrog step, and its error is of the same order.

Other splittings were measured with HMC on frozen maps, at an acceptance of 0.8. Each number is an ESS per 1000
gradients, the smallest of all coordinates and their squares, in the median of two or three seeds. Only the step above
has draws of one gradient where the Gaussian fits. It loses nothing to leapfrog on the banana (32) and the quartic
(135). In "a against b" below, a is the other splitting and b the step above.

- Rotation by h / 2, kick, rotation by h / 2. It needs the log-density once more where the trajectory ends, which is
  counted as half a gradient. Diamonds 442 against 604, German credit 376 against 417, second Gaussian 348 against 374
  at d = 100 and 192 against 181 at d = 1000, a banana in ten dimensions about 22 against 31.
- Two rotations by h between kicks over 2 a h, (2 - 4 a) h and 2 a h, a = 0.193 (McLachlan 1995). A draw then takes
  two gradients or more. First Gaussian of d = 100 412 against 779, German credit 372 against 417, second Gaussian 404
  against 374 at d = 100 and 225 against 181 at d = 1000.
- Such pairs of rotations only where one step is not enough. German credit and breast cancer as with the step above,
  second Gaussian of d = 1000 193 against 169, a quartic log-density 128 against 140, the banana 19 against 31. With
  a = 1 / 6, which is best for small kicks: second Gaussian 218, quartic 115, diamonds and item response as above.

Source: Shahbaba, Lan, Johnson & Neal (2014), Split Hamiltonian Monte Carlo. Casas, Sanz-Serna & Shaw (2022), Split
Hamiltonian Monte Carlo revisited: the momenta must be preconditioned like the Gaussian, as here.
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

    Use it with `hm.to_metric` of the same map, because it expects momenta of that metric. A step costs one gradient and
    six products with L, L^T or their inverses. A step of `hm.hmc` has two, since its momenta are whitened.

    Parameters
    ----------
    inverse_mass_matrix
        L L^T, in any form that `as_preconditioner` takes; the map must have `solve` and `solve_transpose`.
    center
        A position: the mean of the Gaussian. If it is not finite, steps are those of leapfrog.

    Raises
    ------
    TypeError
        If the map has no inverse; and as `as_preconditioner`.
    ValueError
        At a step, on a center of another d; and as `as_preconditioner`.

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

    The step size was tuned for this integrator. BlackJAX's own, leapfrog, needs shorter steps.

    Parameters
    ----------
    parameters
        The dict that `hm.warmup` returns: step_size (), inverse_mass_matrix, a preconditioner, and center if there is
        one.

    Returns
    -------
    A dict: step_size, inverse_mass_matrix as a BlackJAX `Metric`, and integrator if the parameters have a center.

    Raises
    ------
    TypeError
        If the map has no inverse.
    """
    preconditioner = parameters["inverse_mass_matrix"]
    metric = {"step_size": parameters["step_size"], "inverse_mass_matrix": to_metric(preconditioner)}
    center = parameters.get("center")
    return metric if center is None else metric | {"integrator": to_integrator(preconditioner, center)}


def rotate(
    start: Array | float, move: Array, momentum: Array, time: Array | float, frequency: Array | float = 1.0
) -> tuple[Array, Array]:
    """The whitened position start + move and the momentum after `time`: the new (move, momentum), both (d,).

    frequency: 1 for a standard Gaussian, 0 for none, so that positions move in straight lines. The move is kept apart
    from the start, because in the sum a start far out would round it away.
    """
    cosine_less_1, sine = -2 * jnp.sin(frequency * time / 2) ** 2, jnp.sin(frequency * time)
    z, pace = start + move, jnp.where(frequency > 0, sine, time)
    return move + cosine_less_1 * z + pace * momentum, momentum + cosine_less_1 * momentum - sine * z


def is_known(center: ArrayLikeTree) -> Array:
    """Whether there is a Gaussian to solve: whether the center is finite, ()."""
    return jnp.all(jnp.isfinite(ravel_pytree(center)[0]))


def whiten(preconditioner, position: ArrayLikeTree, center: ArrayLikeTree) -> tuple[Array, Array]:
    """z = L^{-1} (position - center), (d,), and the frequency of the Gaussian about the center: 1, of shape ().

    Both are 0 if the center is not finite: then there is no Gaussian to solve.

    Raises
    ------
    TypeError
        If the map has no `solve` or no `solve_transpose`.
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
