"""Periodic work of a log: index files, checkpoints, retention, unloading, watching the disk.

`kafkawire.log.scheduler` runs it. A rolled journal gets its index file, then it can be cut and its
rows may be evicted from memory. Beyond `partitions.loaded.max`, `unloader` unloads partitions whose
state is entirely in SQL.

Retention moves log starts, in SQL first. Partitions with something in the journals are checked
every few minutes; for all others a query finds those whose oldest mapping row is due. Rows below a
log start are removed afterwards, when nothing uses them any more. A checkpoint waits for the commit
that covers its log position before it is written.
"""
