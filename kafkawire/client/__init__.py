"""A blocking Kafka client, for the commands and for Spark tasks.

`connection` is one socket to one broker, `cluster` finds the broker that leads a partition or
coordinates a group, `offsets` asks for ends, times and what groups committed, `fetching` reads
record batches. One request at a time on each connection, in the newest version both sides support;
nothing runs in the background, nothing is retried. Works with any Kafka broker. Every error is a
ClientError, one sentence. Imports codec and messages, nothing of the broker.
"""
