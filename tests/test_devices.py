"""Many devices and many processes: the numbers of one, and little said between them."""

import itertools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from on_devices import DIM, NUM_CHAINS, RANK

pytestmark = pytest.mark.slow

NOTHING = {"always": [], "at times": []}


def start(*arguments, num_devices=1):
    quick_to_compile = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    flags = f"--xla_force_host_platform_device_count={num_devices} {quick_to_compile}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1", "XLA_FLAGS": flags}
    command = [sys.executable, Path(__file__).with_name("on_devices.py"), *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def result(process):
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return json.loads(output.splitlines()[-1])


def sizes(collectives):
    return [size for size, _ in collectives]


def check_same_numbers(found):
    """The numbers are those of one device, to float64 rounding that a few steps have enlarged. The chains moved."""
    assert found["error"] < 1e-8 and found["error of HMC"] < 1e-8
    assert 0.1 < found["acceptance"] and found["distance"] > 0.1


def check_trajectories_along_the_dimension(*each):
    """O(rank chains) numbers where a trajectory begins, with a center or without, and as many at each step."""
    for collectives, when in itertools.product(each, ("always", "at times")):
        assert RANK * NUM_CHAINS < sum(sizes(collectives[when])) < 6 * (RANK + 1) * NUM_CHAINS


def test_sharded_dimension():
    """A step sends O(rank chains + rank^2) numbers, and no array of size d but, at times, to a QR factorisation.

    Not at every step: rounds of mending and, every tenth step, of orthonormalising the averaged eigenvectors.
    """
    found = result(start("shard", "dim", "eigen_latest", "eigen", num_devices=8))
    check_same_numbers(found)
    assert found["share of positions"] == [NUM_CHAINS, DIM // 8] and found["share of the map"] == [RANK, DIM // 8]

    small = RANK * NUM_CHAINS + RANK**2 + NUM_CHAINS
    assert 10 * small < DIM / 8  # a device's share of d numbers would be too many
    for collectives in found["adaptive"].values():
        assert RANK * NUM_CHAINS < sum(sizes(collectives["always"])) < 10 * small
        at_times = [size for size, operation in collectives["at times"] if "qr" not in operation]
        assert sum(at_times) < 2 * small
    assert RANK * NUM_CHAINS < sum(sizes(found["frozen"]["always"])) < 6 * small and not found["frozen"]["at times"]
    check_trajectories_along_the_dimension(found["frozen HMC"], found["frozen HMC, trials"])


def check_trials_of_sharded_chains(collectives):
    """One flag in the loop over steps, and one in that over trials."""
    assert not collectives["always"] and sizes(collectives["at times"]) == [1, 1]


def test_sharded_chains():
    """Frozen chains send nothing, not even whether a trajectory has ended, since they share its time.

    Those that may try shorter steps send one flag a step: whether any chain goes on.

    Learning ones send sums over the chains: O(rank d) numbers, however many chains.
    """
    found = result(start("shard", "chains", "eigen_latest", num_devices=8))
    check_same_numbers(found)
    assert found["share of positions"] == [NUM_CHAINS // 8, DIM] and found["share of the map"] == [RANK, DIM]
    assert found["frozen"] == found["frozen HMC"] == NOTHING
    check_trials_of_sharded_chains(found["frozen HMC, trials"])
    learning = found["adaptive"]["eigen_latest"]
    assert RANK * DIM < sum(sizes(learning["always"])) < (RANK + 4) * DIM
    assert sum(sizes(learning["at times"])) <= DIM  # the mean of the chains, where the learner starts anew
    assert max(sizes(learning["always"])) < NUM_CHAINS * DIM


@pytest.mark.parametrize("axis", ["dim", "chains"])
def test_two_ended_on_many_devices(axis):
    """With d sharded, a block of ten steps sends products of its rows; with chains sharded, sums of its draws."""
    found = result(start("shard", axis, "two_ended", num_devices=8))
    check_same_numbers(found)
    assert found["solves a Gaussian"]
    collectives = found["adaptive"]["two_ended"]
    always, at_times = sum(sizes(collectives["always"])), sum(sizes(collectives["at times"]))
    if axis == "dim":
        assert RANK * NUM_CHAINS < always < 10 * (RANK * NUM_CHAINS + NUM_CHAINS)
        assert RANK**2 < at_times < 1.6 * (RANK + 64) ** 2  # the Gram matrix of 65 rows, and products with it
        check_trajectories_along_the_dimension(found["frozen HMC"], found["frozen HMC, trials"])
    else:  # the position of a good chain and its score; at most 64 sums of draws and of scores, however many chains
        assert DIM < always < 2.1 * DIM and 2 * 60 * DIM < at_times < 1.01 * (2 * 64 * DIM)
        assert found["frozen"] == found["frozen HMC"] == NOTHING
        check_trials_of_sharded_chains(found["frozen HMC, trials"])


def alone_and_together(function):
    """The results of one process, and of each of two that share the work."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    alone = result(start(function, address, 1, 0))
    return alone, *map(result, [start(function, address, 2, index) for index in range(2)])


def test_two_processes_learn_one_map():
    alone, first, second = alone_and_together("join")
    assert first == second
    assert (first.pop("devices"), first.pop("chains here")) == (2, 2)
    assert (alone.pop("devices"), alone.pop("chains here")) == (1, 4)
    for name, value in alone.items():
        np.testing.assert_allclose(first[name], value, rtol=1e-9, atol=1e-9)


def test_two_processes_share_one_run():
    """Each has two of the four chains, and all draws in the end: those of one process, but for rounding."""
    alone, first, second = alone_and_together("sample")
    assert first == second
    assert (first.pop("chains here"), alone.pop("chains here")) == (2, 4)
    assert first.pop("warnings") == alone.pop("warnings")
    assert np.shape(first["draws"]) == (4, 60, 6)
    for name, value in alone.items():
        np.testing.assert_allclose(first[name], value, rtol=1e-6, atol=1e-6)
