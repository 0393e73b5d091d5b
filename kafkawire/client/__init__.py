"""A blocking Kafka client, for the commands and for Spark tasks.

`connection` is one socket to one broker, `cluster` finds the broker that leads a partition or
coordinates a group or transaction, `offsets` reads ends, offsets by time and committed offsets,
`fetching` reads record batches, `producing` appends them, `transactions` has the requests of a
transactional producer. Each connection has one request at a time, in the newest version both sides
support, without background work or retries. Works with any Kafka broker. Every error is a
ClientError with one sentence. Imports only codec and messages.
"""
