"""Results on disk: what is written is read, and nothing else is made from a file."""

import dataclasses
import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import householder_mcmc as hm
from householder_mcmc.adaptation.samplers import SAMPLERS
from householder_mcmc.sampling.files import Folder, read_tree, write_tree


class Pair(NamedTuple):
    left: object
    right: object


@pytest.fixture(scope="module")
def result():
    model = hm.Model(lambda x: -0.5 * jnp.sum(x**2), np.zeros(3))
    return hm.sample(model, 0 * jnp.ones(3), num_chains=2, num_warmup=50, num_draws=9, progress=False)


def test_a_tree_and_back(tmp_path):
    tree = {
        "a": [jnp.arange(3), (2.5, None, "text")],
        "map": hm.LowRank(jnp.ones(3), jnp.eye(1, 3), jnp.ones(1)),
        "pair": Pair(np.float32(1), {"b": True}),
        "key": jax.random.key(3),
        "other key": jax.random.key(4, impl="rbg"),
    }
    write_tree(tmp_path / "tree.npz", tree)
    found = read_tree(tmp_path / "tree.npz")
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    assert isinstance(found["map"], hm.LowRank) and isinstance(found["pair"], Pair)
    for name in ("key", "other key"):
        assert str(found[name]) == str(tree[name])
    np.testing.assert_array_equal(found["a"][0], [0, 1, 2])
    assert found["pair"].left.dtype == np.float32


def test_a_result_and_back(result, tmp_path):
    path = tmp_path / "run.npz"
    hm.save(path, result)
    found = hm.load(path)
    for name in ("trace", "state", "parameters", "warmup_info"):
        one, other = getattr(result, name), getattr(found, name)
        assert jax.tree.structure(one) == jax.tree.structure(other)
        jax.tree.map(np.testing.assert_array_equal, one, other)
    assert found.plan == result.plan and found.notes == result.notes and found.warnings == result.warnings
    assert str(found.summary()) == str(result.summary())
    with pytest.raises(ValueError, match=r"loaded without its model: hm.load\(path, model\)"):
        found.extend(3, progress=False)
    kernel = hm.hmc(lambda x: -0.5 * jnp.sum(x**2), **found.parameters)
    assert kernel.step(jax.random.key(0), kernel.init(jnp.zeros(3)))[0].position.shape == (3,)
    with np.load(path, allow_pickle=False) as file:
        assert all(file[name].dtype != object for name in file)


def test_a_file_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "tree.npz"
    write_tree(path, {"a": 1})

    def fail(file, **arrays):
        file.write(b"half")
        raise OSError("no space")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="no space"):
        write_tree(path, {"a": 2})
    assert read_tree(path)["a"] == 1 and [file.name for file in tmp_path.iterdir()] == ["tree.npz"]


@pytest.mark.parametrize("name", [["os", "system"], ["subprocess", "Popen"], ["householder_mcmc", "two_ended"]])
def test_a_file_makes_named_tuples_alone(tmp_path, name):
    path = tmp_path / "bad.npz"
    text = json.dumps({"class": name, "fields": {}})
    np.savez(path, structure=np.array(text))
    with pytest.raises(ValueError, match="the file needs the NamedTuple"):
        read_tree(path)


def test_what_cannot_be_saved(result, tmp_path):
    with pytest.raises(TypeError, match="a set cannot be saved"):
        write_tree(tmp_path / "a.npz", {"a": {1, 2}})
    with pytest.raises(TypeError, match=r"keys must be texts in what is saved, got \[1\]"):
        write_tree(tmp_path / "a.npz", {1: 2})
    with pytest.raises(TypeError, match="hm.save takes a path and a Result, got a int"):
        hm.save(tmp_path / "a.npz", 3)
    assert not list(tmp_path.iterdir())
    np.savez(tmp_path / "b.npz", x=np.ones(3))
    with pytest.raises(ValueError, match="is no result of householder_mcmc"):
        hm.load(tmp_path / "b.npz")


@pytest.mark.parametrize("shape", [(), (2,), (2, 0)])
def test_a_folder_grows(tmp_path, shape):
    """Blocks one after the other; one that is written again from an earlier draw on replaces those after it."""
    rows = np.arange(30 * np.prod(shape, dtype=int), dtype=np.float32).reshape(30, *shape)
    folder = Folder(tmp_path)
    for first, last in ((0, 1), (1, 12), (12, 20), (9, 30)):
        folder.write({"a/b": {"c": rows[first:last]}}, first)
        found = folder.read({"a/b": {"c": rows[:1]}}, last)
        np.testing.assert_array_equal(found["a/b"]["c"], rows[:last])
    assert folder.read({"a/b": {"c": rows[:1]}}, 0)["a/b"]["c"].shape == (0, *shape)
    assert [file.name for file in tmp_path.iterdir()] == ["a%2Fb.c.npy"]


def test_a_sampler_of_ones_own_is_given_again(result, tmp_path):
    """It is not saved, as functions are not."""
    sampler = SAMPLERS["hmc"]._replace(target_acceptance_rate=0.7)
    own = dataclasses.replace(result, plan=result.plan._replace(sampler=sampler))
    hm.save(tmp_path / "run.npz", own)
    with pytest.raises(ValueError, match=r"a sampler of its own: hm.load\(path, model, sampler\)"):
        hm.load(tmp_path / "run.npz")
    assert hm.load(tmp_path / "run.npz", sampler=sampler).plan == own.plan
