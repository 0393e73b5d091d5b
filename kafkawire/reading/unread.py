"""Counts the offsets of a data folder that are only in journals, which are not read without a
broker."""

from __future__ import annotations

from collections.abc import Iterable

from kafkawire.reading.catalog import SourceCatalog
from kafkawire.reading.files import data_folder
from kafkawire.reading.files.locations import FolderPlace


def unread_offsets(catalog: SourceCatalog, topics: Iterable[str]) -> dict[str, int]:
    """Return how many offsets of these topics are only in the journals of a data folder: those
    topics that have any. With a broker these are read from it."""
    if catalog.source.bootstrap:
        return {}
    folders = [each for each in catalog.places if isinstance(each, FolderPlace)]
    found: dict[str, int] = {}
    for topic in set(topics):
        known = range(catalog.topics[topic])
        ends = [catalog.bounds(topic, partition).end for partition in known]
        for place in folders:
            missing = sum(
                max(0, each.next_offset - ends[each.partition])
                for each in data_folder.stored_partitions(place, topic)
                if each.partition < len(ends)
            )
            if missing:
                found[topic] = max(missing, found.get(topic, 0))
    return found
