"""The Fetch path: plan, wait, read, and send views.

`handler` serves a request, `request` is one Fetch until it is answered, `long` serves those with
too many partitions for one event-loop iteration. Bytes in memory never wait for a disk or for the
remote tier.
"""
