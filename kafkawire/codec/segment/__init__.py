"""The file format of segments, version 1."""
