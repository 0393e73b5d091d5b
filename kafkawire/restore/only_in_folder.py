"""Find partitions whose records are only in the data folder of a broker.

A broker that starts with an empty folder would lose them: a start is refused then.
"""

from __future__ import annotations

from kafkawire.metadata.catalog import Catalog
from kafkawire.offsets.catalog.port import SegmentCatalog

DURABILITY = "durability"
ELSEWHERE = frozenset({"s3", "replicated"})
"""The topic setting that is fixed at creation, and its values for topics of which log objects or
followers have the latest records."""
AT_ONCE = 500
"""Partitions read at a time."""
MAX_NAMED = 10
"""Most partitions named in one sentence."""


async def only_in_folder(storage: SegmentCatalog, catalog: Catalog, node_id: int) -> list[str]:
    """Return the partitions led by this broker, as `topic-0`, that have records and have
    durability=local; after MAX_NAMED of them `5 more`. Empty if there is none. Records that were
    written after the partition's creation and before its first checkpoint are not counted. Raises
    the storage's errors."""
    safe = {topic for topic, own in catalog.configured() if own.get(DURABILITY) in ELSEWHERE}
    numbers = [
        number
        for group in catalog.groups()
        if group.leader == node_id
        for number in catalog.partitions_of_group(group.id)
        if (where := catalog.locate(number)) is not None and where.topic_id not in safe
    ]
    found: list[int] = []
    for at in range(0, len(numbers), AT_ONCE):
        for stats in await storage.stats(numbers[at : at + AT_ONCE]):
            if stats.checkpoint_offset > 0 or stats.mappings:
                found.append(stats.number)
    names = sorted(map(catalog.name_of, found))
    more = len(names) - MAX_NAMED
    return [*names[:MAX_NAMED], f"{more:,} more"] if more > 0 else names
