"""Reads of segments in the remote tier: blocks, cache, read-ahead and hedged requests."""
