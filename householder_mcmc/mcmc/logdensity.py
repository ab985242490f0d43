"""The gradient of a log-density, with errors that say what a log-density must be."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

__all__ = ["value_and_grad"]


def value_and_grad(logdensity_fn: Callable) -> Callable:
    """`jax.value_and_grad` of a log-density: position -> (log-density, gradient). The errors come when that is called.

    Raises
    ------
    TypeError
        If the log-density is not a floating point number.
    ValueError
        If it is an array, or has no reverse-mode gradient.
    """

    def number(position):
        value = logdensity_fn(position)
        is_array = jax.tree.structure(value) == jax.tree.structure(0.0)
        if not is_array or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            got = jnp.result_type(value) if is_array else f"a {type(value).__name__}"
            raise TypeError(f"the log-density must be a floating point number, got {got}.")
        if jnp.shape(value) != ():
            raise ValueError(
                f"the log-density must be one number, of shape (), got shape {jnp.shape(value)}: sum over its terms."
            )
        return value

    def evaluate(position):
        try:
            return jax.value_and_grad(number)(position)
        except (NotImplementedError, TypeError, ValueError) as error:
            jax.eval_shape(number, position)  # raises the error if the log-density has it without the gradient too
            raise ValueError(
                "the log-density has no reverse-mode gradient, as with a lax.while_loop or a callback: write it with "
                "lax.scan or give it a jax.custom_vjp."
            ) from error

    return evaluate
