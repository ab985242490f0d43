"""BlackJAX's types of a sampler, with the signature, docstring and state types that editors and `help` show."""

import functools
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from blackjax import GenerateSamplingAPI
from blackjax.base import SamplingAlgorithm
from blackjax.types import ArrayLikeTree, PRNGKey

__all__ = ["Algorithm", "SamplingAPI"]

P = ParamSpec("P")
Result = TypeVar("Result", bound=SamplingAlgorithm)
State = TypeVar("State")
Info = TypeVar("Info", covariant=True)
NewState = TypeVar("NewState", covariant=True)


class Init(Protocol[NewState]):
    """Type of `init`: a position -> the state there. No sampler here uses the `rng_key`."""

    def __call__(self, position: ArrayLikeTree, rng_key: PRNGKey | None = None) -> NewState: ...


class Step(Protocol[State, Info]):
    """Type of `step`: (rng_key, state) -> (state, info)."""

    def __call__(self, rng_key: PRNGKey, state: State) -> tuple[State, Info]: ...


class Algorithm(SamplingAlgorithm, Generic[State, Info]):
    """Type of a `SamplingAlgorithm` whose states and infos are known."""

    init: Init[State]  # pyright: ignore[reportIncompatibleVariableOverride]: BlackJAX's knows neither
    step: Step[State, Info]  # pyright: ignore[reportIncompatibleVariableOverride]


class SamplingAPI(GenerateSamplingAPI, Generic[P, Result]):
    """A sampler in the form of `blackjax.mala`: called, it returns a `SamplingAlgorithm`.

    Its attributes `init` and `build_kernel` are the functions that this algorithm is made of.
    """

    def __init__(self, top_level_api: Callable[P, Result], init: Callable, build_kernel: Callable):
        super().__init__(top_level_api, init, build_kernel)
        functools.update_wrapper(self, top_level_api)
        self.__name__ = top_level_api.__module__.rpartition(".")[2]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Result:
        result: Any = self.differentiable(*args, **kwargs)
        return result

    def __get__(self, instance, owner=None):
        return self  # `help` takes an object with `__get__` for a function, and then shows what it wraps
