"""The file format of segments, version 1 (docs/segment-format.md).

`format` writes and reads a segment; `layout`, `directory`, `index`, `origin`, `lost` and `keys` are
its sections. A section of an unknown type is skipped by readers.
"""
