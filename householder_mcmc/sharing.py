"""Equal arguments share one compiled program.

`jax.jit` compiles again for every new function, and factories make a new one at each call. So factories of schedules
and schemes return the same object for equal arguments (`shared`), and what is compiled for a log-density is kept and
found again by all that it was compiled for (`program`).
"""

import functools
import inspect
import operator
import types
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.core
import jax.numpy as jnp

__all__ = ["shared", "program"]

P = ParamSpec("P")
R = TypeVar("R")

# Programs that are kept, with the log-densities and the data in them: a handful of models at a time, so that those of
# before do not fill the memory.
_MOST_PROGRAMS = 16

# Packages whose functions read no data of the user's.
_LIBRARIES = ("jax", "jaxlib", "numpy", "builtins", "householder_mcmc")


def shared(factory: Callable[P, R]) -> Callable[P, R]:
    """The factory, returning the same object for equal arguments, however they are given.

    Arguments that cannot be hashed, such as arrays, make a new object at each call.
    """
    signature, find = inspect.signature(factory), functools.cache(factory)

    @functools.wraps(factory)
    def find_or_make(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return (find if _is_hashable(bound.args) else factory)(*bound.args, **bound.kwargs)

    return find_or_make


def program(build: Callable[..., Callable]) -> Callable[..., Callable]:
    """A decorator of build(function, *static) -> function of arrays. The result returns that function, jitted.

    The jitted function of before is returned if `function` is the same and reads the same objects: its closure, the
    globals that it names, its attributes if it is an object, and theirs in turn. (They are compared by identity, so an
    array that is changed in place is not seen.) The static arguments are compared by ==. If one cannot be hashed, or if
    `function` reads traced values, nothing is kept.
    """

    @functools.lru_cache(_MOST_PROGRAMS)
    def find(function, *static):
        traced = build(function.value, *static)

        def trace(*args):
            results = traced(*args)
            function.read()  # what it reads may have been changed by being traced, as by a count of its calls
            return results

        trace.__name__ = traced.__name__
        return jax.jit(trace)

    def find_or_make(value: Callable, *static: Any) -> Callable:
        function = _Function(value)
        if not _is_hashable(static) or isinstance(jnp.zeros(()), jax.core.Tracer) or function.reads_tracer:
            return jax.jit(build(value, *static))
        return find(_known(function), *static)

    return find_or_make


class _Function:
    """A function that equals another if both are the same and read the same objects, which it keeps alive."""

    def __init__(self, value: Callable):
        self.value = value
        self.read()

    def read(self) -> None:
        """Look up the objects that the function can read without being given them."""
        found, left = {}, [self.value]
        while left:
            thing = left.pop()
            if id(thing) not in found:
                found[id(thing)] = thing
                left.extend(_parts(thing))
        # a bound method is made anew at each access; its function and its object say what it is
        self.objects = [thing for thing in found.values() if not isinstance(thing, types.MethodType)]

    @property
    def reads_tracer(self) -> bool:
        return any(isinstance(thing, jax.core.Tracer) for thing in self.objects)

    def __hash__(self):
        return id(self.objects[0])

    def __eq__(self, other):
        return len(self.objects) == len(other.objects) and all(map(operator.is_, self.objects, other.objects))


@functools.lru_cache(_MOST_PROGRAMS)
def _known(function: _Function) -> _Function:
    """The first that equals it, so that all programs of a function learn what tracing one of them has changed."""
    return function


def _is_hashable(arguments):
    try:
        hash(arguments)
    except TypeError:
        return False
    return True


def _parts(thing):
    """What an object holds that a function reads through it."""
    if isinstance(thing, types.FunctionType):
        if (thing.__module__ or "").partition(".")[0] in _LIBRARIES and not thing.__closure__:
            return []
        cells = list(inspect.getclosurevars(thing).nonlocals.values()) if thing.__closure__ else []
        names = sorted(_names(thing.__code__))
        named = [thing.__globals__[name] for name in names if name in thing.__globals__]
        named += [vars(module)[name] for module in _modules(named) for name in names if name in vars(module)]
        return [*cells, *named, *(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
    if isinstance(thing, types.MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, dict):
        return list(thing.values())
    if isinstance(thing, list | tuple | set | frozenset):
        return list(thing)
    if isinstance(thing, type | types.ModuleType | jax.Array) or not hasattr(thing, "__dict__"):
        return []
    return [type(thing).__call__, *vars(thing).values()] if callable(thing) else list(vars(thing).values())


def _modules(things):
    return [thing for thing in things if isinstance(thing, types.ModuleType)]


def _names(code):
    """The global names in a function's code, and in that of the functions inside."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return {*code.co_names, *(name for each in inner for name in _names(each))}
