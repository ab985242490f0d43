"""How a sampler is shown to users: BlackJAX's top-level API, with a signature and a docstring of its own."""

import functools
from collections.abc import Callable
from typing import Generic, ParamSpec

from blackjax import GenerateSamplingAPI
from blackjax.base import SamplingAlgorithm

__all__ = ["SamplingAPI"]

P = ParamSpec("P")


class SamplingAPI(GenerateSamplingAPI, Generic[P]):
    """A sampler as `blackjax.mala` is one: called, it gives a `SamplingAlgorithm`; `init` and `build_kernel` beside."""

    def __init__(self, top_level_api: Callable[P, SamplingAlgorithm], init: Callable, build_kernel: Callable):
        super().__init__(top_level_api, init, build_kernel)
        functools.update_wrapper(self, top_level_api)
        self.__name__ = top_level_api.__module__.rpartition(".")[2]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> SamplingAlgorithm:
        return self.differentiable(*args, **kwargs)

    def __get__(self, instance, owner=None):
        return self  # so that `help` takes it for a function, and shows what it wraps
