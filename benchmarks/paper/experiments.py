"""The experiments of Section 4: an experiment is one entry of `experiments`."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

import householder_mcmc as hm
from benchmarks import targets
from benchmarks.paper import baselines, settings
from benchmarks.paper.settings import Variant

ADAPTIVE = ("none", "diagonal", "dense", "eigen", "eigen_identity")
ALL = (*ADAPTIVE, "diagonal_plus_LR", "pBaM", "exact")
NO_IDENTITY = tuple(scheme for scheme in ALL if scheme != "eigen_identity")
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
    schemes: tuple[str, ...] = ALL
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
    first, single = (partial(targets.gaussian_first, num_significant=count) for count in (3, 1))
    angles = {"views": ANGLE_VIEWS, "counted": ("medESS_cos", "medESS_sin")}
    recovered = {"dims": (150,), "steps": 1000, "records_recovery": True}
    gaussian_dims, logistic_dims, angle_dims = (50, 100, 150, 200), (50, 100, 150, 200, 300), (10, 20, 30, 40, 50)
    if which == "text":
        return {
            "recovery": Experiment("recovery", single, variants=_text(3), **recovered),
            "gaussian1": Experiment("gaussian1", first, gaussian_dims, 500, _text(3)),
            "gaussian2": Experiment("gaussian2", targets.gaussian_second, gaussian_dims, 500, _text(10), NO_IDENTITY),
            "logistic": Experiment("logistic", targets.logistic, logistic_dims, 1000, _text(3)),
            "xy": Experiment("xy", targets.xy, angle_dims, 1000, _text(1), NO_IDENTITY, **angles),
        }
    gaussian_fits = baselines.authors_gaussian()
    recovery_fits = baselines.authors_gaussian(num_descents=1000)
    authors_xy = settings.authors_xy(1) | baselines.learners(3, baselines.authors_xy())
    cold = Variant(settings.adaptive(3, hm.AUTHORS_GAINS), start=settings.start_near_mode)
    oracle = Variant(settings.authors_logistic(3), start=settings.start_near_mode)
    authors_logistic = {"kappa0.7_c1_Qid": cold} | _ours(3, 3, is_gaussian=False)
    return {
        "recovery": Experiment("recovery", single, variants=_authors(3, 3, recovery_fits) | _ours(3, 3), **recovered),
        "gaussian1": Experiment("gaussian1", first, gaussian_dims, 500, _authors(3, 3, gaussian_fits) | _ours(3, 3)),
        "gaussian1_long": Experiment(
            "gaussian1", first, (50, 100), 1000, _authors(3, 3, gaussian_fits), schemes=("eigen",)
        ),
        "gaussian2": Experiment(
            "gaussian2",
            targets.gaussian_second,
            gaussian_dims,
            500,
            _authors(10, 32, gaussian_fits) | _ours(10, 32) | {"averaged_m32": _averaged(32)},
            NO_IDENTITY,
        ),
        "logistic": Experiment("logistic", targets.logistic, logistic_dims, 1000, authors_logistic),
        "logistic_code": Experiment("logistic", targets.logistic, (50, 100), 1000, {"code": oracle}),
        "xy2": Experiment(
            "xy2", targets.xy, (2,), 1000, {"authors": Variant(authors_xy)}, ("none",), keeps_draws=True, **angles
        ),
        "xy": Experiment(
            "xy",
            targets.xy,
            angle_dims,
            1000,
            {"authors": Variant(authors_xy)} | _ours(1, 3, is_gaussian=False, has_covariance=False),
            NO_IDENTITY,
            **angles,
        ),
        "xy_unwrapped": Experiment(
            "xy",
            targets.xy,
            angle_dims,
            1000,
            {"unwrapped": Variant(settings.adaptive(1, hm.AUTHORS_GAINS))},
            ("diagonal", "dense"),
            **angles,
        ),
    }


def _text(rank):
    return {"text": Variant(settings.adaptive(rank, settings.TEXT_GAINS))}


def _authors(rank, baseline_rank, fits):
    return {"authors": Variant(settings.adaptive(rank, hm.AUTHORS_GAINS) | baselines.learners(baseline_rank, fits))}


def _ours(rank, baseline_rank, is_gaussian=True, has_covariance=True):
    fitted = baselines.learners(baseline_rank, baselines.corrected(is_gaussian))
    return {
        "latest": Variant(settings.adaptive(rank, hm.LATEST_GAINS), NUM_DEFAULT_CHAINS),
        "averaged": _averaged(rank),
        "corrected": Variant(fitted | baselines.exact() if has_covariance else fitted),
    }


def _averaged(rank):
    """The learners on which averaging has an effect."""
    learners = settings.adaptive(rank, hm.DEFAULT_GAINS)
    return Variant({name: learners[name] for name in ("eigen", "eigen_identity")}, NUM_DEFAULT_CHAINS)
