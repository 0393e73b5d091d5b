"""One partition in memory: its indexes, its producers, and the plan of a read.

Partitions are loaded at their first use, by `loader`: a new topic is a row of the catalog and no
object. Requests that use one at the same time share one query; a Produce waits as it does for a
full log, a Fetch as it does for records. If loading fails, requests get KAFKA_STORAGE_ERROR for
half a second, then it is tried again. Periodic work visits partitions that are dirty, have
producers, lie in journals, or are due in SQL, never all of them.

Easy to get wrong:

- Mapped memory is not resident memory. Only the newest journals are sent as views of their
  mapping, because a page that must be read from disk would stop every client.
- The offset index and the segments never contain the same batch: a cut moves a partition's border,
  its segment rows and its index rows in one step.
- An aborted transaction is known in memory while its marker lies in the journals, and in the state
  of every segment that it overlaps. Both are taken with the batches that are read, never
  afterwards: a cut or a compaction in between would lose them.
- The last stable offset may lie within a frame, the high watermark never does.
"""
