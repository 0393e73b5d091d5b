"""The Fetch path: planned, waited for, read, and sent as views.

`handler` serves a request, `request` is one Fetch until it is answered, `long` serves those with
too many partitions for one event-loop iteration. Bytes that are in memory already never wait for
a disk or for the remote tier.
"""
