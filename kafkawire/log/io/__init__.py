"""Ports to the machine and what implements them: disk, threads, worker process, event-loop time.

`ports` documents each method; tests use implementations in memory and in virtual time (tests/kit).
The event loop runs short steps only. Blocking calls (fsync, cold reads, slow writes, files, SQL)
run in the thread pools of `threads` and release the interpreter lock; loops over batches run in the
worker process, because a Python thread that computes would delay every client by milliseconds.
"""
