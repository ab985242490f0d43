"""Each chain climbs alone from its start to where a kernel can go on."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import equations, largest_array
from targets import skewed_logdensity

import householder_mcmc as hm
from householder_mcmc.adaptation.arrival import ascend

DIM = 5


def normals(seed, num_chains=4, scale=1.0, dtype=jnp.float32, dim=DIM):
    return jnp.asarray(scale * np.random.default_rng(seed).normal(size=(num_chains, dim)), dtype)


def gaussian(x):
    return -jnp.sum(x**2) / 2


def survival(x):
    """An exponential of an exponential, as of a Weibull model; its mode is at 0."""
    return -jnp.sum(jnp.exp(jnp.exp(x)) - np.e * x)


def test_near_starts_come_back_bit_for_bit(dtype):
    positions = normals(0, scale=2, dtype=dtype)
    arrived, info = hm.arrive(skewed_logdensity, positions)
    chex.assert_trees_all_equal(arrived, positions)
    assert info.has_arrived.all()
    assert info.num_gradients.max() <= 21  # one at the start, and 20 that gain little
    np.testing.assert_allclose(info.logdensity, jax.vmap(skewed_logdensity)(positions), rtol=1e-5)


def test_typical_starts_of_many_dimensions_stay():
    """The mode is d / 2 = 1000 nats above them."""
    positions = normals(1, dim=2000)
    chex.assert_trees_all_equal(hm.arrive(gaussian, positions)[0], positions)


def test_chains_arrive_from_where_steps_and_squares_of_scores_overflow(x64):
    positions = jnp.asarray([[1.0, 6.2, 0.5], [5.0, 4.0, 3.0]])  # log-densities -1e214 and -1e64
    arrived, info = hm.arrive(survival, positions)
    assert jax.vmap(survival)(positions)[0] < -1e200
    assert info.has_arrived.all()
    assert (info.logdensity > -1e4).all()  # one is slow on a long and nearly straight slope
    np.testing.assert_allclose(info.logdensity, jax.vmap(survival)(arrived), rtol=1e-12)


def test_far_starts_arrive_in_float32():
    """Squares of the score, 1e21, overflow."""
    arrived, info = hm.arrive(lambda x: 1e12 * gaussian(x), normals(2, scale=1e9, dim=3) / 1e3)
    assert info.has_arrived.all()
    assert (info.logdensity > -200).all()


def test_units_do_not_matter(x64):
    root = np.random.default_rng(3).normal(size=(DIM, DIM)) + 2 * np.eye(DIM)
    positions = normals(4, scale=1e3, dtype=jnp.float64)
    units = 2.0 ** np.asarray([-20, -10, 0, 10, 20])  # 1e-6 to 1e6
    arrived, info = hm.arrive(lambda x: gaussian(root @ x), positions)
    other, other_info = hm.arrive(lambda x: gaussian(root @ (x / units)), positions * units)
    assert info.has_arrived.all() and (info.logdensity > -150).all()
    np.testing.assert_allclose(other / units, arrived, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(other_info.num_gradients, info.num_gradients)


def test_steps_into_a_region_without_density_are_shortened(dtype):
    """The log-density is NaN below 0, and its mode is at 0.01, ten thousand times nearer to that than the starts."""

    def logdensity(x):
        return jnp.sum(1000 * jnp.log(x) - 1e5 * x)

    arrived, info = hm.arrive(logdensity, jnp.abs(normals(5, scale=100, dtype=dtype)))
    assert info.has_arrived.all()
    assert (info.logdensity > logdensity(jnp.full(DIM, 0.01)) - 150).all()
    assert (arrived > 0).all()


def test_an_unbounded_neck_is_not_entered(dtype):
    """The log-density of a centred funnel rises without end in its neck: 50 nats in each unit of log tau."""

    def logdensity(x):
        return -(x[0] ** 2) / 18 - 25 * x[0] - jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) / 2

    positions = normals(6, scale=1, dtype=dtype, dim=51)
    near, _ = hm.arrive(logdensity, positions)
    chex.assert_trees_all_equal(near, positions)
    far, info = hm.arrive(logdensity, positions.at[:, 1:].mul(30))
    assert (far[:, 0] > -4).all() and info.has_arrived.all()


def test_a_bad_start_stays_and_does_not_change_the_others(dtype):
    positions = normals(7, scale=100, dtype=dtype)
    arrived, info = hm.arrive(skewed_logdensity, positions)
    bad = positions.at[1, 2].set(jnp.nan)
    arrived_beside, beside = hm.arrive(skewed_logdensity, bad)
    others = np.asarray([0, 2, 3])
    np.testing.assert_array_equal(arrived_beside[1], bad[1])
    assert not beside.has_arrived[1] and beside.num_gradients[1] == 1 and beside.logdensity[1] == -jnp.inf
    chex.assert_trees_all_equal(arrived_beside[others], arrived[others])
    chex.assert_trees_all_equal(*(jax.tree.map(lambda leaf: leaf[others], each) for each in (info, beside)))


def test_a_start_with_a_bad_gradient_stays():
    """The gradient of a norm is NaN at 0."""
    positions = jnp.stack([jnp.ones(DIM), jnp.zeros(DIM)])
    arrived, info = hm.arrive(lambda x: -jnp.linalg.norm(x), positions)
    chex.assert_trees_all_equal(arrived, positions)
    np.testing.assert_array_equal(info.has_arrived, [True, False])


def test_a_chain_at_a_mode_has_arrived():
    positions = jnp.zeros((2, DIM))
    arrived, info = hm.arrive(gaussian, positions)
    chex.assert_trees_all_equal(arrived, positions)
    assert info.has_arrived.all() and (info.num_gradients == 1).all()


def test_a_climb_without_end_ends_and_has_not_arrived():
    """Of a log-density that rises for ever, faster and faster."""
    _, info = hm.arrive(lambda x: jnp.sum(x**2), jnp.ones((2, 1)))
    assert not info.has_arrived.any()
    assert info.num_gradients.max() <= 300


def test_counts_gradients():
    points = []

    def logdensity(x):
        jax.debug.callback(lambda x: points.append(x), x)
        return gaussian(x)

    _, _, num_gradients, _ = jax.jit(lambda x: ascend(logdensity, x))(normals(8, scale=100)[0])
    jax.effects_barrier()
    assert num_gradients == len(points) > 21
    assert num_gradients.dtype == jnp.int32


def test_one_copy_of_the_log_density_and_no_square_array():
    def logdensity(x):
        return jnp.sum(jnp.cos(x)) - jnp.sum(x**2)

    program = jax.make_jaxpr(lambda x: ascend(logdensity, x))(jnp.ones(100))
    assert sum(equation.primitive.name == "cos" for equation in equations(program)) == 1
    assert largest_array(program) < 100 * 20


def test_pytrees_and_dtypes_are_kept(x64):
    positions = {"a": normals(9, scale=100, dim=2), "b": normals(10, scale=100, dtype=jnp.float64)[:, None]}
    arrived, info = hm.arrive(lambda x: gaussian(x["a"]) + jnp.sum(-(x["b"] ** 2)), positions)
    chex.assert_trees_all_equal_shapes_and_dtypes(arrived, positions)
    assert info.has_arrived.all() and info.has_arrived.shape == (4,)


def test_agrees_under_jit_and_vmap(transform, dtype):
    positions = normals(11, scale=20, dtype=dtype)
    arrived, info = transform(lambda x: hm.arrive(skewed_logdensity, x))(positions)
    expected, _ = hm.arrive(skewed_logdensity, positions)
    assert arrived.dtype == dtype and info.has_arrived.all()
    np.testing.assert_allclose(
        jax.vmap(skewed_logdensity)(arrived), jax.vmap(skewed_logdensity)(expected), atol=100
    )  # rounding may end a climb one trial sooner


@pytest.mark.parametrize(
    "positions, logdensity, error, words",
    [
        (jnp.ones((2, 3), int), gaussian, TypeError, "floating point, got int"),
        (jnp.ones((2, 3), jnp.float16), gaussian, TypeError, "32 bits"),
        (jnp.ones(()), gaussian, ValueError, "leading axis"),
        ({"a": jnp.ones((2, 3)), "b": jnp.ones((3, 3))}, lambda x: gaussian(x["a"]), ValueError, r"\['b'\].*leading"),
        (jnp.ones((2, 0)), gaussian, ValueError, "d = 0"),
        (jnp.ones((2, 3)), lambda x: -(x**2), ValueError, "one number"),
        (jnp.ones((2, 3)), lambda x: 1, TypeError, "floating point number"),
        (jnp.full((2, 3), jnp.nan), gaussian, ValueError, "finite at the start"),
    ],
)
def test_bad_input(positions, logdensity, error, words):
    with pytest.raises(error, match=words):
        hm.arrive(logdensity, positions)


def test_no_climb_goes_where_the_log_density_has_no_digits(dtype):
    """A first step leads there from near the mode: 10^30 beyond 3. Where it has digits chains do go there."""

    def logdensity(x):
        return jnp.where(x[0] > 3, 1e30 * x[0], -jnp.sum(x**2) / 2)

    x = jnp.asarray(np.random.default_rng(0).normal(size=(8, 5)), dtype)
    arrived, info = hm.arrive(logdensity, jnp.minimum(x, 2))
    assert np.all(arrived[:, 0] < 3) and np.all(info.logdensity <= 0)
    _, info = hm.arrive(lambda x: jnp.where(x[0] > 3, 1e5 * x[0], -jnp.sum(x**2) / 2), jnp.minimum(x, 2))
    assert np.any(info.logdensity > 1e5)
