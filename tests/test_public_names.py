"""What users import, and what `help` shows them of it."""

import importlib
import inspect
import pydoc

import pytest

import householder_mcmc as hm


def test_dir_shows_the_public_names_alone():
    assert set(dir(hm)) == {*hm.__all__, "__version__"}


@pytest.mark.parametrize("name", hm.__all__)
def test_every_public_name_has_a_docstring(name):
    value = getattr(hm, name)
    if not name.isupper():  # presets of `Gains`
        assert inspect.getdoc(value)


@pytest.mark.parametrize(
    "thing, first",
    [
        (hm.hmc, "hmc(logdensity_fn: "),
        (hm.mala, "mala(logdensity_fn: "),
        (hm.adaptive_mala, "adaptive_mala(logdensity_fn: "),
        (hm.warmup, "warmup(logdensity_fn: "),
        (hm.two_ended, "two_ended(rank: "),
        (hm.sample, "sample(model: "),
        (hm.constrained, "constrained(logdensity: "),
        (hm.Result.extend, "extend(self, num_draws: "),
        (hm.warmup(lambda x: x, hm.none()).run, "run(rng_key: "),
    ],
    ids=["hmc", "mala", "adaptive_mala", "warmup", "two_ended", "sample", "constrained", "extend", "run"],
)
def test_help_shows_signature_and_docstring(thing, first):
    text = pydoc.plain(pydoc.render_doc(thing))
    assert first in text
    assert inspect.getdoc(thing).splitlines()[0] in text


@pytest.mark.parametrize(
    "module, name",
    [
        ("mcmc.mala", "MALAInfo"),
        ("mcmc.hmc", "HMCInfo"),
        ("adaptation.warmup", "WarmupInfo"),
        ("learners.two_ended", "TwoEndedState"),
        ("preconditioners.reflections", "compact"),
        ("sampling.sample", "Until"),
        ("sampling.numpyro", "from_numpyro"),
    ],
)
def test_a_module_is_a_module_whenever_it_is_imported(module, name):
    """`import householder_mcmc.mcmc.mala as m` is the file, `hm.mala` the sampler."""
    assert hasattr(importlib.import_module(f"householder_mcmc.{module}"), name)
    assert isinstance(hm.mala, type(hm.hmc))
