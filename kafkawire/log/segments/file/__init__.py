"""Segment files: opened, written and verified."""
