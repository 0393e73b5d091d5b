"""Reads of segments in the remote tier: blocks, cache, read-ahead and hedged requests.

`cold_reader` needs a partition's sparse index in the object and then its data; if the position is
known, both are requested at once, so the first byte takes two round trips at most. `loader` fills
`block_cache`, memory shared with the storage process: runs of up to eight blocks of 1 MiB per
request. A load belongs to no request and continues without one. `batch_stream` checks blocks
against the index when they are first read.

Easy to get wrong:

- A block stays in its place while any view of it exists, which a weak reference tells; clients
  that do not read may hold half of the cache, beyond that answers are copies.
- An object that is not there makes the row be read from SQL again: a merge may have replaced it.
- CORRUPT_MESSAGE is for what no retry can read (a damaged batch, a missing or short object), for
  exactly its offsets: clients report it and can seek past it. They would repeat
  KAFKA_STORAGE_ERROR for ever, so that is for refusals and outages.
"""
