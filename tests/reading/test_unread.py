"""Offsets of a data folder that are only in journals.

Covers: kafkawire.reading.unread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kafkawire.reading.catalog import open_catalog
from kafkawire.reading.files import data_folder
from kafkawire.reading.files.data_folder import StoredPartition
from kafkawire.reading.model.source import Source
from kafkawire.reading.unread import unread_offsets
from tests.kit.spark.files import Files, Share, batches
from tests.kit.spark.reads import tier_files  # noqa: F401  (a fixture, by name)


def test_offsets_above_the_segments_are_counted(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`t-0` has 100 offsets in a segment and 150 in the metadata; `u` has all in segments."""
    for name, topic in enumerate(("t", "u")):
        [number] = files.topic(topic)
        files.put(name, Share(number, batches(0, [10] * 10)))
    files.publish()
    ends = {"t": (150, 7), "u": (100,)}
    monkeypatch.setattr(data_folder, "stored_partitions", lambda _, topic: [
        StoredPartition(at, at, 1, bytes(16), 0, end) for at, end in enumerate(ends[topic])
    ])  # fmt: skip
    catalog = open_catalog(Source(files.place.url))
    assert unread_offsets(catalog, ["t", "u"]) == {"t": 50}
    assert unread_offsets(catalog, ["u"]) == {}


def test_nothing_is_unread_with_a_broker(files: Files) -> None:
    """The end of committed records may be below the one in the metadata."""
    files.topic("t")
    files.publish()
    catalog: Any = open_catalog(Source(files.place.url))
    catalog.source = replace(catalog.source, bootstrap="127.0.0.1:9092")
    assert unread_offsets(catalog, ["t"]) == {}
