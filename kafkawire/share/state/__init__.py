"""The states of share partitions in `__share_group_state` (Kafka: ShareCoordinator).

A share coordinator belongs to one partition of the topic, and has the share partitions whose key
"GROUP:TOPIC ID:PARTITION" hashes to it. For each request the pure `machine` decides (a record and
an answer), `coordinator` appends the records of an event-loop iteration together, they are applied,
and answers leave after the commit. `service` finds the coordinator, `persister` asks it from this
or from another broker, in the messages of `wire`.

Easy to get wrong:

- The topic is not compacted: a snapshot makes the older records of its share partition redundant,
  and what no share partition needs any more is deleted from the log's start.
- The epochs that fence are the highest ever seen, not those of the last snapshot.
- The start offset of a share partition never goes back, unless it is initialized again.
- Batches are merged by delivery count and state, not by age: a load may apply a change twice.
"""
