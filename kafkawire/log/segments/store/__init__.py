"""Segments of the data folder: their files, rows, readers, and the swap that replaces them."""
