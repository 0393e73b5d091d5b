"""Appends: write batches, the commit log, and its three sinks (disk, log objects, followers).

The first append of an event-loop iteration schedules the flush, which lays out all frames and
writes them with one call per journal. A commit is one fsync for everything written before it.

A frame holds all batches of one partition in a write batch, up to 1 MiB: one index row and one
view instead of many, where many producers write to one partition.

Easy to get wrong:

- `acks=all` covers everything written by then, duplicates too: the response to a retry waits for
  the commit, since the original may not be durable yet.
- The received bytes of a batch are pinned until its write batch is written, since they are what
  is written. Nothing reads them afterwards.
"""
