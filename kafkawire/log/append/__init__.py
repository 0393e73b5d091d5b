"""Appends: write batches, the commit log, and group commit."""
