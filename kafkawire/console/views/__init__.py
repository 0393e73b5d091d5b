"""Questions to a cluster, answered as typed records; the pages and other front ends show them.

A function takes a Cluster of kafkawire.client, which any Kafka answers, or a snapshot made of it.
All block, and raise ClientError with one sentence. Where the broker is kafkawire, `own` adds
what only it knows. A function that changes something checks by itself whether it may.
"""
