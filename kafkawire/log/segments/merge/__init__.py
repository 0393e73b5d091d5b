"""Merging: small segments become larger ones, dead bytes are dropped.

Segments are rewritten when half of one is dead, when dead bytes have stayed for
`segment.dead.max.ms`, and when enough small ones of a class have gathered. Merges are
size-tiered: a byte is written fewer than three times, and fewer than 200 segments lie in a GiB.
Segments of the remote tier take part where the requests saved are worth the reading.
"""
