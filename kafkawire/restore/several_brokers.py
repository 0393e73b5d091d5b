"""Evidence from a tier that several brokers use: each has a manifest and objects of its own.

A partition may be in several of them. It begins at the highest log start and ends at the highest
end; of objects with the same offsets the plan uses the highest generation.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafkawire.log.io.ports import Env
from kafkawire.progress import Progress
from kafkawire.restore.broker_folders import broker_folders
from kafkawire.restore.bucket import gather_from_part
from kafkawire.restore.evidence import BucketEvidence, PartitionSeen, TopicSeen
from kafkawire.restore.log_objects import gather_logs
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.store_folder import StoreFolder
from kafkawire.tiering.store.tiers import folder_of


async def gather_from_brokers(env: Env, store: ObjectStore, progress: Progress) -> BucketEvidence:
    """Gather the evidence of all brokers of a tier. Raises StoreError, and NewerFormatError for
    data of a newer program."""
    folders = await broker_folders(env, store)
    parts = [await gather_from_part(env, store, progress)]
    for node in [each.node_id for each in folders if each.has_manifest]:
        folder = folder_of(node)
        part = await gather_from_part(env, StoreFolder(store, folder), progress)
        for each in part.segments:
            each.folder = folder
        parts.append(part)
    seen = parts[0]
    if len(parts) > 1:
        seen = together([part for part in parts if part.segments or part.topics])
    await gather_logs(env, store, [each.node_id for each in folders], seen, progress)
    return seen


def together(parts: list[BucketEvidence]) -> BucketEvidence:
    """Return the evidence of several brokers as that of one. Pure."""
    seen = parts[0] if parts else BucketEvidence()
    for part in parts[1:]:
        seen.cluster_id = seen.cluster_id or part.cluster_id
        seen.node_id = part.node_id if seen.node_id is None else seen.node_id
        seen.has_manifest |= part.has_manifest
        seen.raise_numbers(part)
        seen.configs = seen.configs or part.configs
        _add_partitions(seen, part)
        _add_topics(seen, part.topics.values())
        seen.segments += part.segments
        seen.deleted += part.deleted
        seen.doubts += part.doubts
    return seen


def _add_topics(seen: BucketEvidence, topics: Iterable[TopicSeen]) -> None:
    """Add topics. Of two descriptions the one with the most partitions was written last."""
    for topic in topics:
        known = seen.topics.get(topic.id)
        if known is None:
            seen.topics[topic.id] = topic
            continue
        newer, older = (topic, known) if _age(topic) > _age(known) else (known, topic)
        newer.numbers = {**older.numbers, **newer.numbers}
        newer.count = max(newer.count, older.count)
        seen.topics[topic.id] = newer


def _age(topic: TopicSeen) -> tuple[bool, int, int]:
    return topic.described, topic.count, topic.seen_ms


def _add_partitions(seen: BucketEvidence, part: BucketEvidence) -> None:
    """Add partitions; the state of the one with the newest records holds."""
    ends = _newest(seen), _newest(part)
    for number, other in part.partitions.items():
        known = seen.partitions.get(number)
        if known is None:
            seen.partitions[number] = other
            continue
        newest = other if ends[1].get(number, 0) > ends[0].get(number, 0) else known
        seen.partitions[number] = PartitionSeen(
            number,
            log_start=max(known.log_start, other.log_start),
            next_offset=max(known.next_offset, other.next_offset),
            epoch=max(known.epoch, other.epoch),
            epochs=sorted({*known.epochs, *other.epochs}),
            producers=newest.producers,
        )


def _newest(seen: BucketEvidence) -> dict[int, int]:
    """Return the highest end of the objects of each partition."""
    ends: dict[int, int] = {}
    for found in seen.segments:
        for entry in found.entries:
            ends[entry.number] = max(ends.get(entry.number, 0), entry.end_offset)
    return ends
