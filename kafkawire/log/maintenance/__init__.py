"""Periodic work of a log: retention and checkpoints."""
