"""Backups of a running broker."""
