"""The pure half of the transaction coordinator: states, steps, decisions, bytes and queries.

`shard` decides and applies. `transaction` has the steps of one transactional id, `end_transaction`,
`add_partitions` and `init_producer` the checks of each request, `records` the bytes, `queries` what
operators ask, `wire` the versions of the APIs. No clock, no log, no network.
"""
