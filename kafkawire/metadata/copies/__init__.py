"""Whole copies of the metadata: exports, and catalogs that a restore inserts."""
