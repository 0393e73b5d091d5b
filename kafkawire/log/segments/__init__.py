"""Segments: immutable files of sorted batches that are cut from the journals."""
