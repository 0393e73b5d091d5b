"""Kafka's protocol from the other side, blocking: for the commands and for Spark's tasks.

`connection` is one socket to one broker, `cluster` finds the broker that leads a partition or
coordinates a group, `offsets` asks for ends, times and what groups committed, `fetching` reads
record batches. One request at a time on each connection, in the newest version both sides know;
nothing runs in the background, nothing is tried again. Works against any Kafka. Every error is a
ClientError, one sentence. Imports codec and messages, nothing of the broker.
"""
