"""Settings for benchmarks that run one process on each core: a package of such imports this first.

OpenBLAS's threads make a small Cholesky factor up to 50 times slower, and XLA's gain nothing at these sizes. But its
pool must be larger than the number of batched LAPACK calls that a program makes at once: each blocks a thread until
others have done its batch, and where none is left the program never returns.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
os.environ.setdefault("NPROC", "8")
