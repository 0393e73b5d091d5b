"""Ports to the machine and what implements them: disk, threads, worker process, event-loop time.

`ports` documents each method; tests use implementations in memory and in virtual time
(tests/kit). The event loop does short things only. What blocks (fsync, cold reads, slow writes,
files, SQL) runs in five thread pools (commit, write, read, warm, files) whose calls release the
interpreter lock; what loops over batches runs in the worker process, because a Python thread that
computes would delay every client by milliseconds.
"""
