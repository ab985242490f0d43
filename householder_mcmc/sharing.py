"""Equal arguments share one compiled program.

`jax.jit` compiles again for every new function, and a factory makes a new function at each call. So factories of
schedules and schemes return the same object for equal arguments (`shared`). And what is compiled for a log-density is
kept, with the log-density and what it reads, and found again (`program`). A warm-up mostly runs for less time than it
compiles, so its programs are compiled quickly (`brief_program`).
"""

import functools
import inspect
import logging
import operator
import os
import sys
import sysconfig
import types
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

__all__ = ["brief_program", "program", "shared"]

P = ParamSpec("P")
R = TypeVar("R")

# Programs that are kept, with the log-densities and the data in them. Enough for a handful of models; more would fill
# the memory with those of before.
_MOST_PROGRAMS = 16

# With these a CPU's program of a warm-up is compiled in 0.55 of the time. A gradient took 0.98-1.19 of the time with it
# on nine posteriors, 1.36 on item response, which gathers.
_QUICK_OPTIONS = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}

# Folders of Python itself and of installed packages.
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})

_SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None)})


def shared(factory: Callable[P, R]) -> Callable[P, R]:
    """The factory, made to return the same object for equal arguments, by position or by name.

    It makes a new object at each call if an argument cannot be hashed, such as an array, or reads traced values.
    """
    signature, find = inspect.signature(factory), functools.cache(factory)

    @functools.wraps(factory)
    def find_or_make(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        is_kept = _is_hashable(bound.args) and not _have_tracer(_reads(bound.args))
        return (find if is_kept else factory)(*bound.args, **bound.kwargs)

    return find_or_make


def brief_program(build: Callable[..., Callable]) -> Callable[..., Callable]:
    """`program` for what runs for less time than it compiles: compiled quickly, which takes half the time."""
    return program(build, is_brief=True)


def program(build: Callable[..., Callable], is_brief: bool = False) -> Callable[..., Callable]:
    """A decorator of build(function, *static) -> function of arrays. The result returns that function, jitted.

    An earlier jitted function is returned if `function` is the same and reads the same objects, and the static
    arguments are equal. What a function reads are its closure, the globals that it names, its attributes if it is an
    object, and theirs in turn. These are compared by identity, so an array that is changed in place is not seen.
    Nothing is kept if a static argument cannot be hashed, or if anything reads traced values.
    is_brief: whether it is compiled with `_QUICK_OPTIONS`, where it is the outermost program.
    """

    @functools.lru_cache(_MOST_PROGRAMS)
    def find(function, *static):
        traced = build(function.value, *static)

        def trace(*args):
            is_as_before = function == _Function(function.value)
            results = traced(*args)
            # Tracing may change what the function reads, such as a count of its calls: read again. If it had changed
            # before, the program holds two sets of data, and must not be found again.
            function.objects = _reads(function.value) if is_as_before else [object()]
            return results

        trace.__name__ = traced.__name__
        return jax.jit(trace, compiler_options=_quick_options() if is_brief else None)

    def find_or_make(value: Callable, *static: Any) -> Callable:
        function, is_traced = _Function(value), isinstance(jnp.zeros(()), jax.core.Tracer)
        if is_traced or not _is_hashable(static) or _have_tracer([*function.objects, *_reads(static)]):
            return jax.jit(build(value, *static))  # an outer program has options of its own
        return find(_known(function), *static)

    return find_or_make


def _quick_options():
    """Options of the compiler for a CPU, without those that are set in XLA_FLAGS or that this XLA does not know."""
    if jax.default_backend() != "cpu":
        return {}
    flags = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in _QUICK_OPTIONS.items() if name not in flags and _is_option(name, value)}


@functools.cache
def _is_option(name, value):
    try:
        jax.jit(lambda x: x, compiler_options={name: value}).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


class _Function:
    """A function that equals another if both are the same and read the same objects, which it keeps alive."""

    def __init__(self, value: Callable):
        self.value = value
        self.objects = _reads(value)
        self.identity = id(self.objects[0])

    def __hash__(self):
        return self.identity

    def __eq__(self, other):
        return len(self.objects) == len(other.objects) and all(map(operator.is_, self.objects, other.objects))


@functools.lru_cache(_MOST_PROGRAMS)
def _known(function: _Function) -> _Function:
    """The first equal `_Function`, so that all programs of a function see what tracing one of them has changed."""
    return function


def _is_hashable(arguments):
    try:
        hash(arguments)
    except TypeError:
        return False
    return True


def _have_tracer(objects: list) -> bool:
    return any(isinstance(thing, jax.core.Tracer) for thing in objects)


def _reads(function: Any) -> list:
    """A function and the objects that it can read beside its arguments, each as often as it is held."""
    objects, seen, left = [], set(), [function]
    while left:
        thing = left.pop()
        # a bound method is made anew at each access; its function and its object say what it is
        if not isinstance(thing, types.MethodType):
            objects.append(thing)
        if id(thing) not in seen:
            seen.add(id(thing))
            left.extend(_parts(thing))
    return objects


def _parts(thing) -> list:
    """What an object holds that a function reads through it. The code of installed packages does not change."""
    if type(thing) in _SCALARS:
        return []
    if isinstance(thing, types.FunctionType):
        defaults = [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        return [*map(_content, thing.__closure__ or ()), *defaults, *_named(thing)]
    if isinstance(thing, types.MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, staticmethod | classmethod):
        return [thing.__func__]
    if isinstance(thing, property):
        return [thing.fget]
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords, *thing.keywords.values()]
    if isinstance(thing, dict):
        return [*thing, *thing.values()]
    if isinstance(thing, list | tuple | set | frozenset):
        return [*_attributes(thing), *thing]
    if isinstance(thing, type):
        return [] if _is_installed(thing.__module__) else [*vars(thing).values(), *thing.__bases__]
    if isinstance(thing, types.ModuleType | jax.Array | np.ndarray | logging.Logger):
        return []
    return _attributes(thing)


def _content(cell):
    """What a variable of a closure holds, if it has a value yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _attributes(thing):
    """The class of an object, and what the object holds by name."""
    slots = [name for each in type(thing).__mro__ for name in vars(each).get("__slots__", ()) if hasattr(thing, name)]
    return [type(thing), *getattr(thing, "__dict__", {}).values(), *(getattr(thing, name) for name in slots)]


def _named(function):
    """The globals that a function names, and what it names in modules of them."""
    if _is_installed(function.__module__):
        return []
    names = sorted(_names(function.__code__))
    found, seen, left = [], set(), [function.__globals__]
    while left:
        scope = left.pop()
        for thing in (scope[name] for name in names if name in scope):
            found.append(thing)
            if isinstance(thing, types.ModuleType) and id(thing) not in seen and not _is_installed(thing.__name__):
                seen.add(id(thing))
                left.append(vars(thing))
    return found


def _names(code):
    """The names in a function's code, and in that of the functions inside."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return {*code.co_names, *(name for each in inner for name in _names(each))}


@functools.cache
def _is_installed(module: str | None) -> bool:
    """Whether a module is Python's own, of an installed package, or this library's."""
    package = (module or "").partition(".")[0]
    file = getattr(sys.modules.get(package), "__file__", None)
    if package in sys.builtin_module_names or package == __name__.partition(".")[0]:
        return True
    return file is not None and any(file.startswith(folder) for folder in _INSTALLED)
