"""Compaction: only the newest record of each key is kept."""
