"""The processes of benchmarks that run one on each core."""

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "NPROC": "1",
}


@contextlib.contextmanager
def pool(num_processes: int | None = None) -> Iterator[ProcessPoolExecutor]:
    """A pool of fresh processes, one on each core unless told otherwise, each with one thread.

    Where two processes share two cores, XLA's further threads take twice the time, and OpenBLAS's make a small Cholesky
    factor up to 50 times slower. A pool of two or three threads can also block for ever: each batched LAPACK call of a
    program holds a thread until others have done its batch. The libraries read these variables as they are imported, so
    they must be set before a process starts. What the user has set stays, and this process gets its own back.
    """
    spawn = multiprocessing.get_context("spawn")
    with mock.patch.dict(os.environ, ONE_THREAD | os.environ):
        with ProcessPoolExecutor(num_processes or os.cpu_count(), spawn) as processes:
            yield processes
