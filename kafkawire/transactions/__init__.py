"""Transactions: the coordinator, its log and its markers (KIP-98, 360, 447, 890).

A coordinator belongs to one partition of `__transaction_state`. For each request the pure machine
decides (records, effects, an answer; nothing changes yet), `coordinator` appends the records, the
steps are applied, and after the commit that covers them the answer leaves and `marker_sender` sends
markers. `coordinator_log` fills a machine from a snapshot and the log after it.

Easy to get wrong:

- CONCURRENT_TRANSACTIONS while markers are outstanding comes before every check of the producer.
- A marker must not leave before its outcome is durable.
- One bump per fence (KAFKA-19367).
- A fence or a timeout follows the cluster's transaction.version, whatever version the client
  speaks; EndTxn and AddPartitionsToTxn follow their own version.
- Markers are written again after a load, with a higher coordinator epoch: duplicates are legal.
"""
