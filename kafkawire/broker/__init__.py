"""Services of one broker that request handlers use: topics, settings, partitions, response memory.

Topics are created, changed and deleted under one lock (`topics`): check -> SQL transaction ->
catalog -> catalog frames, many topics in one -> the commit that covers them -> response. So a
response is never sent before its change is durable. A deleted topic's name can be used again at
once: waiting Fetches are answered, its committed offsets are tombstoned, and journals without other
records are recycled. A topic created under the same name is a different one, with a new id, new
partition numbers, and offsets from 0.

Topics without overridden settings share one config object. A change of settings modifies the object
in place, so partitions need not be visited.
"""
