"""Compaction: only the newest record of each key is kept (Kafka: the log cleaner).

A partition becomes a candidate when it was cut, when its settings change, or when a lag runs out.
`plan` finds its dirty part, which follows the segments of class `cleaned/...`; journals are never
compacted. The worker puts the keys of the dirty part into an offset map of fixed size; where that
is full the clean part will end, at a batch. Then it writes what stays: batches that keep all
their records as they are, others again in their codec with offsets, producer and sequence
unchanged. Small partitions are compacted together into a segment they share.

Tombstones, and markers of transactions without records left, get their delete horizon in the
first compaction that meets them (KIP-534) and go in one after it. Data of aborted transactions
goes at once. Nothing is compacted after the first offset of an open transaction.

Differences from Kafka: batches go into the map whole or not at all; a batch whose records cannot
be read stays as it is, where Kafka stops cleaning the partition; the compression level of a
rewritten batch is the codec's own; the result becomes visible at once and not segment by segment,
so there must be room for it next to the old files.
"""
