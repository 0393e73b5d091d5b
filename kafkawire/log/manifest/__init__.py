"""The local manifest: which segments the data folder has, for readers without a broker.

It has the format of the bucket's manifest (docs/manifest-format.md). `service` is notified of
swaps, log starts and topics when SQL and memory have them, and a second later one delta says how
they are by then; no other part waits for it. A delta describes one moment with no swap under way:
every offset below a partition's end is in exactly one segment. Nothing of it is synced. A start
believes it only after a clean end, with every checksum right and the counts that SQL has;
otherwise it is rebuilt in pages next to the old one, and one rename replaces it. What a delta
contains is also what kafkawire.tiering.manifest publishes in the bucket.
"""
