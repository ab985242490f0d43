"""Gains at counts, against numbers by hand: the first update has count 0 and is t = 1."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import householder_mcmc as hm
from householder_mcmc.learners.gains import STEP_SIZE_GAIN, diminishes


@pytest.mark.parametrize(
    "schedule, values",
    [
        (hm.power_decay(0.5), [1, 1 / 2, 1 / 10]),
        (hm.power_decay(0.5, 2.0), [2, 1, 0.2]),
        (hm.power_decay(0.5, offset=21.0), [1 / 22**0.5, 1 / 5, 1 / 11]),
        (hm.power_decay(1.0, coefficient=6.0, offset=1.0), [3, 6 / 5, 6 / 101]),
        (hm.growing_memory(1.0), [1 / 2, 1 / 5, 1 / 101]),
        (hm.growing_memory(30.0), [30 / 31, 30 / 34, 3 / 13]),
    ],
)
def test_schedules_at_1_4_and_100(schedule, values):
    np.testing.assert_allclose([schedule(0), schedule(3), schedule(99)], values, rtol=1e-6)
    counts = jnp.array([0, 3, 99], jnp.int32)
    np.testing.assert_allclose(jax.jit(jax.vmap(schedule))(counts), values, rtol=1e-6)


def test_authors_gains():
    """Algorithm 1 counts steps from 1; the authors' program adds 1 for all gains but Oja's."""
    gains = hm.AUTHORS_GAINS
    np.testing.assert_allclose([gains.moments(0), gains.moments(9)], [2**-0.7, 11**-0.7], rtol=1e-6)
    np.testing.assert_allclose([gains.oja(0), gains.oja(9)], [1, 10**-0.7], rtol=1e-6)
    assert gains.average is None and not gains.relative


def test_default_gains():
    """Oja's first gain h is below 1, because a relative step keeps 1 - h of the rows: the first draws must not replace
    them."""
    gains = hm.DEFAULT_GAINS
    np.testing.assert_allclose([gains.oja(0), gains.oja(8), gains.oja(98)], [2**-0.7, 10**-0.7, 100**-0.7], rtol=1e-6)
    for memory in (gains.moments, gains.average):
        np.testing.assert_allclose([memory(0), memory(2), memory(26)], [3 / 4, 1 / 2, 1 / 10], rtol=1e-6)
    assert gains.relative
    assert hm.LATEST_GAINS == gains._replace(average=None)
    np.testing.assert_allclose([STEP_SIZE_GAIN(0), STEP_SIZE_GAIN(8)], [2**-0.7, 10**-0.7], rtol=1e-6)


@pytest.mark.parametrize("name", ["moments", "average"])
def test_the_first_two_thirds_of_a_run_keep_eight_27ths_of_the_weight(name):
    """With gains 3 / (t + 3), what was learnt by t keeps (t + 1)(t + 2)(t + 3) / ((T + 1)(T + 2)(T + 3)) at T."""
    gain = np.asarray(jax.vmap(getattr(hm.DEFAULT_GAINS, name))(jnp.arange(3000)), float)
    kept = np.prod([2001, 2002, 2003]) / np.prod([3001, 3002, 3003])
    np.testing.assert_allclose(np.prod(1 - gain[2000:]), kept, rtol=1e-3)
    np.testing.assert_allclose(np.prod(1 - gain), 6 / np.prod([3001.0, 3002, 3003]), rtol=1e-3)  # the start


@pytest.mark.parametrize(
    "schedule, expected",
    [
        (hm.power_decay(0.5), True),
        (hm.power_decay(0.5, offset=10.0), True),
        (hm.power_decay(0.49), False),
        (hm.growing_memory(3.0), True),
        (lambda count: 0.01, False),
        (lambda count: 1 / (count + 1), True),
    ],
)
def test_diminishes(schedule, expected):
    assert diminishes(schedule) is expected
    assert jax.jit(lambda x: x + diminishes(schedule))(0) == expected  # asked while something is traced


def test_schedules_in_use_by_name():
    assert hm.DEFAULT_GAINS.schedules() == {
        "moments": hm.DEFAULT_GAINS.moments,
        "oja": hm.DEFAULT_GAINS.oja,
        "average": hm.DEFAULT_GAINS.average,
    }
    assert set(hm.LATEST_GAINS.schedules()) == {"moments", "oja"}
