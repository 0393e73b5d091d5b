"""Check whether segment files contain records that the metadata does not know.

No operation and no crash leaves a file without a row, nor offsets of a live segment that no row
maps, so files with topics that the metadata never had, or with offsets that are nowhere else, prove
that the metadata is an older copy, belongs to another data folder or has lost rows, as journals do
(kafkawire.log.recovery.unknown_topics). Served like that, the broker would hide these records, or
give their offsets again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kafkawire.codec.segment.format import PartitionEntry
from kafkawire.log.io.ports import Env
from kafkawire.log.partition.damaged_ranges import Range
from kafkawire.log.partition.partition import Partition
from kafkawire.log.recovery.identity import IdentityError, rebuild_command
from kafkawire.log.recovery.unknown_topics import sentence
from kafkawire.log.segments.file.open import read_entries
from kafkawire.log.segments.store.unfinished import (
    Known,
    describe,
    find_unaccounted,
    held_in_memory,
)
from kafkawire.metadata.catalog import Catalog
from kafkawire.metadata.pairing import known_topics
from kafkawire.metadata.store import SqlStore
from kafkawire.offsets.catalog.port import SegmentCatalog


async def check_segments(env: Env, home: str, paths: Iterable[str], metadata: SqlStore) -> None:
    """Raise IdentityError if segment files without a row contain topics that the metadata never
    had.

    For a folder whose identity is not known yet. Raises what the disk and the metadata raise."""
    topics: dict[bytes, str] = {}
    for path in paths:
        for entry in await env.offload.submit("files", read_entries, env.fs, path):
            topics[entry.topic_id] = entry.topic
    if topics:
        known = await metadata.transact(lambda session: known_topics(session, topics))
        strange = {name for topic_id, name in topics.items() if topic_id not in known}
        if strange:
            raise IdentityError(sentence(metadata.name, home, sorted(strange)))


async def check_records(
    env: Env,
    strays: Collection[str],
    live: Iterable[str],
    data: str,
    partitions: Mapping[int, Partition],
    catalog: Catalog,
    storage: SegmentCatalog,
    known: Known,
    node_id: int,
) -> None:
    """Raise IdentityError if a segment file has offsets that no row and no journal has. `strays`:
    files without a row; `live`: others to check; `partitions`: those with records in the journals;
    `data`: the data folder.

    Raises what the disk, the storage and the metadata raise."""

    def in_journals(number: int) -> list[Range]:
        partition = partitions.get(number)
        return held_in_memory(partition) if partition is not None else []

    def is_led(entry: PartitionEntry) -> bool:
        # RocksDB has no rows of the partitions that other brokers lead.
        return catalog.leader_of(entry.number) in (None, node_id)

    for path in [*strays, *live]:
        entries = await env.offload.submit("files", read_entries, env.fs, path)
        entries = [entry for entry in entries if is_led(entry)]
        found = await find_unaccounted(entries, catalog, storage, known, in_journals)
        if found:
            unwanted = ". If these records are not wanted, move the file away"
            raise IdentityError(
                f"{path} is the only copy of {describe(found)}, and table offset_mappings has no "
                "row of them: the stored offsets are older than the data folder or have lost rows; "
                f"put the newest copy back or rebuild them with {rebuild_command(data)}"
                f"{unwanted if path in strays else ''}"
            )
