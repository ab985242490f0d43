"""Equal arguments share one compiled program, different ones do not, and what is kept has an end."""

import dataclasses
import functools
import gc
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import householder_mcmc as hm
from householder_mcmc import sharing
from householder_mcmc.adaptation.samplers import SAMPLERS
from householder_mcmc.adaptation.warmup import _adapt
from householder_mcmc.sharing import _MOST_PROGRAMS, brief_program, program, shared


@pytest.fixture
def compilations():
    """How many programs XLA compiles while a function runs."""
    compiled = []

    def listen(event, duration, **kwargs):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    def count(run):
        before = len(compiled)
        jax.block_until_ready(run())
        return len(compiled) - before

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield count
    jax.monitoring.unregister_event_duration_listener(listen)


FACTORIES = {
    "power_decay": [
        lambda: hm.power_decay(0.7, 1.0, 0.0),
        lambda: hm.power_decay(0.7),
        lambda: hm.power_decay(exponent=0.7, offset=0.0),
    ],
    "power_decay, offset": [lambda: hm.power_decay(0.7, offset=1.0), lambda: hm.power_decay(0.7, 1.0, 1.0)],
    "power_decay, coefficient": [lambda: hm.power_decay(0.7, 2.0), lambda: hm.power_decay(0.7, coefficient=2.0)],
    "power_decay, exponent": [lambda: hm.power_decay(0.6)],
    "growing_memory": [lambda: hm.growing_memory(3.0), lambda: hm.growing_memory(forgetting=3.0)],
    "growing_memory, 4": [lambda: hm.growing_memory(4.0)],
    "diagonal": [hm.diagonal, lambda: hm.diagonal(hm.DEFAULT_GAINS), lambda: hm.diagonal(gains=hm.DEFAULT_GAINS)],
    "diagonal, own gains": [
        lambda: hm.diagonal(hm.Gains(hm.power_decay(0.7), hm.power_decay(0.8))),
        lambda: hm.diagonal(gains=hm.Gains(oja=hm.power_decay(0.8), moments=hm.power_decay(0.7, 1.0))),
    ],
    "dense": [hm.dense, lambda: hm.dense(gains=hm.DEFAULT_GAINS)],
    "none": [hm.none],
    "eigen": [
        lambda: hm.eigen(3),
        lambda: hm.eigen(np.int64(3), tail="free"),
        lambda: hm.eigen(rank=3, gains=hm.DEFAULT_GAINS, refresh_every=10),
        lambda: hm.eigen(3, "free", hm.DEFAULT_GAINS, 256, None),
    ],
    "eigen, rank": [lambda: hm.eigen(4)],
    "eigen, gains": [lambda: hm.eigen(3, gains=hm.LATEST_GAINS), lambda: hm.eigen(3, "free", hm.LATEST_GAINS, 256, 1)],
    "eigen, unit": [lambda: hm.eigen(3, "unit"), lambda: hm.eigen_identity(3), lambda: hm.eigen_identity(rank=3)],
    "eigen, every": [lambda: hm.eigen(3, orthonormalize_every=255)],
    "two_ended": [hm.two_ended, lambda: hm.two_ended(None), lambda: hm.two_ended(block_size=10, negligible=1.2)],
    "two_ended, rank": [lambda: hm.two_ended(32), lambda: hm.two_ended(rank=32, forgetting=3.0)],
    "two_ended, block_size": [lambda: hm.two_ended(block_size=11)],
    "two_ended, negligible": [lambda: hm.two_ended(negligible=1.3)],
}


def test_equal_arguments_make_one_object_and_others_another():
    """Equal arguments may be given by position, by name or by default."""
    made = {name: [make() for make in makers for _ in range(2)] for name, makers in FACTORIES.items()}
    for objects in made.values():
        assert all(other is objects[0] for other in objects)
    assert len({id(objects[0]) for objects in made.values()}) == len(FACTORIES)
    assert len({hash(objects[0]) for objects in made.values()}) == len(FACTORIES)


def test_the_learnt_of_equal_schemes_is_that_of_their_arguments():
    """A scheme with other arguments learns by its own, and not as the first that was made."""
    assert hm.power_decay(0.5)(3) == 0.5 and hm.power_decay(0.5, 2.0)(3) == 1.0
    positions = jnp.zeros((2, 5))
    ranks = [len(hm.eigen(rank, "unit").init(positions).basis) for rank in (1, 2, 1, 3)]
    assert ranks == [1, 2, 1, 3]


def test_arguments_without_a_hash_make_a_new_object_each_time():
    made = []

    @shared
    def factory(scale, offset=0.0):
        made.append(scale)
        return lambda x: scale * x + offset

    scale = np.ones(2)
    first, second = factory(scale), factory(scale)
    assert first is not second and len(made) == 2
    np.testing.assert_array_equal(first(3.0), [3, 3])
    assert factory(1) is factory(1) and factory.__name__ == "factory"
    with pytest.raises(TypeError, match="missing a required argument: 'scale'"):
        factory(scales=1)


def positions(seed=0):
    return jax.random.normal(jax.random.key(seed), (2, 3))


def gaussian(x):
    return -jnp.sum(x**2) / 2


def warm_up(logdensity, num_steps=10, scheme=None, **options):
    scheme = hm.diagonal() if scheme is None else scheme
    return hm.warmup(logdensity, scheme, 2, **options).run(jax.random.key(0), positions(), num_steps)


def test_a_warmup_made_again_compiles_nothing(compilations):
    warm_up(gaussian)
    assert compilations(lambda: warm_up(gaussian)) == 0
    assert compilations(lambda: warm_up(gaussian, scheme=hm.diagonal(hm.DEFAULT_GAINS), sampler="hmc")) == 0
    assert compilations(lambda: warm_up(gaussian, target_acceptance_rate=0.8)) == 0
    assert compilations(lambda: warm_up(gaussian, num_steps=11)) > 0


def test_adaptive_mala_made_again_compiles_nothing(compilations):
    def run(**options):
        sampler = hm.adaptive_mala(gaussian, hm.diagonal(), num_chains=2, **options)
        return sampler.step(jax.random.key(0), sampler.init(positions()))

    run()
    assert compilations(run) == 0
    assert compilations(lambda: run(target_acceptance_rate=0.574)) == 0
    assert compilations(lambda: run(target_acceptance_rate=0.6)) > 0


def test_no_argument_of_a_warmup_is_left_out():
    """Two warm-ups that differ in one argument have different programs."""

    def keep(state, info):
        return info.step_size

    usual = (gaussian, hm.diagonal(), SAMPLERS["hmc"], 0.8, None, 10)
    others = (lambda x: gaussian(x), hm.none(), SAMPLERS["mala"], 0.7, keep, 11)
    found = _adapt(*usual)
    assert _adapt(*usual) is found
    for place, other in enumerate(others):
        changed = (*usual[:place], other, *usual[place + 1 :])
        assert _adapt(*changed) is not found and _adapt(*changed) is _adapt(*changed)
    assert _adapt(*usual) is found


def value_at(logdensity):
    """The log-density at the start as what is compiled for it says, for one chain at 0."""
    sampler = hm.adaptive_mala(logdensity, hm.none(), num_chains=1)
    return float(sampler.init(jnp.zeros((1, 2))).chains.logdensity[0])


SCALE = 1.0
SETTINGS = types.SimpleNamespace(scale=1.0)
MODULE = types.ModuleType("module")
MODULE.scale = 1.0
MODULE.inner = types.ModuleType("inner")
MODULE.inner.scale = 1.0


def reads_a_global(x):
    return -jnp.sum(x**2) - SCALE


def reads_an_object(x):
    return -jnp.sum(x**2) - SETTINGS.scale


def reads_a_module(x):
    return -jnp.sum(x**2) - MODULE.scale


def reads_a_module_in_a_module(x):
    return -jnp.sum(x**2) - MODULE.inner.scale


def calls_one_that_reads_a_global(x):
    return jax.vmap(lambda y: reads_a_global(y[None]))(x)[0]


@pytest.mark.parametrize("function", [reads_a_global, calls_one_that_reads_a_global])
def test_a_changed_global_is_seen(function, monkeypatch):
    assert value_at(function) == -1
    monkeypatch.setitem(globals(), "SCALE", 7.0)
    assert value_at(function) == -7
    monkeypatch.setitem(globals(), "SCALE", 1.0)
    assert value_at(function) == -1


@pytest.mark.parametrize("function, thing", [(reads_an_object, SETTINGS), (reads_a_module, MODULE)])
def test_a_changed_attribute_of_a_global_is_seen(function, thing, monkeypatch):
    assert value_at(function) == -1
    monkeypatch.setattr(thing, "scale", 7.0)
    assert value_at(function) == -7


def in_a_closure(data):
    def logdensity(x):
        return -jnp.sum(x**2) - jnp.sum(data)

    return logdensity


def test_a_closure_over_other_data_is_another_function():
    one, other = jnp.array([1.0]), jnp.array([7.0])
    assert value_at(in_a_closure(one)) == -1 and value_at(in_a_closure(other)) == -7
    # functions of one code are not the same function, whatever their closures hold
    assert value_at(in_a_closure(one)) == -1


def test_a_changed_variable_of_a_closure_is_seen():
    data = 1.0

    def logdensity(x):
        return -jnp.sum(x**2) - data

    assert value_at(logdensity) == -1
    data = 7.0
    assert value_at(logdensity) == -7


def test_a_changed_container_in_a_closure_is_seen():
    """Data in a dict or a list, as models keep them."""
    data = {"y": [jnp.array(1.0), jnp.array(2.0)]}

    def logdensity(x):
        return -jnp.sum(x**2) - sum(data["y"])

    assert value_at(logdensity) == -3
    data["y"][1] = jnp.array(7.0)
    assert value_at(logdensity) == -8
    data["y"] = [jnp.array(1.0)]
    assert value_at(logdensity) == -1


class Model:
    """A model as an object, with its log-density as a method and as a call."""

    def __init__(self, data):
        self.data = data

    def __call__(self, x):
        return -jnp.sum(x**2) - self.data

    def logdensity(self, x):
        return self(x)

    @property
    def as_lambda(self):
        return lambda x: self(x)


@pytest.mark.parametrize(
    "access",
    [lambda model: model, lambda model: model.logdensity, lambda model: functools.partial(Model.__call__, model)],
)
def test_a_changed_attribute_of_an_object_is_seen(access):
    model = Model(1.0)
    function = access(model)
    assert value_at(function) == -1
    model.data = 7.0
    assert value_at(function) == -7
    assert value_at(access(Model(3.0))) == -3


def test_a_bound_method_is_the_same_at_each_access(compilations):
    model, other = Model(1.0), Model(2.0)
    assert model.logdensity is not model.logdensity
    value_at(model.logdensity)
    assert compilations(lambda: value_at(model.logdensity)) == 0
    assert compilations(lambda: value_at(other.logdensity)) > 0
    assert compilations(lambda: value_at(model.logdensity)) == 0
    model.data = 3.0
    assert compilations(lambda: value_at(model.logdensity)) > 0


def test_changed_defaults_and_keyword_defaults_are_seen():
    def logdensity(x, data=1.0, *, more=0.0):
        return -jnp.sum(x**2) - data - more

    assert value_at(logdensity) == -1
    logdensity.__defaults__ = (7.0,)
    assert value_at(logdensity) == -7
    logdensity.__kwdefaults__ = {"more": 1.0}
    assert value_at(logdensity) == -8


class Switches:
    """A model with settings that share values: it matters which attribute has which."""

    scale = 1.0  # of the class

    def __init__(self):
        self.first, self.second, self.third = True, False, False

    def __call__(self, x):
        return -jnp.sum(x**2) - self.scale - 10 * self.first - 100 * self.second - 1000 * self.third

    def through_a_helper(self, x):
        return self.helper(x)

    def helper(self, x):
        return -jnp.sum(x**2) - SCALE


@dataclasses.dataclass(slots=True)
class Slots:
    scale: float = 1.0

    def __call__(self, x):
        return -jnp.sum(x**2) - self.scale


def reads_a_class(x):
    return -jnp.sum(x**2) - Switches.scale


def is_seen(function, change):
    """Whether what is compiled after a change says what the function itself does."""
    before = value_at(function)
    assert before == function(jnp.zeros(2))
    change()
    expected = function(jnp.zeros(2))
    assert expected != before
    return value_at(function) == expected


def test_a_setting_that_takes_the_value_of_another_is_seen():
    switches = Switches()
    assert is_seen(switches, lambda: setattr(switches, "second", True))


def test_an_item_that_takes_the_value_of_another_is_seen():
    items = [1, 2, 2]
    assert is_seen(lambda x: -jnp.sum(x**2) - items[0] - 10 * items[1] - 100 * items[2], lambda: items.insert(1, 1))


def test_renamed_keys_are_seen():
    table = {"a": 1.0, "b": 2.0}

    def rename():
        a, b = table.values()
        table.clear()
        table.update(b=a, a=b)

    assert is_seen(lambda x: -jnp.sum(x**2) - table["a"] - 10 * table["b"], rename)


@pytest.mark.parametrize("function", [reads_a_class, Switches()], ids=["named", "of an object"])
def test_a_changed_attribute_of_a_class_is_seen(function, monkeypatch):
    assert is_seen(function, lambda: monkeypatch.setattr(Switches, "scale", 7.0))


def test_a_changed_global_that_a_helper_method_names_is_seen(monkeypatch):
    assert is_seen(Switches().through_a_helper, lambda: monkeypatch.setitem(globals(), "SCALE", 7.0))


def test_a_changed_slot_is_seen():
    model = Slots()
    assert is_seen(model, lambda: setattr(model, "scale", 7.0))


def test_a_changed_module_in_a_module_is_seen(monkeypatch):
    assert is_seen(reads_a_module_in_a_module, lambda: monkeypatch.setattr(MODULE.inner, "scale", 7.0))


class Descriptors:
    """A global read through each kind of method."""

    @property
    def by_property(self):
        return SCALE

    @staticmethod
    def by_staticmethod():
        return SCALE

    @classmethod
    def by_classmethod(cls):
        return SCALE


@pytest.mark.parametrize(
    "read",
    [lambda thing: thing.by_property, lambda thing: thing.by_staticmethod(), lambda thing: thing.by_classmethod()],
    ids=["property", "staticmethod", "classmethod"],
)
def test_a_changed_global_that_a_descriptor_names_is_seen(read, monkeypatch):
    thing = Descriptors()
    change = functools.partial(monkeypatch.setitem, globals(), "SCALE", 7.0)
    assert is_seen(lambda x: -jnp.sum(x**2) - read(thing), change)


def test_a_sampler_in_use_does_not_pass_its_old_data_to_a_new_one():
    """A sampler is made and traced with data 1. The data become 7, and it is traced again at another shape.

    A new sampler must see 7 at the first shape too.
    """
    model = Model(1.0)

    def one_step(sampler, dim):
        state = sampler.init(jnp.zeros((1, dim)))
        step_size = state.step_size._replace(log_sigma=jnp.asarray(-10.0))  # is accepted
        state, _ = sampler.step(jax.random.key(0), state._replace(step_size=step_size))
        return float(state.chains.logdensity[0])

    old = hm.adaptive_mala(model, hm.none(), num_chains=1)
    np.testing.assert_allclose(one_step(old, 2), -1, rtol=1e-3)
    model.data = 7.0
    np.testing.assert_allclose(one_step(old, 3), -7, rtol=1e-3)
    np.testing.assert_allclose(one_step(hm.adaptive_mala(model, hm.none(), num_chains=1), 2), -7, rtol=1e-3)


def test_a_variable_of_the_closure_may_have_no_value_yet():
    def logdensity(x):
        return -jnp.sum(x**2) - 1 if x.shape == (2,) else later

    value = value_at(logdensity)
    later = 0.0
    assert value == -1 and later == 0


def test_data_as_an_argument_of_jit_compiles_once_and_keeps_no_tracer(compilations):
    """Two data sets, one program, the answers of each."""

    def model(data):
        return lambda x: -jnp.sum((x - data) ** 2) / 2

    @jax.jit
    def run(key, positions, data):
        (state, _), _ = hm.warmup(model(data), hm.diagonal(), 2).run(key, positions, 10)
        return state

    key, x = jax.random.key(0), positions()
    data = jnp.array([0.0, 0.0, 0.0]), jnp.array([5.0, 6.0, 7.0])
    with jax.checking_leaks():
        states = [jax.block_until_ready(run(key, x, data[0]))]
        assert compilations(lambda: states.append(run(key, x, data[1]))) == 0
    for state, mean in zip(states, data, strict=True):
        np.testing.assert_allclose(state.logdensity, -np.sum((state.position - mean) ** 2, axis=1) / 2, rtol=1e-5)


def test_a_traced_value_is_never_kept():
    """A function that reads one, made under jit, is built each time; so is what is asked for while tracing."""
    built = []

    @program
    def find(function, *static):
        built.append(function)
        return lambda x: function(x)

    def once(x):
        return x + 1

    assert find(once)(1) == 2 and find(once) is find(once) and len(built) == 1
    assert find(once, 3) is find(once, 3) and find(once, 3) is not find(once, 4) and len(built) == 3

    @jax.jit
    def traced(data):
        return find(lambda x: x + data)(1.0) + find(once)(1.0)

    assert traced(2.0) == 5
    assert len(built) == 5  # both anew
    traced.clear_cache()
    traced(2.0)
    assert len(built) == 7

    def batched(data):  # without jit, where only the function's own parts are traced
        function = in_a_closure(data)
        assert find(function) is not find(function)
        return find(function)(jnp.zeros(2))

    np.testing.assert_array_equal(jax.vmap(batched)(jnp.array([1.0, 2.0])), [-1, -2])
    first, second = find(once, np.ones(2)), find(once, np.ones(2))  # without a hash
    assert first is not second and first(1) == 2


@pytest.fixture
def options_of_programs(monkeypatch):
    """The compiler options of every program that is made, without the flags that these tests are run with."""
    made, jit = [], jax.jit

    def recording(function, **kwargs):
        made.append(kwargs.get("compiler_options"))
        return jit(function, **kwargs)

    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(sharing.jax, "jit", recording)
    sharing._is_option.cache_clear()
    return made


@pytest.mark.parametrize("build", [brief_program, program])
def test_brief_programs_alone_are_compiled_quickly(build, options_of_programs):
    """Within another program, and within a batch, they have no options: only an outermost one may have them."""
    double = lambda x: 2 * x  # noqa: E731
    find = build(lambda function: lambda x: function(x) + 1)
    assert find(double)(1) == 3
    assert options_of_programs[-1] == (sharing._QUICK_OPTIONS if build is brief_program else None)
    np.testing.assert_array_equal(jax.vmap(lambda x: find(double)(x))(jnp.arange(2.0)), [1, 3])
    assert jax.make_jaxpr(lambda x: find(double)(x))(1.0).out_avals[0].shape == ()
    assert options_of_programs[-1] is None


def test_quick_options_give_way_to_the_users_and_to_an_older_compiler(options_of_programs, monkeypatch):
    level, emitters = sharing._QUICK_OPTIONS
    monkeypatch.setitem(sharing._QUICK_OPTIONS, "xla_is_no_option", 1)
    assert set(sharing._quick_options()) == {level, emitters}
    monkeypatch.setenv("XLA_FLAGS", f"--{level}=3")
    assert set(sharing._quick_options()) == {emitters}
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert sharing._quick_options() == {}


def test_models_of_long_ago_and_their_data_are_let_go(compilations):
    """A model is found again until as many others as are kept have been used. Then JAX's caches let it go too."""

    def model():
        data = np.full(2, 2.0, np.float32)
        return weakref.ref(data), lambda x: -jnp.sum((x - data) ** 2)

    references, functions = zip(*(model() for _ in range(_MOST_PROGRAMS + 1)), strict=True)
    functions = list(functions)
    for function in functions:
        assert value_at(function) == -8
    assert compilations(lambda function=functions[-1]: value_at(function)) == 0
    del function, functions
    gc.collect()
    assert references[0]() is None
    assert all(reference() is not None for reference in references[1:])
