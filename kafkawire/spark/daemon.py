"""The process from which Spark's Python workers fork, with their modules already imported.

Spark starts one for each kind of worker (`spark.python.daemon.module`), with the worker's module as
its argument. pyspark's own imports nothing before it forks, so each worker would import pyarrow,
numba and the kernels again: 0.6 s of a core, more where numba has not compiled them yet. Here it
is 2 ms. What is imported before a fork must not start threads, whose locks would be held for ever
in the child: a test checks that.

Two things more cost each task: pyspark collects garbage after it, 75 ms with all these modules in
memory, unless they are frozen; and buffers of megabytes that go back to the kernel come again page
by page, a tenth of a task's time, unless malloc and Arrow's own allocator keep them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import sys
from typing import Any

_TASKS = "pyspark.worker"
"""What runs tasks; the other modules plan, on the driver, and import what they need themselves."""
PRELOADED = (
    _TASKS,
    "pyarrow.parquet",
    "boto3",
    "kafkawire.spark.decode.decoder",
    "kafkawire.spark.source.read_task",
)
_SETTINGS = {
    "OMP_NUM_THREADS": "1",  # numpy's OpenBLAS: no threads; Spark sets it for its workers too
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow's jemalloc: no thread either
    "MIMALLOC_PURGE_DELAY": "-1",  # pyarrow's mimalloc: keep what is freed, not for 10 ms only
}
"""Of the environment, which libraries read when they are loaded. What Arrow keeps is bounded by a
task's peak (writing.WAITING_BYTES), and goes with the worker, a minute after its last task."""
_KEPT_BYTES = 256 << 20
"""Free memory that malloc keeps: more than a task has in use at a time."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_MMAP_BYTES = 32 << 20
"""The most that glibc takes for it: larger ones come from the kernel."""


def preload() -> None:
    """Import what a task needs; what cannot be, for any reason, is left to the task: that says why,
    and a daemon that ends only makes Spark wait for it."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    for name in PRELOADED:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    keep_memory()


def keep_memory() -> None:
    """Tell glibc to keep what is freed; another libc does as it likes."""
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def main() -> None:
    """Run pyspark's own daemon after the imports."""
    from pyspark import daemon

    if sys.argv[1:2] == [_TASKS]:
        preload()
    work: Any = daemon.worker

    def worker(sock: object, authenticated: bool) -> int:
        try:
            code: int = work(sock, authenticated)
        except BrokenPipeError:  # its task was ended, which is not worth a traceback
            return 1
        return code

    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    main()
