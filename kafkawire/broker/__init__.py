"""Services of one broker that request handlers use: topics, settings, partitions, response memory.

Topics are created, changed and deleted under one lock (`topics`): check -> SQL transaction ->
catalog -> catalog frames, many topics in one -> the commit that covers them -> answer. So no
answer is ahead of the disk. A deleted topic's name is free at once: waiting Fetches are answered,
its committed offsets are tombstoned, and journals that hold nothing else are recycled. The same
name created again is another topic: new id, new partition numbers, offset 0.

Topics without settings of their own share one config object; a change of settings changes the
object in place, so partitions need not be visited.
"""
