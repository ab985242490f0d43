import os
import shutil
import tempfile
from pathlib import Path

# XLA's threads: two batched LAPACK calls at once can block a smaller pool for ever.
os.environ.setdefault("NPROC", "8")
# OpenBLAS's threads spin where other processes share the cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

# Most tests spend their time on compilation. Without XLA's optimisations it takes a sixth of it in the quick ones, and
# most slow ones take three fifths of the time in all.
_QUICK_TO_COMPILE = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"

# Programs of this run, which its processes share: a sixth of the time. The first process makes the folder, and removes
# it.
_IS_FIRST = "TESTED_PROGRAMS" not in os.environ
if _IS_FIRST:
    os.environ["TESTED_PROGRAMS"] = tempfile.mkdtemp()
_PROGRAMS = os.environ["TESTED_PROGRAMS"]
jax.config.update("jax_compilation_cache_dir", _PROGRAMS)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def pytest_unconfigure():
    if _IS_FIRST:
        shutil.rmtree(_PROGRAMS)


def pytest_configure(config):
    """Before XLA reads its flags: compile quickly, unless tests may be chosen that run for longer than that."""
    if any(f"not {marker}" in config.option.markexpr for marker in ("slow", "optimised")):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_QUICK_TO_COMPILE}".strip()


# A compiled program takes a few memory maps. Linux lets a process have 65,530, and one that asks for more crashes.
_MANY_MAPS = 30_000


@pytest.fixture(autouse=True, scope="module")
def not_too_many_programs():
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_text().splitlines()) > _MANY_MAPS:
        jax.clear_caches()


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    """The dtype of positions: float32 without x64, float64 with it."""
    with jax.enable_x64(request.param == "float64"):
        yield jnp.dtype(request.param)


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def keep_precision():
    """PyMC turns x64 on for the whole process."""
    before = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture(params=["eager", "jit", "vmap"])
def transform(request):
    """A function transformed in a way that must not change its values."""
    return {
        "eager": lambda f: f,
        "jit": jax.jit,
        "vmap": lambda f: lambda *xs: jax.tree.map(lambda y: y[0], jax.vmap(f)(*jax.tree.map(lambda x: x[None], xs))),
    }[request.param]


@pytest.fixture
def german_credit():
    """Log-density of the weights (25,) of a logistic regression, and their reference mean, sd and Monte Carlo error."""
    from benchmarks.posteriors.problems import PROBLEMS

    problem = PROBLEMS["German credit, d = 25"]()
    data = np.load(Path(__file__).parents[1] / "benchmarks" / "data" / "german_credit.npz")
    return problem.logdensity, problem.means, np.sqrt(problem.variances), data["weights_mcse"]
