"""Periodic work of a log: index files, checkpoints, retention, unloading, watching the disk.

`kafkawire.log.scheduler` runs it. A rolled journal gets its index file, then it can be cut and its
rows may leave memory. Beyond `partitions.loaded.max`, `unloader` removes partitions of which
memory knows nothing that SQL does not.

Retention moves log starts, in SQL first. Partitions with something in the journals are checked
every few minutes; for all others SQL is asked whose oldest mapping row is due. Rows below a log
start are removed afterwards, and by then mean nothing. A checkpoint waits for the commit that
covers its log position before it is written.
"""
