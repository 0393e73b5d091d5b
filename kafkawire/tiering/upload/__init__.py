"""Uploads: which segments, in which order, and how far each partition has got."""
