"""What a traced program contains, nested programs included."""

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for leaf in jax.tree.leaves(equation.params, is_leaf=is_program):
            if is_program(leaf):
                yield from equations(getattr(leaf, "jaxpr", leaf))


def is_program(parameter):
    return isinstance(parameter, Jaxpr | ClosedJaxpr)


def largest_array(jaxpr):
    """Size of the largest array that a program computes."""
    return max(variable.aval.size for equation in equations(jaxpr) for variable in equation.outvars)


def assert_full_precision(jaxpr):
    """The program has matrix products, and each asks for the highest precision."""
    precisions = [
        equation.params["precision"] for equation in equations(jaxpr) if equation.primitive.name == "dot_general"
    ]
    highest = jax.lax.Precision.HIGHEST
    assert precisions and all(precision == (highest, highest) for precision in precisions)
