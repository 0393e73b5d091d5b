"""The commit log: journals, partitions, segments, recovery, and the ports to the machine.

`manager.Log` assembles all of it, `scheduler` runs its periodic work. Each package imports only
those listed before it:

- `io`: the ports to disk, clocks, threads and worker process, and what implements them.
- `journal`: the files that every append is written to first.
- `objects`: copies of frames that are stored in the tier before an answer (durability=s3).
- `partition`: where the batches of a partition are, and the listeners that learn of changes.
- `recovery`: turns the bytes found after any end of the process into partitions again.
- `append`: write batches, the commit log, group commit.
- `maintenance`: what happens periodically: index files, checkpoints, retention.
- `segments`: sorted files written from rolled journals.
- `manifest`: a description of the data folder for readers without a broker.
"""
