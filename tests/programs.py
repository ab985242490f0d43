"""What a traced program contains, nested programs included."""

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr


def equations(jaxpr, in_branches=True):
    """All equations; if `in_branches` is false, without those that run on a condition or not on a CPU."""
    for equation in jaxpr.eqns:
        yield equation
        params = equation.params
        if not in_branches and equation.primitive.name in ("cond", "while"):
            by_platform = params.get("branches_platforms")
            params = params["branches"][by_platform.index(("cpu",))] if by_platform else ()
        for leaf in jax.tree.leaves(params, is_leaf=is_program):
            if is_program(leaf):
                yield from equations(getattr(leaf, "jaxpr", leaf), in_branches)


def is_program(parameter):
    return isinstance(parameter, Jaxpr | ClosedJaxpr)


def largest_array(jaxpr):
    """Size of the largest array that a program computes."""
    return max(variable.aval.size for equation in equations(jaxpr) for variable in equation.outvars)


def num_products_with(shape, jaxpr):
    """How many matrix products that always run have an operand of this shape."""
    return sum(
        equation.primitive.name == "dot_general" and shape in [variable.aval.shape for variable in equation.invars]
        for equation in equations(jaxpr, in_branches=False)
    )


def assert_full_precision(jaxpr):
    """The program has matrix products, and each asks for the highest precision."""
    precisions = [
        equation.params["precision"] for equation in equations(jaxpr) if equation.primitive.name == "dot_general"
    ]
    highest = jax.lax.Precision.HIGHEST
    assert precisions and all(precision == (highest, highest) for precision in precisions)
