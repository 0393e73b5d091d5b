"""Consumer groups: pure state machines, and the coordinator that drives them.

A coordinator belongs to one partition of `__consumer_offsets`. For each request: `shard` decides
(records, changes, replies, timers; nothing changes yet), `append` writes the records all or
nothing, the changes are applied, `replies` leave after the commit that covers them. OffsetCommits
of one write batch share a record batch. `load` fills a shard from `snapshot` and the log after it.
A damaged range of that log is skipped and reported. Commits in it whose keys can still be read are
answered with KAFKA_STORAGE_ERROR until the group commits again, because -1 would make consumers
skip records. All modules except append, coordinator, load, replies, service, snapshot and timers
are pure.

A TxnOffsetCommit makes `pending` offsets, which the marker of the transaction makes current or
drops. The log's transactional appends and the transaction coordinator are ports of
`model.transactional`.

Easy to get wrong:

- Reads wait, too: a DescribeGroups or OffsetFetch after an uncommitted change shows that change, so
  its response is sent after that commit.
- A snapshot that is ahead of the log is deleted before anything is appended: with `flush=os` a
  crash can lose records it covers, and their offsets will be assigned again.
- Tombstones for a deleted topic are pending only until their batch is committed. Otherwise a later
  load would delete the commits of a new topic of that name.
- A stored string has at most 32,767 bytes, one in a flexible request may have more: lengths are
  checked when the request arrives, otherwise a group could not be stored when its rebalance
  completes.
- A marker in `__consumer_offsets` is written by `GroupService.write_marker` only, and answered when
  its pending offsets are current or dropped. Otherwise the group's next commits would mix with them
  (KAFKA-17507).
- A snapshot must be younger than delete.retention.ms: compaction then removes tombstones and
  markers, and an older snapshot would restore what they deleted or ended.
- A snapshot may be of a time before another broker led the partition: the loader compares leader
  epochs, and ignores an old one (kafkawire.coordination.loader).
- A heartbeat while the coordinator loads succeeds, as in Kafka: the session starts after loading.
- If a commit of the log fails, applied changes may be lost: the coordinator discards its state,
  answers NOT_COORDINATOR, and loads again.
"""
