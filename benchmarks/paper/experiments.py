"""The experiments of Section 4: an experiment is one entry of `experiments`."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

import householder_mcmc as hm
from benchmarks import targets
from benchmarks.paper import settings
from benchmarks.paper.settings import Variant

ADAPTIVE = ("none", "diagonal", "dense", "eigen", "eigen_identity")
NUM_DEFAULT_CHAINS = 8
NUM_REPLICATES = 15


class Experiment(NamedTuple):
    """A target in some dimensions, and what learns on it.

    target: (d, generator) -> target. steps: floor(steps sqrt(d)). variants: name -> `Variant`. schemes: which of their
    learners run. views: column of the results -> function of the draws whose ESS it holds. counted: the views that are
    functions on the target's space; R-hat and bulk ESS are theirs. records_recovery: whether the distance to the
    leading eigenvector is recorded along the run. keeps_draws: whether draws of the first replicate are.
    """

    name: str
    target: Callable
    dims: tuple[int, ...]
    steps: int
    variants: dict[str, Variant]
    schemes: tuple[str, ...] = ADAPTIVE
    views: dict[str, Callable] = {"medESS": np.asarray}
    counted: tuple[str, ...] = ("medESS",)
    records_recovery: bool = False
    keeps_draws: bool = False

    def num_steps(self, dim: int) -> int:
        return int(self.steps * np.sqrt(dim))


# The wrap at the end of the authors' program is (x mod 2) * pi, since R's %% binds tighter than *: a sawtooth of period
# 2 that is no function on the circle. cos and sin are.
ANGLE_VIEWS = {
    "medESS": lambda x: np.mod(x, 2) * np.pi,
    "medESS_mod2pi": lambda x: np.mod(x, 2 * np.pi),
    "medESS_cos": np.cos,
    "medESS_sin": np.sin,
}


def experiments(which: str) -> dict[str, Experiment]:
    """By name of the results file. which: "program", what the authors' program does, or "text", what the paper says.

    The Gaussians run for the text's 500 sqrt(d) steps in both; the published loop has 1000 sqrt(d) (`gaussian1_long`).
    """
    is_program = which == "program"
    authors_gains = hm.AUTHORS_GAINS if is_program else settings.TEXT_GAINS

    def variants(rank, name="authors", **changes):
        authors = Variant(settings.adaptive(rank, authors_gains))._replace(**changes)
        if not is_program:
            return {"text": authors._replace(start=Variant({}).start)}
        default = Variant(settings.adaptive(rank, hm.DEFAULT_GAINS), NUM_DEFAULT_CHAINS)
        return {name: authors, "default": default}

    first = partial(targets.gaussian_first, num_significant=3)
    angles = {"views": ANGLE_VIEWS, "counted": ("medESS_cos", "medESS_sin")}
    no_identity = ADAPTIVE[:-1]
    xy_variants = variants(1, learners=settings.authors_xy(1)) if is_program else variants(1)
    entries = {
        "recovery": Experiment(
            "recovery",
            partial(targets.gaussian_first, num_significant=1),
            dims=(150,),
            steps=1000,
            variants=variants(3),
            records_recovery=True,
        ),
        "gaussian1": Experiment("gaussian1", first, (50, 100, 150, 200), 500, variants(3)),
        "gaussian2": Experiment(
            "gaussian2", targets.gaussian_second, (50, 100, 150, 200), 500, variants(10), schemes=no_identity
        ),
        "logistic": Experiment(
            "logistic",
            targets.logistic,
            (50, 100, 150, 200, 300),
            1000,
            variants(3, "kappa0.7_c1_Qid", start=settings.start_near_mode),
        ),
        "xy2": Experiment("xy2", targets.xy, (2,), 1000, variants(1), schemes=("none",), keeps_draws=True, **angles),
        "xy": Experiment("xy", targets.xy, (10, 20, 30, 40, 50), 1000, xy_variants, schemes=no_identity, **angles),
    }
    if is_program:
        plain = {"unwrapped": Variant(settings.adaptive(1, hm.AUTHORS_GAINS))}
        oracle = {"code": Variant(settings.authors_logistic(3), start=settings.start_near_mode)}
        authors = {"authors": Variant(settings.adaptive(3, hm.AUTHORS_GAINS))}
        entries |= {
            "gaussian1_long": Experiment("gaussian1", first, (50, 100), 1000, authors, schemes=("eigen",)),
            "logistic_code": Experiment("logistic", targets.logistic, (50, 100), 1000, oracle),
            "xy_unwrapped": Experiment(
                "xy", targets.xy, (10, 20, 30, 40, 50), 1000, plain, schemes=("diagonal", "dense"), **angles
            ),
        }
    return entries
