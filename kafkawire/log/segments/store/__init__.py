"""Segments of the data folder: files, rows, pins, reads, and the swap that replaces them."""
