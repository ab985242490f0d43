"""The demo's posterior: a real one of 501 dimensions, with known moments.

400 students answered some of 100 questions. logit P(right) = mean_ability + student_ability_i - question_difficulty_j,
with mean_ability ~ N(0.75, 1) and student_ability, question_difficulty ~ N(0, 1).

Data and reference moments: the item response model of inference-gym 0.0.5 (Apache License 2.0).
"""

from importlib.resources import files
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

__all__ = ["Position", "Reference", "load"]


class Position(NamedTuple):
    """student_ability (400,), question_difficulty (100,), mean_ability ()."""

    student_ability: Array
    question_difficulty: Array
    mean_ability: Array


class Reference(NamedTuple):
    """Posterior mean and standard deviation of each parameter, and the Monte Carlo standard error of the mean."""

    mean: Position
    sd: Position
    mcse: Position


def load():
    """Return logdensity(position), initial_position(rng_key), which draws from the prior, and a `Reference`."""
    with (files("householder_mcmc.cli") / "data" / "item_response.npz").open("rb") as file:
        data = dict(np.load(file))
    responses = data["responses"]
    asked = responses >= 0
    right = np.where(asked, responses, 0)
    right_of_student, right_of_question, num_right = right.sum(1), right.sum(0), right.sum()

    def logdensity(position: Position) -> Array:
        student_ability, question_difficulty, mean_ability = position
        logits = mean_ability + student_ability[:, None] - question_difficulty
        log_normalisers = jnp.maximum(logits, 0) + jnp.log1p(jnp.exp(-jnp.abs(logits)))
        loglikelihood = (
            num_right * mean_ability
            + jnp.sum(right_of_student * student_ability)
            - jnp.sum(right_of_question * question_difficulty)
            - jnp.sum(jnp.where(asked, log_normalisers, 0))
        )
        squares = jnp.sum(student_ability**2) + jnp.sum(question_difficulty**2) + (mean_ability - 0.75) ** 2
        return loglikelihood - squares / 2

    def initial_position(rng_key: Array) -> Position:
        num_students, num_questions = responses.shape
        x = jax.random.normal(rng_key, (num_students + num_questions + 1,))
        return Position(x[:num_students], x[num_students:-1], 0.75 + x[-1])

    moments = [Position(*(data[f"{name}_{moment}"] for name in Position._fields)) for moment in Reference._fields]
    return logdensity, initial_position, Reference(*moments)
