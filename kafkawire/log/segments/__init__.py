"""Segments: immutable files of sorted batches that are written from the journals.

`manager` assembles the parts. `file` is the format on disk, `store` has the segments that exist,
their readers, and the swap that replaces them. `cut` writes segments from journals, `merge` makes
few of many, `compact` keeps the newest record of each key, `skip` gives up damaged batches. All of
them replace segments by the same protocol (`store.swap`): rows STARTED -> files written and synced
-> one transaction that makes them LIVE and replaces mapping rows -> memory. If the transaction's
outcome is unknown, the rows are read before anything else happens. It fails if the mapping rows
changed meanwhile, and the new files are discarded.

Files that no mapping row needs go after `file.delete.delay.ms` when no reader uses them, and
their rows after them: a file without a row is never deleted. What loops over batches runs in the
worker process (kafkawire.log.io.worker_jobs).
"""
