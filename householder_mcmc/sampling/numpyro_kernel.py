"""Our sampler as a kernel of NumPyro's `MCMC`."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.types import Array

from householder_mcmc.adaptation.warmup import warmup
from householder_mcmc.learners.scheme import Scheme
from householder_mcmc.learners.two_ended import two_ended
from householder_mcmc.mcmc.chains import step_chains
from householder_mcmc.sampling.numpyro import from_numpyro
from householder_mcmc.sampling.nuts import ALL_SAMPLERS
from householder_mcmc.sampling.starts import find_starts

__all__ = ["numpyro_kernel"]


class NumPyroState(NamedTuple):
    """State of all chains, each leaf but `parameters`, `count` and `rng_key` with a chain axis.

    z: unconstrained latent variables.
    potential_energy, accept_prob, diverging, num_steps (num_chains,): as in NumPyro's HMC.
    chains: the sampler's own states.
    parameters: of the frozen kernel, as `hm.warmup` returns them.
    count (): steps made, those of NumPyro's warm-up included.
    """

    z: Any
    potential_energy: Array
    accept_prob: Array
    diverging: Array
    num_steps: Array
    chains: Any
    parameters: dict[str, Any]
    count: Array
    rng_key: Array


def numpyro_kernel(model: Callable, scheme: Scheme | None = None, target_acceptance_rate: float | None = None) -> Any:
    """HMC on a learnt map as a `numpyro.infer.mcmc.MCMCKernel`, for `numpyro.infer.MCMC`.

    Chains are warmed up together by `hm.warmup`, for NumPyro's `num_warmup` steps, when NumPyro starts the kernel.
    NumPyro then steps through its own warm-up, in which the kernel does nothing.

    Parameters
    ----------
    model
        A function with NumPyro's primitives.
    scheme
        What is learnt, by default `hm.two_ended`.
    target_acceptance_rate
        Acceptance rate that the step size is tuned to, see `hm.warmup`.

    Returns
    -------
    A `numpyro.infer.mcmc.MCMCKernel` of all chains.

    Raises
    ------
    ImportError
        Without NumPyro.
    ValueError
        When it runs, without `num_chains` of at least 2 and `chain_method="vectorized"`.

    Examples
    --------
    .. code-block:: python

        kernel = hm.numpyro_kernel(model)
        mcmc = MCMC(kernel, num_warmup=500, num_samples=1000, num_chains=4, chain_method="vectorized")
        mcmc.run(jax.random.key(0), *data, extra_fields=("num_steps",))
        mcmc.print_summary()
    """
    try:
        from numpyro.infer.mcmc import MCMCKernel
    except ImportError as error:
        raise ImportError("hm.numpyro_kernel needs NumPyro: pip install 'householder_mcmc[numpyro]'.") from error

    sampler = ALL_SAMPLERS["hmc"]

    class Kernel(MCMCKernel):
        sample_field: Any = "z"
        default_fields: Any = ("z", "diverging")
        is_ensemble_kernel: Any = True  # one state of all chains

        def init(self, rng_key, num_warmup, init_params, model_args, model_kwargs):
            if rng_key.shape[: 1 if jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key) else -1] == ():
                raise ValueError("the kernel needs num_chains of at least 2 and chain_method='vectorized'.")
            num_chains = len(rng_key)
            key_starts, key_warmup, key = jax.random.split(rng_key[0], 3)
            self.model, self.num_warmup = from_numpyro(model, *model_args, **model_kwargs), num_warmup
            starts = find_starts(self.model, None, None, key_starts, num_chains) if init_params is None else init_params
            run = warmup(
                self.model.logdensity, scheme or two_ended(), num_chains, target_acceptance_rate=target_acceptance_rate
            ).run
            (chains, parameters), _ = run(key_warmup, starts, num_warmup)
            self._sample_fn = self.sample  # if a kernel has none, NumPyro starts it again for `run` after `warmup`
            zeros = jnp.zeros(num_chains, chains.logdensity.dtype)
            return NumPyroState(
                z=chains.position,
                potential_energy=-chains.logdensity,
                accept_prob=zeros,
                diverging=zeros > 0,
                num_steps=zeros.astype(jnp.int32),
                chains=chains,
                parameters=parameters,
                count=jnp.zeros((), jnp.int32),
                rng_key=key,
            )

        def sample(self, state, model_args, model_kwargs):
            state = state._replace(count=state.count + 1)
            return jax.lax.cond(state.count > self.num_warmup, self._step, lambda state: state, state)

        def _step(self, state):
            rng_key, key = jax.random.split(state.rng_key)
            kernel = partial(sampler.kernel, **state.parameters)
            chains, info = step_chains(kernel, key, state.chains, self.model.logdensity)
            return state._replace(
                z=chains.position,
                potential_energy=-chains.logdensity,
                accept_prob=info.acceptance_rate,
                diverging=info.is_divergent,
                num_steps=info.num_integration_steps,
                chains=chains,
                rng_key=rng_key,
            )

        def postprocess_fn(self, model_args, model_kwargs):
            return self.model.constrain

        def get_diagnostics_str(self, state):
            step_size, rate = state.parameters["step_size"], state.accept_prob.mean()
            return f"step size {step_size:.2e}, acc. prob={rate:.2f}"

    return Kernel()
