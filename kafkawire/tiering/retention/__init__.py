"""Retention of the tier: local files that have been uploaded, and remote objects."""
