"""Compaction: only the newest record of each key is kept (Kafka: the log cleaner).

A partition becomes a candidate when it was cut, when its settings change, or when a lag expires.
`plan` finds its dirty part, which follows the segments of class `cleaned/...`; journals are never
compacted. The worker puts the keys of the dirty part into an offset map of fixed size; where that
is full the clean part will end, at the end of a batch. Then it writes what remains: batches that
keep all their records are copied, others are written again in their codec with offsets, producer
and sequence unchanged. Small partitions are compacted together into a shared segment.

Tombstones, and markers of transactions without records left, get their delete horizon in the first
compaction that reads them (KIP-534) and are removed in a later one. Data of aborted transactions is
removed at once. Nothing is compacted after the first offset of an open transaction.

Differences from Kafka: batches go into the map whole or not at all; a batch whose records cannot be
read stays as it is, where Kafka stops cleaning the partition; the compression level of a rewritten
batch is the codec's default; the result becomes visible at once and not segment by segment, so
there must be disk space for it next to the old files.
"""
