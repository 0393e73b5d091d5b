"""Merge of the evidence of a bucket with that of a data folder's journals and segments.

For `restore --from-log` of a broker with a remote tier: records without local files are only in the
bucket. An object is another copy of the segment file with its segment's uuid; without a file it
becomes a remote segment. Topics, log starts, epochs and producers of the manifest complete those of
the log. Pure.
"""

from __future__ import annotations

from kafkawire.codec.segment.format import PartitionEntry
from kafkawire.manifest.columns import Entry
from kafkawire.restore.bucket_evidence import BucketEvidence, BucketPartition, ObjectSeen
from kafkawire.restore.evidence import Evidence as LogEvidence
from kafkawire.restore.evidence import PartitionSeen as LogPartition
from kafkawire.restore.evidence import SegmentSeen, SegmentShare

Owner = tuple[bytes, str, int]
"""Topic id, name and index of a partition number."""


def join(seen: LogEvidence, bucket: BucketEvidence) -> None:
    """Add all evidence of the bucket to `seen`."""
    owners = _topics(seen, bucket)
    _objects(seen, bucket, owners)
    for number, partition in bucket.partitions.items():
        if number in owners:
            _partition(_of(seen, number, owners[number]), partition)
    seen.last_producer_id = max(seen.last_producer_id, bucket.last_producer_id)
    seen.next_partition = max(seen.next_partition, bucket.next_partition)
    seen.configs = dict(seen.configs or bucket.configs)
    if bucket.cluster_id:
        seen.clusters[bucket.cluster_id] = 0  # the tier belongs to that cluster


def _topics(seen: LogEvidence, bucket: BucketEvidence) -> dict[int, Owner]:
    """Return the owner of each partition number. Topics that the log does not describe are treated
    as oldest."""
    owners: dict[int, Owner] = {}
    more = {}
    for topic in bucket.topics.values():
        for index, number in topic.numbers.items():
            owners[number] = topic.id, topic.name, index
        if topic.described or topic.configs:  # those of log objects have durability=s3
            more[topic.id] = {
                "id": topic.id,
                "name": topic.name,
                "internal": topic.internal,
                "configs": dict(topic.configs),
                "partitions": [[number, index] for index, number in topic.numbers.items()],
            }
    seen.topics = {**{each: more[each] for each in more if each not in seen.topics}, **seen.topics}
    return owners


def _of(seen: LogEvidence, number: int, owner: Owner) -> LogPartition:
    topic_id, name, index = owner
    partition = seen.of(number, topic_id)
    partition.topic, partition.index = partition.topic or name, index
    return partition


def _partition(partition: LogPartition, bucket: BucketPartition) -> None:
    if bucket.end > partition.next_offset or not partition.epochs:
        partition.epochs = list(bucket.epochs)
        partition.producers.load(bucket.producers)
    partition.next_offset = max(partition.next_offset, bucket.end)
    partition.log_start = max(partition.log_start, bucket.log_start)
    partition.epoch = max(partition.epoch, bucket.epoch)


def _objects(seen: LogEvidence, bucket: BucketEvidence, owners: dict[int, Owner]) -> None:
    files = {segment.uuid: segment for segment in seen.segments}
    by_age = sorted(bucket.objects, key=lambda one: (not one.named, one.uuid))
    for each in by_age:
        if each.cluster_id not in (None, bucket.cluster_id):
            continue
        file = files.get(each.segment)
        if file is None:
            file = files[each.segment] = _segment(seen, each, owners)
        if not file.object and file.size_bytes == each.size_bytes:
            file.object = each.uuid
            file.generation, file.retention_class = each.generation, each.retention_class


def _segment(seen: LogEvidence, each: ObjectSeen, owners: dict[int, Owner]) -> SegmentSeen:
    """Return a segment without a local file."""
    made = SegmentSeen("", each.segment, each.created_ms, each.size_bytes)
    for entry in each.entries:
        if entry.number in owners:
            owner = owners[entry.number]
            partition = _of(seen, entry.number, owner)
            partition.shares.append(SegmentShare(made, _entry(entry, owner)))
            partition.next_offset = max(partition.next_offset, entry.end_offset)
    return made


def _entry(entry: Entry, owner: Owner) -> PartitionEntry:
    topic_id, name, index = owner
    return PartitionEntry(
        entry.number, topic_id, name, index, entry.start, entry.length, entry.base_offset,
        entry.end_offset, entry.batches, entry.records, entry.max_timestamp, entry.index_start,
        entry.index_length, entry.index_checksum,
    )  # fmt: skip
