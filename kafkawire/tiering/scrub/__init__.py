"""Scrubbing: objects compared with metadata, damage found and repaired."""
