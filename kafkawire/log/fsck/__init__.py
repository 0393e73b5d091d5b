"""Checking a data folder nobody serves: journals, segments, rows and offsets against each other."""
