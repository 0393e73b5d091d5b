"""Transactions: the pure state machine of the coordinator, and its log (KIP-98, 360, 447, 890).

A coordinator belongs to one partition of `__transaction_state`. For each request: `shard` decides
(records, effects, an answer; nothing changes yet), the records are appended, the steps are applied,
and after the commit that covers them the answer leaves and markers are sent. `transaction` has the
steps of one transactional id, `end_transaction`, `add_partitions` and `init_producer` the checks of
each request, `records` the bytes, `queries` what operators ask, `wire` the versions of the APIs.

Easy to get wrong:

- CONCURRENT_TRANSACTIONS while markers are under way comes before every check of the producer:
  where a new producer id is about to take over, the old one is still stored.
- A marker must not leave before its outcome is durable: a partition that is committed while the
  coordinator's record is lost would be committed alone.
- One bump per fence. Under transaction version 2 ending bumps too, so fencing must not do it again
  (KAFKA-19367).
- A fence or a timeout follows the cluster's transaction.version, whatever version the client
  speaks; EndTxn and AddPartitionsToTxn follow their own version.
- Markers are written again after a load, with a higher coordinator epoch: duplicates are legal.
"""
