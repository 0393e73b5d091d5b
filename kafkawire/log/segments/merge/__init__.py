"""Merging: small segments become larger ones."""
