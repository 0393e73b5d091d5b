"""Planned moves of partitions from their leader to another broker."""
