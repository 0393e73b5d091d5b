"""Replication of the log to followers on other machines (durability=replicated).

A follower has a copy of all journals of a broker, byte for byte at the same positions
(kafkawire.replication), so what is committed is a log position. The in-sync followers are in SQL
(kafkawire.offsets.catalog.replica_sets). `in_sync` and `choice` are pure; `commits` belongs to the
commit log, which calls it.

Easy to get wrong:

- Bytes are sent once a write batch was written completely: from then on a position is never written
  again by this process. They are sent while the own fsync runs.
- What a frame states as committed must be true of each copy that has the frame, not only of the own
  disk: recovery of a copy takes bytes before it that are missing for damage.
- Journals are kept until their records are uploaded, since a follower has no segments
  (kafkawire.log.maintenance.retention).
"""
