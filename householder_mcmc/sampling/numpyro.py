"""Models of NumPyro."""

from collections.abc import Callable
from typing import Any

import jax

from householder_mcmc.sampling.model import Model

__all__ = ["from_numpyro"]


def from_numpyro(model: Callable, *args: Any, **kwargs: Any) -> Model:
    """The `Model` of a NumPyro model and its arguments.

    Positions are a dict of the latent variables, unconstrained by NumPyro's transforms. Chains start around the medians
    of the prior. Draws are in the variables of the model, deterministic ones included. Dimensions are named after
    plates, and after `infer={"event_dims": [...]}` of a site, as ArviZ does. `log_likelihood` is of the observed sites,
    and `predict` draws them anew. `numpyro.infer.Predictive(model, result.draws, batch_ndims=2)` takes the draws too.

    Parameters
    ----------
    model
        A function with NumPyro's primitives.
    args, kwargs
        What it is called with: the data.

    Raises
    ------
    ImportError
        Without NumPyro.
    ValueError
        If the model has no latent variable, or a discrete one that is not enumerated.

    Examples
    --------
    .. code-block:: python

        def eight_schools(sigma, y):
            mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
            with numpyro.plate("school", 8):
                theta = numpyro.sample("theta", dist.Normal(mu, tau))
                numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)

        result = hm.sample(hm.from_numpyro(eight_schools, sigma, y))
        result.draws["theta"].shape  # (4, 1000, 8)
    """
    try:
        from numpyro import handlers
        from numpyro.infer import init_to_median
        from numpyro.infer.util import initialize_model
        from numpyro.primitives import Messenger
    except ImportError as error:
        raise ImportError("hm.from_numpyro needs NumPyro: pip install 'householder_mcmc[numpyro]'.") from error

    found = initialize_model(
        jax.random.key(0),
        model,
        init_strategy=init_to_median,
        model_args=args,
        model_kwargs=kwargs,
        validate_grad=False,
    )
    position, trace = found.param_info.z, found.model_trace
    if not position:
        raise ValueError("the model has no latent variable of real numbers.")

    def is_latent(site):
        return site["type"] == "sample" and not site["is_observed"]

    def is_observed(site):
        # A `numpyro.factor` is such a site too, marked as auxiliary, but it has no observation.
        return site["type"] == "sample" and site["is_observed"] and not site["infer"].get("is_auxiliary", False)

    discrete = [name for name, site in trace.items() if is_latent(site) and site["fn"].support.is_discrete]
    constrain = found.postprocess_fn

    def latents(position):
        values = constrain(position)
        return {name: values[name] for name in position}

    def log_likelihood(position):
        replayed = handlers.trace(handlers.seed(handlers.substitute(model, latents(position)), jax.random.key(0)))
        sites = replayed.get_trace(*args, **kwargs)
        return {name: site["fn"].log_prob(site["value"]) for name, site in sites.items() if is_observed(site)}

    class Unobserve(Messenger):
        """Makes observed sites unobserved, so that they are drawn."""

        def process_message(self, msg):
            if msg["type"] == "sample" and msg["is_observed"] and msg["name"] in observed:
                msg.update(is_observed=False, value=None)

    def predict(rng_key, position):
        unobserved = handlers.substitute(Unobserve(model), latents(position))
        sites = handlers.trace(handlers.seed(unobserved, rng_key)).get_trace(*args, **kwargs)
        return {name: sites[name]["value"] for name in observed}

    observed = [name for name, site in trace.items() if is_observed(site)]
    can_predict = observed and not discrete
    return Model(
        logdensity=lambda position: -found.potential_fn(position),
        initial=position,
        constrain=constrain,
        dims=_dims(trace),
        log_likelihood=log_likelihood if can_predict else None,
        predict=predict if can_predict else None,
    )


def _dims(trace):
    """Variable -> names of its dimensions, where plates and `event_dims` name them all."""
    dims = {}
    for name, site in trace.items():
        if site["type"] not in ("sample", "deterministic"):
            continue
        frames = sorted(site.get("cond_indep_stack", []), key=lambda frame: frame.dim)
        names = [frame.name for frame in frames] + list(site.get("infer", {}).get("event_dims", []))
        if names and len(names) == jax.numpy.ndim(site["value"]):
            dims[name] = names
    return dims
