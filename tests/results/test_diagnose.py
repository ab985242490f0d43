"""What happened in a warm-up, in words."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import householder_mcmc as hm


class Infos(NamedTuple):
    is_divergent: Any
    acceptance_rate: Any = 0.8


def of_warmup(**fields):
    """A warm-up of 100 steps of which there is nothing to say, but for some fields."""
    info = hm.WarmupInfo(
        acceptance_rate=jnp.full(4, 0.8),
        num_nonfinite=jnp.zeros(4, int),
        num_gradients=jnp.full(4, 500),
        num_steps=jnp.asarray(100),
        num_learnt=jnp.asarray(90),
        explained=jnp.asarray(1.0),
        has_settled=jnp.asarray(True),
        is_behind=jnp.zeros(4, bool),
        num_moves=jnp.zeros(4, int),
        last_state=None,
        history=None,
    )
    return info._replace(**{name: jnp.asarray(value) for name, value in fields.items()})


def test_nothing_to_say():
    infos = Infos(jnp.zeros((10, 4), bool))
    parameters = {"inverse_mass_matrix": hm.LowRank(jnp.ones(5), jnp.eye(2, 5), jnp.array([100.0, 1.0]))}
    assert hm.diagnose(of_warmup(), parameters, infos, target_acceptance_rate=0.8) == []
    assert hm.diagnose(of_warmup(num_learnt=34)) == []
    assert hm.diagnose(of_warmup()._replace(explained=None)) == []


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"num_learnt": 33}, "the map is that of 33 of 100 steps"),
        ({"explained": 0.05}, "explains 0.05 of the scores: no linear map fits"),
        ({"has_settled": False}, "had not settled after 100 steps"),
        ({"is_behind": [False, True, False, True]}, "chains [1, 3] ended the warm-up far below the others"),
        ({"num_moves": [0, 0, 2, 0]}, "chains [2] were in places of negligible mass"),
        ({"acceptance_rate": [0.8, 0.8, 0.1, 0.8]}, "chains [2] accepted almost nothing"),
        ({"acceptance_rate": [0.6, 0.6, 0.5, 0.5]}, "the acceptance of the last phase is 0.55, far from its target"),
    ],
)
def test_each_thing_is_said_alone(fields, said):
    (sentence,) = hm.diagnose(of_warmup(**fields), target_acceptance_rate=0.8)
    assert said in sentence


def test_an_acceptance_above_its_target_is_right_where_the_gaussian_is_solved():
    """By the longest step there is; and it is said without a center, or with one that is not known."""
    info, a_map = of_warmup(acceptance_rate=[1.0] * 4), hm.Diagonal(jnp.ones(3))
    for center, is_said in ((jnp.zeros(3), False), (jnp.full(3, jnp.nan), True), (None, True)):
        parameters = {"inverse_mass_matrix": a_map} | ({} if center is None else {"center": center})
        assert (hm.diagnose(info, parameters, target_acceptance_rate=0.8) != []) == is_said
    low = hm.diagnose(
        of_warmup(acceptance_rate=[0.5] * 4),
        {"inverse_mass_matrix": a_map, "center": jnp.zeros(3)},
        target_acceptance_rate=0.8,
    )
    assert len(low) == 1


def test_divergences_and_the_rank():
    assert hm.diagnose(of_warmup(), info=Infos(jnp.array([[True, False], [True, True]])))[0].startswith(
        "3 trajectories"
    )
    eigenvectors = jnp.linalg.qr(jax.random.normal(jax.random.key(0), (20, 2)))[0].T
    for eigenvalues, is_said in (([100.0, 0.01], True), ([100.0, 1.0], False)):
        parameters = {"inverse_mass_matrix": hm.LowRank(jnp.ones(20), eigenvectors, jnp.array(eigenvalues))}
        assert any("all 2 directions" in text for text in hm.diagnose(of_warmup(), parameters)) == is_said
    full = {"inverse_mass_matrix": hm.LowRank(jnp.ones(2), jnp.eye(2), jnp.array([100.0, 0.01]))}
    assert hm.diagnose(of_warmup(), full) == []


def test_of_a_real_warmup():
    """Without a last phase there is no acceptance to judge; a start that is far and too short a warm-up is named."""
    warmup = hm.warmup(lambda x: -jnp.sum(x**2) / 2, hm.two_ended())
    (_, parameters), info = warmup.run(jax.random.key(0), jax.random.normal(jax.random.key(1), (4, 3)), 9)
    assert hm.diagnose(info, parameters, target_acceptance_rate=0.8) == [
        "the map, the step size or the chains had not settled after 9 steps."
    ]


def test_what_draws_say_is_of_named_variables():
    """A variable that is stuck in one chain, after independent draws of which there is nothing to say."""
    draws = np.random.default_rng(0).normal(size=(1000, 4, 3)).astype(np.float32)
    positions = {"effects": draws[..., :2], "log_tau": draws[..., 2].copy()}
    assert hm.diagnose(of_warmup(), positions=positions) == []
    positions["log_tau"][:, 1] = 0.0
    infos = Infos(np.zeros((1000, 4), bool), np.array([0.8, 0.1, 0.8, 0.8]) * np.ones((1000, 1)))
    found = hm.diagnose(of_warmup(num_moves=[0, 0, 2, 0]), None, infos, positions=positions)
    assert len(found) == 6 and "set to the state of another chain" in found[0]
    assert found[1] == "chains [1] did not move in half of their draws or more."
    assert found[2] == "chains [1] accepted less than 20% of their proposals."
    assert found[3].startswith("R-hat is inf (log_tau)")
    assert found[4].startswith("bulk ESS is 0 (log_tau)") and found[5].startswith("tail ESS is 0 (log_tau)")


def test_the_number_of_an_array_is_named():
    positions = np.random.default_rng(0).normal(size=(1000, 4, 2, 3))
    positions[:, 0, 1, 2] += 1
    (sentence,) = (text for text in hm.diagnose(of_warmup(), positions=positions) if "R-hat" in text)
    assert "(x[1, 2]), above 1.01" in sentence


def test_positions_of_one_chain_alone_are_refused():
    with pytest.raises(ValueError, match="positions must share their first two axes, chains and draws"):
        hm.diagnose(of_warmup(), positions=np.zeros(100))


def test_infos_with_their_axes_exchanged_are_refused():
    info = Infos(np.zeros((4, 100), bool), np.ones((4, 100)))
    with pytest.raises(ValueError, match=r"\(num_draws, num_chains\) = \(100, 4\), as positions, got \(4, 100\)"):
        hm.diagnose(of_warmup(), info=info, positions=np.zeros((100, 4, 2)))
