"""Segments with a key index, for tests of readers."""

from __future__ import annotations

from kafkawire.log.segments.file.key_port import key_collector
from tests.kit.spark.files import Files, Share


def indexed(*shares: Share) -> bytes:
    """The body of the key index of a segment."""
    collector = key_collector(decompress=True)
    assert collector is not None, "numba is not installed"
    for share in shares:
        collector.begin(share.number)
        collector.add(share.batches)
        collector.end()
    body = collector.section()
    collector.close()
    assert body is not None
    return body


def put(files: Files, name: int, *shares: Share) -> str:
    """Store a segment with its key index; return its key."""
    return files.put(name, *shares, keys=indexed(*shares))
