"""Merge of the evidence of a bucket with that of a data folder's journals and segments.

For a restore from the log of a broker with a remote tier: records without local files are only in
the bucket. An object is another copy of the segment file with its segment's uuid; without a file it
becomes a remote segment. Topics, log starts, epochs and producers of the manifest complete those of
the log. Pure.
"""

from __future__ import annotations

from kafkawire.restore.evidence import (
    BucketEvidence,
    FolderEvidence,
    PartitionSeen,
    SegmentShare,
    TopicSeen,
)

Owner = tuple[TopicSeen, int]
"""Topic and index of a partition number."""


def add_bucket(seen: FolderEvidence, bucket: BucketEvidence) -> None:
    """Add all evidence of the bucket to `seen`."""
    owners = {
        number: (topic, index)
        for topic in bucket.topics.values()
        for index, number in topic.numbers.items()
    }
    # Topics that the log does not describe are treated as oldest; those of log objects have
    # durability=s3.
    more = {t.id: t for t in bucket.topics.values() if t.described or t.configs}
    seen.topics = {**{each: more[each] for each in more if each not in seen.topics}, **seen.topics}
    _add_objects(seen, bucket, owners)
    for number, partition in bucket.partitions.items():
        if number in owners:
            _complete(_partition(seen, number, owners[number]), partition)
    seen.raise_numbers(bucket)
    seen.configs = dict(seen.configs or bucket.configs)
    if bucket.cluster_id:
        seen.clusters[bucket.cluster_id] = 0  # the tier belongs to that cluster


def _partition(seen: FolderEvidence, number: int, owner: Owner) -> PartitionSeen:
    topic, index = owner
    partition = seen.of(number, topic.id)
    partition.topic, partition.index = partition.topic or topic.name, index
    return partition


def _complete(partition: PartitionSeen, bucket: PartitionSeen) -> None:
    if bucket.next_offset > partition.next_offset or not partition.epochs:
        partition.epochs = list(bucket.epochs)
        partition.producers.load(bucket.producers.entries())
    partition.next_offset = max(partition.next_offset, bucket.next_offset)
    partition.log_start = max(partition.log_start, bucket.log_start)
    partition.epoch = max(partition.epoch, bucket.epoch)


def _add_objects(seen: FolderEvidence, bucket: BucketEvidence, owners: dict[int, Owner]) -> None:
    files = {segment.uuid: segment for segment in seen.segments}
    for each in sorted(bucket.segments, key=lambda one: (not one.named, one.object)):
        if each.cluster_id not in (None, bucket.cluster_id):
            continue
        file = files.get(each.uuid)
        if file is None:
            files[each.uuid] = each
            for entry in each.entries:
                if entry.number in owners:
                    partition = _partition(seen, entry.number, owners[entry.number])
                    partition.shares.append(SegmentShare(each, entry))
                    partition.next_offset = max(partition.next_offset, entry.end_offset)
        elif not file.object and file.size_bytes == each.size_bytes:
            file.object = each.object
            file.generation, file.retention_class = each.generation, each.retention_class
