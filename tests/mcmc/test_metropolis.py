"""The Metropolis choice on made states, and what the checks of a start and of a step size say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import householder_mcmc as hm
from householder_mcmc.mcmc.mala import MALAState
from householder_mcmc.mcmc.metropolis import accept_or_reject, is_finite, require_finite, require_positive, require_rate

NOT_FINITE = [np.nan, np.inf, -np.inf]
OLD, NEW = (MALAState(jnp.full(2, value), jnp.asarray(value), jnp.full(2, value)) for value in (1.0, 2.0))


def spoiled(state, part, value):
    """The state with a value in its log-density, or in the last coordinate of another part."""
    whole = getattr(state, part)
    return state._replace(**{part: whole.at[-1].set(value) if whole.ndim else jnp.asarray(value)})


def choose(log_ratio, state=OLD, proposal=NEW, seed=0):
    """Whether the new state is the proposal, rate, is_accepted, is_nonfinite."""
    new, choice = accept_or_reject(jax.random.key(seed), jnp.asarray(log_ratio), state, proposal)
    expected = proposal if choice[1] else state
    jax.tree.map(np.testing.assert_array_equal, new, expected)
    return tuple(map(float, choice))


@pytest.mark.parametrize(
    "log_ratio, rate", [(np.inf, 1), (200.0, 1), (0.0, 1), (-np.inf, 0), (-200.0, 0), (np.nan, 0)], ids=str
)
def test_the_ratio_decides_between_finite_states(log_ratio, rate):
    """A ratio that is not a number rejects, with rate 0: a rate of NaN would be learnt from."""
    assert choose(log_ratio) == (rate, rate, False)


def test_accepts_as_often_as_the_rate_says():
    """10,000 choices at a ratio of 0.3: five standard errors are 0.023."""
    keys = jax.random.split(jax.random.key(0), 10_000)
    _, (rates, is_accepted, _) = jax.vmap(lambda key: accept_or_reject(key, jnp.log(0.3), OLD, NEW))(keys)
    np.testing.assert_allclose(rates, 0.3, rtol=1e-6)
    assert abs(is_accepted.mean() - 0.3) < 0.023


@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize("part", MALAState._fields)
def test_states_that_are_not_finite_are_never_entered_and_left_at_once(part, value):
    """Whatever the ratio is, and flagged either way."""
    bad_old, bad_new = spoiled(OLD, part, value), spoiled(NEW, part, value)
    for log_ratio in (np.nan, np.inf, -np.inf, 0.0):
        assert choose(log_ratio, proposal=bad_new) == (0, False, True)
        assert choose(log_ratio, state=bad_old) == (1, True, True)
        assert choose(log_ratio, state=bad_old, proposal=bad_new) == (0, False, True)
    assert is_finite(OLD) and not is_finite(bad_old)


def batch(*spoils):
    """Four chains with log-densities 0, 1, 2, 3 at a pytree of positions; spoils: (part, leaf, chain, value)."""
    position = {"a": jnp.ones(4), "b": jnp.ones((4, 2, 3))}
    state = MALAState(position, jnp.arange(4.0), position)._asdict()
    for part, leaf, chain, value in spoils:
        if part == "logdensity":
            state[part] = state[part].at[chain].set(value)
        else:
            state[part] = state[part] | {leaf: state[part][leaf].at[chain].set(value)}
    return MALAState(**state)


@pytest.mark.parametrize(
    "state, message",
    [
        (batch(("logdensity", None, 2, np.nan)), "of chains [2]: the log-density is not, with log-density [nan]."),
        (batch(("position", "b", (3, 1, 2), np.inf)), "of chains [3]: the position is not, with log-density [3.0]."),
        (batch(("position", "a", 0, np.nan)), "of chains [0]: the position is not, with log-density [0.0]."),
        (
            batch(("logdensity_grad", "b", (1, 0, 0), np.nan), ("logdensity_grad", "a", 2, -np.inf)),
            "of chains [1, 2]: the gradient is not, with log-density [1.0, 2.0].",
        ),
        (  # the first part in the order of evaluation that explains one of them
            batch(("logdensity_grad", "a", 0, np.nan), ("logdensity", None, 3, -np.inf)),
            "of chains [0, 3]: the log-density is not, with log-density [0.0, -inf].",
        ),
        (spoiled(OLD, "logdensity_grad", np.nan), ": the gradient is not, with log-density [1.0]."),
        (spoiled(OLD, "position", np.nan), ": the position is not, with log-density [1.0]."),
        (spoiled(OLD, "logdensity", -np.inf), ": the log-density is not, with log-density [-inf]."),
    ],
)
def test_a_start_that_is_not_finite_is_refused_by_chain_and_part(state, message):
    with pytest.raises(ValueError) as error:
        require_finite(state)
    start = "position, log-density and its gradient must be finite at the start"
    assert str(error.value) == start + (" " if message.startswith("of") else "") + message
    jax.jit(lambda state: require_finite(state))(state)  # cannot know


def test_finite_starts_pass():
    require_finite(batch())
    require_finite(OLD)


@pytest.mark.parametrize("wrong", [0, -0.5, np.nan, np.inf, -np.inf, jnp.ones(1), np.ones((2, 2))], ids=str)
def test_a_step_size_is_one_positive_number(wrong):
    with pytest.raises(ValueError) as error:
        require_positive(wrong)
    assert str(error.value) == f"step_size must be a positive and finite number, got {wrong}."


@pytest.mark.parametrize("wrong", [0, 1, 80, -0.5, np.nan, np.inf], ids=str)
def test_a_target_is_between_0_and_1(wrong):
    with pytest.raises(ValueError) as error:
        require_rate(wrong)
    assert str(error.value) == f"target_acceptance_rate must be between 0 and 1, got {wrong}."


def test_good_numbers_and_traced_ones_pass():
    for good in (1e-30, 0.5, np.float64(0.3), jnp.asarray(0.9)):
        require_positive(good)
    for good in (1e-3, 0.999, np.float32(0.5), jnp.asarray(0.9)):
        require_rate(good)
    jax.jit(lambda x: (require_positive(x), require_rate(x), x)[2])(jnp.asarray(-1.0))
    with pytest.raises(ValueError, match="step_size must be a positive and finite number"):
        jax.jit(lambda x: (require_positive(x), x)[1])(jnp.ones(1))  # its shape is known


def test_numbers_that_are_known_are_read_where_others_are_traced():
    """As the parameters of a warm-up in a jitted loop, whose comparisons JAX would trace."""
    good, bad = jnp.asarray(0.5), jnp.asarray(-1.0)
    jax.jit(lambda x: (require_positive(good), require_rate(good), x)[2])(0.0)
    for check in (require_positive, require_rate):
        with pytest.raises(ValueError, match="must be"):
            jax.jit(lambda x, check=check: (check(bad), x)[1])(0.0)
    jax.jit(lambda x: (hm.two_ended(2, forgetting=good), hm.variational.pbam(patch_tolerance=good), x)[2])(0.0)
