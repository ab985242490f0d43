"""What is sampled: a log-density of unconstrained positions, where to start, and what the positions mean."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["Model", "as_model", "constrained"]


class Model(NamedTuple):
    """A log-density and what belongs to it. Only the log-density is needed.

    logdensity: position (any pytree of floating point arrays, unconstrained) -> log-density up to a constant.
    initial: one position, around which chains start, or a function of a random key that returns a start.
    constrain: position -> the variables that a user reads, a pytree. A dict names them. Without it the user reads the
    position.
    coords, dims: as in ArviZ. Dimension -> labels, and variable -> names of its dimensions.
    log_likelihood: position -> {observed variable: log-density of each observation}.
    predict: (rng_key, position) -> {observed variable: a new value}.

    `hm.from_numpyro`, `hm.from_pymc` and `hm.constrained` make one.

    Examples
    --------
    .. code-block:: python

        model = hm.Model(
            lambda p: -0.5 * p["log_sigma"] ** 2,
            initial={"log_sigma": 0.0},
            constrain=lambda p: {"sigma": jnp.exp(p["log_sigma"])},
        )
        result = hm.sample(model)
    """

    logdensity: Callable
    initial: Any = None
    constrain: Callable | None = None
    coords: Mapping[str, Any] | None = None
    dims: Mapping[str, Any] | None = None
    log_likelihood: Callable | None = None
    predict: Callable | None = None

    def variables(self, position: Any) -> Any:
        """What a user reads of a position."""
        return position if self.constrain is None else self.constrain(position)


def as_model(model: Any) -> Model:
    """The model, or a `Model` of a log-density alone. Raises TypeError on anything else."""
    if isinstance(model, Model):
        if not callable(model.logdensity):
            raise TypeError(f"logdensity of a Model must be a function of a position, got {model.logdensity!r}.")
        return model
    if callable(model):
        return Model(model)
    raise TypeError(f"model must be a log-density or an hm.Model, got {type(model).__name__}.")


def constrained(logdensity: Callable, constraints: Any, initial: Any = None, *, coords=None, dims=None) -> Model:
    r"""The model of a log-density whose variables live on restricted sets, such as a positive scale.

    Each variable with a constraint is written x = t(u) with u unconstrained, by NumPyro's transform t. The log-density
    of u is log pi(t(u)) + log |det dt/du|. Without that second term the chains would sample another posterior.

    Parameters
    ----------
    logdensity
        Position in the original variables -> log-density up to a constant, with respect to them.
    constraints
        Variable -> its constraint: an object of `numpyro.distributions.constraints`, such as `positive` or
        `interval(0, 3)`, or the name of one without arguments, such as "positive", "unit_interval", "simplex" or
        "ordered_vector". Variables that are not named are unconstrained. For a position that is a single array:
        its constraint.
    initial
        One position in the original variables, around which chains start, or a function of a random key. (What
        `hm.sample` is given as `initial` is unconstrained.)
    coords, dims
        As for `Model`.

    Returns
    -------
    Model, whose draws are in the original variables.

    Raises
    ------
    ImportError
        Without NumPyro.
    ValueError
        On an unknown or a discrete constraint, on a constraint of a variable that the position does not have, and if
        `initial` violates a constraint.

    Examples
    --------
    .. code-block:: python

        def logdensity(position):  # of the scale itself
            return -0.5 * position["sigma"] ** 2

        model = hm.constrained(logdensity, {"sigma": "positive"}, initial={"sigma": 1.0})
        hm.sample(model).draws["sigma"].mean()  # 0.798
    """
    is_single = not isinstance(constraints, Mapping)
    found = {name: _find(constraint) for name, constraint in ({"": constraints} if is_single else constraints).items()}
    transforms = {name: _bijection(constraint) for name, constraint in found.items()}

    def split(position):
        """The position as a dict. Raises ValueError if it lacks a variable that has a constraint."""
        variables = {"": position} if is_single else position
        if not isinstance(variables, Mapping) or not transforms.keys() <= variables.keys():
            has = sorted(map(str, variables)) if isinstance(variables, Mapping) else type(position).__name__
            raise ValueError(f"constraints are of {sorted(transforms)}, but the position has {has}.")
        return variables

    def join(position, changed):
        return changed[""] if is_single else {**position, **changed}

    def constrain(position):
        values = split(position)
        return join(position, {name: transform(values[name]) for name, transform in transforms.items()})

    def unconstrained_logdensity(position):
        values, change = split(position), 0.0
        for name, transform in transforms.items():
            change += jnp.sum(transform.log_abs_det_jacobian(values[name], transform(values[name])))
        return logdensity(constrain(position)) + change

    def unconstrain(position):
        values = split(jax.tree.map(jnp.asarray, position))
        return join(values, {name: transform.inv(values[name]) for name, transform in transforms.items()})

    def checked(position):
        for name, constraint in found.items():
            if not jnp.all(constraint(jnp.asarray(split(position)[name]))):
                raise ValueError(f"initial{f'[{name!r}]' if name else ''} violates its constraint {constraint}.")
        return unconstrain(position)

    if callable(initial):
        start = lambda rng_key: unconstrain(initial(rng_key))  # noqa: E731
    else:
        start = None if initial is None else checked(initial)
    return Model(unconstrained_logdensity, start, constrain, coords, dims)


def _find(constraint):
    """The constraint of a name, or the one given."""
    try:
        from numpyro.distributions import constraints
    except ImportError as error:
        raise ImportError("hm.constrained needs NumPyro: pip install 'householder_mcmc[numpyro]'.") from error
    named = getattr(constraints, constraint, None) if isinstance(constraint, str) else constraint
    if not isinstance(named, constraints.Constraint):
        raise ValueError(f"{constraint!r} is no constraint of numpyro.distributions.constraints without arguments.")
    return named


def _bijection(constraint):
    """NumPyro's transform from unconstrained numbers. Raises ValueError if the constraint has none."""
    from numpyro.distributions import biject_to

    try:
        return biject_to(constraint)
    except NotImplementedError as error:
        raise ValueError(f"variables with the constraint {constraint} cannot be made unconstrained.") from error
