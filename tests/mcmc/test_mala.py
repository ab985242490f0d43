"""Preconditioned MALA against BlackJAX's MALA, a dense multivariate normal proposal, and detailed balance."""

import math
from importlib import import_module
from typing import NamedTuple
from unittest import mock

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import chain
from scipy.stats import multivariate_normal
from targets import skewed_logdensity

import householder_mcmc as hm
from householder_mcmc.mcmc.integrator import rotate

DIM, STEP_SIZE = 5, 0.3
CENTERS = (None, np.linspace(1.5, -1, DIM))


def nonsymmetric_root():
    rotation = np.linalg.qr(np.random.default_rng(3).normal(size=(DIM, DIM)))[0]
    root = np.linalg.cholesky((rotation * np.linspace(0.4, 1.3, DIM) ** 2) @ rotation.T)
    assert np.abs(root @ root.T - root.T @ root).max() > 0.1
    return root


def test_identity_repeats_blackjax(dtype):
    x = jnp.linspace(-1, 1, DIM, dtype=dtype)
    ours, our_info = chain(hm.mala(skewed_logdensity, STEP_SIZE, jnp.ones(DIM, dtype)), x)
    theirs, their_info = chain(blackjax.mala(skewed_logdensity, STEP_SIZE), x)
    assert ours.dtype == dtype
    assert 0.2 < our_info.is_accepted.mean() < 0.95
    np.testing.assert_array_equal(our_info.is_accepted, their_info.is_accepted)
    tol = 1e3 * jnp.finfo(dtype).eps  # rounding, carried along 200 steps
    np.testing.assert_allclose(ours, theirs, rtol=tol, atol=tol)
    np.testing.assert_allclose(our_info.acceptance_rate, their_info.acceptance_rate, rtol=tol, atol=tol)


@pytest.mark.parametrize("kind", ["dense", "householder"])
def test_equals_plain_mala_on_the_pushed_forward_target(kind, x64):
    """x = L z: MALA on pi with L is MALA on the density of z, with the same keys."""
    if kind == "dense":
        preconditioner = hm.Dense(jnp.asarray(nonsymmetric_root()))
    else:
        rows = np.linalg.qr(np.random.default_rng(4).normal(size=(DIM, 2)))[0].T
        preconditioner = hm.Householder(hm.reflections.compact(jnp.asarray(rows)), jnp.linspace(0.4, 1.3, DIM))
    z = jnp.linspace(-1, 1, DIM)
    xs, info = chain(hm.mala(skewed_logdensity, STEP_SIZE, preconditioner), preconditioner.apply(z))
    zs, plain_info = chain(blackjax.mala(lambda z: skewed_logdensity(preconditioner.apply(z)), STEP_SIZE), z)
    assert 0.2 < info.is_accepted.mean() < 0.95
    np.testing.assert_array_equal(info.is_accepted, plain_info.is_accepted)
    np.testing.assert_allclose(xs, jax.vmap(preconditioner.apply)(zs), rtol=1e-9, atol=1e-9)


def proposal(x, root, center):
    """Mean and, in units of the root, standard deviation of y, from x."""
    gradient = np.asarray(jax.grad(skewed_logdensity)(x))
    if center is None:
        return x + STEP_SIZE * root @ root.T @ gradient, np.sqrt(2 * STEP_SIZE)
    h, z = np.sqrt(2 * STEP_SIZE), np.linalg.solve(root, x - center)
    return center + root @ (np.cos(h) * z + np.sin(h) * h / 2 * (root.T @ gradient + z)), np.sin(h)


def acceptance(x, y, root, center):
    """a(x, y) of our kernel: the noise that proposes y from x, injected."""
    mean, sd = proposal(x, root, center)
    noise = np.linalg.solve(root, y - mean) / sd
    kernel = hm.mala(skewed_logdensity, STEP_SIZE, hm.Dense(jnp.asarray(root)), center)
    with mock.patch("jax.random.normal", lambda key, shape, dtype: jnp.asarray(noise, dtype)):
        return float(kernel.step(jax.random.key(0), kernel.init(x))[1].acceptance_rate)


def log_proposal(x, y, root, center):
    mean, sd = proposal(x, root, center)
    return multivariate_normal(mean, sd**2 * root @ root.T).logpdf(y)


def pairs():
    rng = np.random.default_rng(5)
    return [(jnp.asarray(rng.normal(size=DIM)), jnp.asarray(rng.normal(size=DIM))) for _ in range(20)]


def log_ratio(x, y, root, center):
    target = float(skewed_logdensity(y) - skewed_logdensity(x))
    return target + log_proposal(y, x, root, center) - log_proposal(x, y, root, center)


@pytest.mark.parametrize("center", CENTERS)
def test_acceptance_is_that_of_the_dense_proposal(center, x64):
    root, checked = nonsymmetric_root(), 0
    for x, y in pairs():
        expected = min(0.0, log_ratio(x, y, root, center))
        np.testing.assert_allclose(np.log(acceptance(x, y, root, center)), expected, rtol=1e-8, atol=1e-8)
        checked += expected < 0
    assert checked >= 5


def imbalance(root, center=None):
    """Largest |log of pi(x) q(x,y) a(x,y) - log of pi(y) q(y,x) a(y,x)| over random pairs."""

    def log_flow(x, y):
        return float(skewed_logdensity(x)) + log_proposal(x, y, root, center) + np.log(acceptance(x, y, root, center))

    return max(abs(log_flow(x, y) - log_flow(y, x)) for x, y in pairs())


@pytest.mark.parametrize("center", CENTERS)
def test_detailed_balance(center, x64):
    assert imbalance(nonsymmetric_root(), center) < 1e-8


def test_a_dropped_proposal_ratio_breaks_detailed_balance(x64, monkeypatch):
    """Planted defect."""
    monkeypatch.setattr(import_module("householder_mcmc.mcmc.mala"), "_log_q_ratio", lambda noise, drifts: 0.0)
    assert imbalance(nonsymmetric_root()) > 0.1


def test_a_rotation_that_loses_speed_breaks_detailed_balance(x64, monkeypatch):
    """Planted defect."""

    def slower(*args):
        move, momentum = rotate(*args)
        return move, 0.97 * momentum

    monkeypatch.setattr(import_module("householder_mcmc.mcmc.mala"), "rotate", slower)
    assert imbalance(nonsymmetric_root(), CENTERS[1]) > 0.01


@pytest.mark.parametrize("step_size", [math.pi**2 / 8, 1e6])
def test_its_own_gaussian_is_drawn_at_once(step_size):
    """The longest step takes d = 20,000 to an independent draw: cosines of angles have standard deviation 0.007."""
    scales, center = jnp.logspace(-2, 2, 20_000), jnp.linspace(-1, 1, 20_000)
    kernel = hm.mala(lambda x: -jnp.sum(((x - center) / scales) ** 2) / 2, step_size, hm.Diagonal(scales), center)
    positions, info = chain(kernel, center, num_steps=20)
    assert info.acceptance_rate.min() > 0.9  # but for rounding
    z = (positions - center) / scales
    assert jnp.abs(jnp.mean(z[1:] * z[:-1], axis=1)).max() < 0.04
    np.testing.assert_allclose(jnp.mean(z**2, axis=1), 1, atol=0.05)


@pytest.mark.parametrize("step_size", [0.3, 2.0])
def test_a_center_that_is_not_finite_gives_mala(step_size, x64):
    """Also beyond the longest step of a rotation."""
    preconditioner, start = hm.Dense(jnp.asarray(nonsymmetric_root())), jnp.linspace(-1, 1, DIM)
    expected, expected_info = chain(hm.mala(skewed_logdensity, step_size, preconditioner), start)
    center = jnp.zeros(DIM).at[2].set(jnp.nan)
    found, info = chain(hm.mala(skewed_logdensity, step_size, preconditioner, center), start)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(info.acceptance_rate, expected_info.acceptance_rate, rtol=1e-9, atol=1e-12)


class WrongTranspose(NamedTuple):
    """Planted defect: L where L^T belongs."""

    root: jax.Array

    def apply(self, z):
        return self.root @ z

    def apply_transpose(self, g):
        return self.root @ g

    def to_dense(self):
        return self.root


def test_a_wrong_transpose_leaves_the_pushed_forward_path(x64):
    root, z = jnp.asarray(nonsymmetric_root()), jnp.linspace(-1, 1, DIM)
    right, _ = chain(hm.mala(skewed_logdensity, STEP_SIZE, hm.Dense(root)), root @ z)
    wrong, _ = chain(hm.mala(skewed_logdensity, STEP_SIZE, WrongTranspose(root)), root @ z)
    assert jnp.abs(right - wrong).max() > 0.1


def test_has_blackjaxs_shape():
    assert isinstance(hm.mala, type(blackjax.mala))
    kernel, state = hm.mala.build_kernel(), hm.mala.init(jnp.zeros(2), skewed_logdensity)
    assert type(state) is type(blackjax.mala.init(jnp.zeros(2), skewed_logdensity))
    state, info = kernel(jax.random.key(0), state, skewed_logdensity, 0.1, jnp.ones(2))
    assert info._fields == ("acceptance_rate", "is_accepted", "is_nonfinite")
