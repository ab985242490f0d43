"""Processes for benchmarks, one on each core, and the commit that their numbers are of."""

import contextlib
import multiprocessing
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from unittest import mock

ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "NPROC": "1",
}


def commit() -> str:
    """The commit that the code is of, with "-dirty" after it where the code has changed since."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def pool(num_processes: int | None = None) -> Iterator[ProcessPoolExecutor]:
    """A pool of fresh processes, one on each core unless told otherwise, each with one thread.

    Two processes on two cores lose by more threads: with XLA's they take twice the time, with OpenBLAS's a small
    Cholesky factor is up to 50 times slower. A pool of two or three threads can also block for ever, because a batched
    LAPACK call holds a thread until others have done its batch. The libraries read these variables as they are
    imported, so they must be set before a process starts. What the user has set stays, and this process gets its own
    back.
    """
    spawn = multiprocessing.get_context("spawn")
    with mock.patch.dict(os.environ, ONE_THREAD | os.environ):
        with ProcessPoolExecutor(num_processes or os.cpu_count(), spawn) as processes:
            yield processes
