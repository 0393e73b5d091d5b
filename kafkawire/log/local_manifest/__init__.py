"""The local manifest: which segments the data folder has, for readers without a broker.

It has the format of the bucket's manifest (docs/manifest-format.md). `service` is notified of
swaps, log starts and topics when SQL and memory have them, and a second later one delta describes
their state by then; nothing else waits for it. A delta describes one moment without a swap in
progress: every offset below a partition's end is in exactly one segment.
kafkawire.tiering.publishing publishes the same deltas in the bucket.
"""
