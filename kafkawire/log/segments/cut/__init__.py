"""Cutting: sorted segments are written from rolled journals.

A journal is rolled when it is full, when it has held something for `journal.roll.ms` or a topic's
`segment.ms`, when a partition has its topic's `segment.bytes` in the journals, and in time for half
of the least `tiering.max.lag.ms` in it. It is cut when it is not hot any more, when it has been
rolled for as long again, or at once for `segment.bytes`. So a record is in a segment within bounded
time, and a journal that is being read stays in memory for its readers.

The worker checks every batch. A partition with a damaged one is reported and stays in its journals
until the range is given up (kafkawire.log.recovery). Tiered and local partitions do not share
segments; small partitions of one class do, so ten thousand slow ones make a handful of files.

Nothing at or after the last stable offset is cut, so the outcome of every transaction in a segment
is known when it is written, though its marker may come in a later one. The segment's state lists
the aborted ones that overlap it.
"""
