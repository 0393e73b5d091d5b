"""Reads of segments in the remote tier: blocks, cache, read-ahead and hedged requests.

`cold_reader` needs a partition's sparse index in the object and then its data; if the position is
known, both are requested concurrently. The first byte takes at most two round trips. `loader` fills
`block_cache`, memory shared with the storage process: runs of up to eight blocks of 1 MiB per
request. A load is independent of the request that started it and continues if that is cancelled.
`batch_stream` checks blocks against the index when they are first read. `readers` has the positions
of readers of remote data, by which the cache decides what to evict.

Easy to get wrong:

- A block is not moved or evicted while a view of it exists, which a weak reference detects. Slow
  clients may hold half of the cache; beyond that responses are copies.
- If an object is missing, the row is read from SQL again, because a merge may have replaced it.
- CORRUPT_MESSAGE is returned only for offsets that no retry can read (a damaged batch, a missing or
  short object); clients report it and can seek past it. Clients repeat KAFKA_STORAGE_ERROR forever,
  so it is returned for refusals and outages.
"""
