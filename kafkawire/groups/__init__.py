"""Consumer groups: pure state machines, and the coordinator that drives them.

A coordinator belongs to one partition of `__consumer_offsets`. For each request: `shard` decides
(records, changes, replies, timers; nothing changes yet), `coordinator` appends the records all or
nothing, the changes are applied, replies leave after the commit that covers them. `load` fills a
shard from `snapshot` and the log after it. A damaged range of that log is skipped and reported.
Commits in it whose keys can still be read are answered with KAFKA_STORAGE_ERROR until the group
commits again. All modules except activity, coordinator, event_log, load, service and timers are
pure.

A TxnOffsetCommit makes `pending` offsets, which the marker of the transaction makes current or
drops. The log's transactional appends and the transaction coordinator are ports of
`model.transactional`.

Easy to get wrong:

- Reads wait, too: a DescribeGroups or OffsetFetch after an uncommitted change shows that change, so
  its response is sent after that commit.
- A snapshot that is ahead of the log is deleted before anything is appended, and one that may be of
  another leader's time is ignored (kafkawire.coordination.loader).
- Tombstones for a deleted topic are pending only until their batch is committed. Otherwise a later
  load would delete the commits of a new topic of that name.
- Lengths of strings are checked when the request arrives: a flexible one may have longer strings
  than a record can store.
- A marker in `__consumer_offsets` is written by `GroupService.write_marker` only.
- A snapshot must be younger than delete.retention.ms.
- A heartbeat while the coordinator loads succeeds, as in Kafka: the session starts after loading.
- If a commit of the log fails, applied changes may be lost: the coordinator discards its state,
  answers NOT_COORDINATOR, and loads again.
"""
