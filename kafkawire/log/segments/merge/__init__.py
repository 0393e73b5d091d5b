"""Merging: small segments become larger ones, dead bytes are removed.

Segments are rewritten when half of one is dead, when dead bytes have existed for
`segment.dead.max.ms`, and when there are enough small ones of a class. Merges are size-tiered: a
byte is written fewer than three times, and there are fewer than 200 segments in a GiB. Segments of
the remote tier are merged where the saved requests are worth the download.
"""
