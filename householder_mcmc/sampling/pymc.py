"""Models of PyMC."""

import contextlib
import os
import warnings
from typing import Any

import jax
import jax.numpy as jnp

from householder_mcmc.sampling.model import Model

__all__ = ["from_pymc"]


def from_pymc(model: Any = None) -> Model:
    """The `Model` of a PyMC model, whose graph is compiled by JAX.

    Positions are a dict of the free variables by their names, unconstrained by PyMC's transforms. Chains start around
    PyMC's initial point. Draws are in the variables of the model, deterministic ones included, with its coords and
    dims. For predictions: `pymc.sample_posterior_predictive(result.to_arviz(), model)`.

    Parameters
    ----------
    model
        A `pymc.Model`, by default that of the context.

    Raises
    ------
    ImportError
        Without PyMC.
    ValueError
        If the model has no free variable, or a discrete one.

    Examples
    --------
    .. code-block:: python

        with pymc.Model(coords={"school": names}) as model:
            mu, tau = pymc.Normal("mu", 0, 5), pymc.HalfCauchy("tau", 5)
            theta = pymc.Normal("theta", mu, tau, dims="school")
            pymc.Normal("obs", theta, sigma, observed=y)

        result = hm.sample(hm.from_pymc(model))
    """
    with _settings_kept():
        try:
            from pymc import modelcontext
            from pymc.sampling.jax import get_jaxified_graph
            from pymc.util import get_default_varnames
        except ImportError as error:
            raise ImportError("hm.from_pymc needs PyMC: pip install 'householder_mcmc[pymc]'.") from error
    model = modelcontext(model)
    discrete = [variable.name for variable in model.free_RVs if variable.dtype.startswith(("int", "uint", "bool"))]
    if discrete:
        raise ValueError(f"the model has discrete variables {discrete}: sum them out first.")
    if not model.free_RVs:
        raise ValueError("the model has no free variable.")

    names = {model.rvs_to_values[variable].name: variable.name for variable in model.free_RVs}
    order = [names[value.name] for value in model.value_vars]
    point = model.initial_point()
    initial = {
        names[name]: jnp.asarray(value, jnp.result_type(float)) for name, value in point.items() if name in names
    }

    def compiled(outputs):
        function = get_jaxified_graph(inputs=model.value_vars, outputs=outputs)

        def evaluate(position):
            with warnings.catch_warnings():  # in float32 PyMC asks for float64 at every constant
                warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)
                return function(*(position[name] for name in order))

        return evaluate

    logdensity = compiled([model.logp()])
    read = get_default_varnames(model.unobserved_value_vars, include_transformed=False)
    variables = compiled(read)
    terms = compiled(model.logp(model.observed_RVs, sum=False)) if model.observed_RVs else None

    def log_likelihood(position):
        assert terms is not None
        return {variable.name: term for variable, term in zip(model.observed_RVs, terms(position), strict=True)}

    return Model(
        logdensity=lambda position: logdensity(position)[0],
        initial=initial,
        constrain=lambda position: {v.name: value for v, value in zip(read, variables(position), strict=True)},
        coords={name: list(labels) for name, labels in model.coords.items() if labels is not None},
        dims={name: list(dims) for name, dims in model.named_vars_to_dims.items()},
        log_likelihood=None if terms is None else log_likelihood,
    )


@contextlib.contextmanager
def _settings_kept():
    """PyMC's module for JAX turns on x64 and a hundred devices for the whole process. Both stay as they were."""
    had_x64, flags = jax.config.read("jax_enable_x64"), os.environ.get("XLA_FLAGS")
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", had_x64)
        if flags is None:
            os.environ.pop("XLA_FLAGS", None)
        else:
            os.environ["XLA_FLAGS"] = flags
