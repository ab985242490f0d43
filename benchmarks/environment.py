"""Settings for benchmarks that run one process on each core: a package of such imports this first.

One thread a process: where two processes share two cores, XLA's further threads take twice the time, and OpenBLAS's
make a small Cholesky factor up to 50 times slower. A pool of two or three can also block for ever: each batched LAPACK
call of a program holds a thread until others have done its batch.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
os.environ.setdefault("NPROC", "1")
