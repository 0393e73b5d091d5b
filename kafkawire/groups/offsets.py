"""Committed offsets of the groups of one coordinator partition, and the requests about them.

`Offsets` stores them and is modified only by `apply`. The other functions return records and
responses and modify nothing. `check_commit` of kafkawire.groups.classic.sync decides whether a
member may commit; the handlers check that topics exist.

Retention follows KIP-211. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.classic.group import ClassicGroup
from kafkawire.groups.consumer.group import ConsumerGroup
from kafkawire.groups.model.member import CONSUMER
from kafkawire.groups.model.records import STRING_BYTES, Offset, OffsetKey, OffsetRecord, fits
from kafkawire.groups.model.request import Settings, VerifiedCommit, transactional_error
from kafkawire.groups.model.states import GroupState
from kafkawire.groups.model.transactional import PendingBatch
from kafkawire.groups.pending import PendingOffsets
from kafkawire.groups.streams.group import StreamsGroup
from kafkawire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kafkawire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kafkawire.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kafkawire.messages.txn_offset_commit import TxnOffsetCommitResponse

Topics = dict[str, dict[int, Offset]]

INT64_MAX = (1 << 63) - 1
_LOST = ErrorCode.KAFKA_STORAGE_ERROR


class Offsets:
    """Offsets by group, topic and partition, without empty entries. `lost`: committed offsets whose
    records are damaged, until the next commit or tombstone of the same key. `pending`: those of
    open transactions."""

    __slots__ = ("by_group", "lost", "pending")

    def __init__(self) -> None:
        self.by_group: dict[str, Topics] = {}
        self.lost: set[OffsetKey] = set()
        self.pending = PendingOffsets()

    def lose(self, keys: Iterable[OffsetKey]) -> None:
        """Record that newer commits of these keys are damaged."""
        for group_id, topic, partition in keys:
            # With an older commit the group reads the records after it again, and loses none.
            if partition not in self.committed_offsets(group_id).get(topic, {}):
                self.lost.add((group_id, topic, partition))

    def apply(self, record: OffsetRecord) -> None:
        if record.value is not None:
            # The later commit in the log wins, also over one whose transaction ends after it.
            if record.group_id in self.pending.by_group:
                self.pending.supersede((record.group_id, record.topic, record.partition))
            self._set(record, record.value)
            return
        # It was deleted: a marker that comes later must not bring it back.
        self.pending.remove((record.group_id, record.topic, record.partition))
        self._remove(record)

    def end_transaction(self, producer_id: int, *, commit: bool) -> set[str]:
        """Apply the end of a transaction; return the groups whose pending offsets it ended."""
        current, keys = self.pending.end_transaction(producer_id, commit=commit)
        for record in current:
            assert record.value is not None
            self._set(record, record.value)
        return {group_id for group_id, _, _ in keys}

    def lose_pending(self, producer_id: int) -> set[str]:
        """Record that the marker of a producer is damaged; return the groups of its offsets."""
        # Committed or aborted is not known: neither the pending nor the former offset may be right.
        _, keys = self.pending.end_transaction(producer_id, commit=False)
        self.lose(keys)
        return {group_id for group_id, _, _ in keys}

    def _set(self, record: OffsetRecord, value: Offset) -> None:
        # Nearly always empty: most commits need not build the key.
        if self.lost:
            self.lost.discard((record.group_id, record.topic, record.partition))
        topics = self.by_group.setdefault(record.group_id, {})
        topics.setdefault(record.topic, {})[record.partition] = value

    def _remove(self, record: OffsetRecord) -> None:
        if self.lost:
            self.lost.discard((record.group_id, record.topic, record.partition))
        topics = self.by_group.get(record.group_id, {})
        partitions = topics.get(record.topic)
        if partitions is None or partitions.pop(record.partition, None) is None:
            return
        if not partitions:
            del topics[record.topic]
        if not topics:
            del self.by_group[record.group_id]

    def committed_offsets(self, group_id: str) -> Mapping[str, Mapping[int, Offset]]:
        """Return the committed offsets of a group; empty for unknown groups."""
        return self.by_group.get(group_id, {})

    def list_partitions(self, group_id: str) -> dict[str, list[int]]:
        """Return the topics and partitions of a group with committed or pending offsets."""
        committed = self.committed_offsets(group_id)
        found = {topic: list(partitions) for topic, partitions in committed.items()}
        for topic, partition in self.pending.pending_partitions(group_id):
            if partition not in committed.get(topic, {}):
                found.setdefault(topic, []).append(partition)
        return found

    def as_request(self, group_id: str) -> list[OffsetFetchRequestTopics]:
        """Return the committed offsets of a group, as a request for all of them."""
        return [
            OffsetFetchRequestTopics(name=name, partition_indexes=list(partitions))
            for name, partitions in self.committed_offsets(group_id).items()
        ]

    def records(self) -> Iterator[OffsetRecord]:
        """Yield all committed offsets, which may change between two of them."""
        # Lists of names only: a copy of all offsets would take too long for one step.
        for group_id in list(self.by_group):
            for topic in list(self.committed_offsets(group_id)):
                for partition, value in list(
                    self.committed_offsets(group_id).get(topic, {}).items()
                ):
                    yield OffsetRecord(group_id, topic, partition, value)

    def tombstones(self, group_id: str) -> list[OffsetRecord]:
        """Return the tombstones of a group's offsets, pending ones included."""
        return [
            OffsetRecord(group_id, topic, partition, None)
            for topic, partitions in self.list_partitions(group_id).items()
            for partition in partitions
        ]

    def of_topics(self, topics: Iterable[str]) -> list[OffsetRecord]:
        """Return the tombstones of these topics in all groups."""
        gone = set(topics)
        keys = {
            (group_id, topic, partition): None
            for group_id, committed in self.by_group.items()
            for topic in gone & committed.keys()
            for partition in committed[topic]
        }
        # Sorted: the order of a set differs between processes, and a seed must repeat a run.
        keys |= dict.fromkeys(sorted(self.pending.of_topics(gone)))
        return [OffsetRecord(*key, None) for key in keys]

    def topics(self) -> set[str]:
        committed = {topic for found in self.by_group.values() for topic in found}
        return committed | self.pending.topics()


def commit(
    request: OffsetCommitRequest, settings: Settings, now_ms: int
) -> tuple[list[OffsetRecord], OffsetCommitResponse]:
    """Return the records and the response of an OffsetCommit whose sender may commit.

    Partitions are independent: one with too long a metadata string is rejected, the others are
    accepted. Topics are stored by name; one known by id must have its name, too.
    """
    limit = settings.offset_metadata_max_bytes
    retention_ms = request.retention_time_ms
    # The sum is stored as int64: clients express unlimited retention by its maximum.
    expires_at_ms = -1 if retention_ms == -1 else min(now_ms + retention_ms, INT64_MAX)
    records: list[OffsetRecord] = []
    response = OffsetCommitResponse()
    for topic in request.topics:
        answers: list[OffsetCommitResponsePartition] = []
        for entry in topic.partitions:
            code = ErrorCode.NONE
            metadata = entry.committed_metadata or ""
            if _is_too_long(metadata, limit):
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                offset, epoch = entry.committed_offset, entry.committed_leader_epoch
                value = Offset(offset, epoch, metadata, now_ms, expires_at_ms)
                records.append(
                    OffsetRecord(request.group_id, topic.name, entry.partition_index, value)
                )
            answers.append(
                OffsetCommitResponsePartition(
                    partition_index=entry.partition_index, error_code=int(code)
                )
            )
        response.topics.append(
            OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers)
        )
    return records, response


def _is_too_long(metadata: str, limit: int) -> bool:
    if metadata.isascii():
        return len(metadata) > min(limit, STRING_BYTES)
    # Kafka compares String.length(), which counts UTF-16 units.
    units = len(metadata.encode("utf-16-le", "surrogatepass")) // 2
    return units > limit or not fits(metadata)


def commit_pending(
    ask: VerifiedCommit, settings: Settings, now_ms: int
) -> tuple[PendingBatch | None, TxnOffsetCommitResponse]:
    """Return the batch (None: every partition is rejected) and the response of a TxnOffsetCommit
    whose sender may commit. Partitions are independent, as in `commit`."""
    # Metadata strings are checked before the append: a batch is appended all or nothing.
    request = ask.commit
    limit = settings.offset_metadata_max_bytes
    records: list[OffsetRecord] = []
    response = transactional_error(request, int(ErrorCode.NONE))
    for topic, answers in zip(request.topics, response.topics, strict=True):
        for entry, answer in zip(topic.partitions, answers.partitions, strict=True):
            metadata = entry.committed_metadata or ""
            if _is_too_long(metadata, limit):
                answer.error_code = int(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            epoch = entry.committed_leader_epoch
            value = Offset(entry.committed_offset, epoch, metadata, now_ms)
            records.append(OffsetRecord(request.group_id, topic.name, entry.partition_index, value))
    if not records:
        return None, response
    producer_id, epoch = request.producer_id, request.producer_epoch
    return PendingBatch(producer_id, epoch, tuple(records), ask.guard), response


def fetch(
    offsets: Offsets, request: OffsetFetchRequestGroup, *, stable: bool = False
) -> OffsetFetchResponseGroup:
    """Return a group's offsets: those of the requested partitions, or all (`topics` null). An
    offset that was never committed, or of an unknown group, is -1 without error. With `stable`
    partitions with a pending offset are -1 with UNSTABLE_OFFSET_COMMIT. Partitions with only a
    pending offset are not part of all."""
    response = _fetch(offsets, request)
    pending = offsets.pending.pending_partitions(request.group_id)
    if stable and pending:
        for topic in response.topics:
            topic.partitions = [
                _missing(index, ErrorCode.UNSTABLE_OFFSET_COMMIT)
                if (topic.name, index := entry.partition_index) in pending
                else entry
                for entry in topic.partitions
            ]
    return response


def _fetch(offsets: Offsets, request: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
    committed = offsets.committed_offsets(request.group_id)
    # With -1 and no error consumers would start at the beginning, or skip records.
    lost: dict[str, set[int]] = {}
    for group_id, name, partition in offsets.lost:
        if group_id == request.group_id:
            lost.setdefault(name, set()).add(partition)
    response = OffsetFetchResponseGroup(group_id=request.group_id)
    if request.topics is None:
        for name in [*committed, *sorted(lost.keys() - committed.keys())]:
            known, gone = committed.get(name, {}), lost.get(name, set())
            answers = [_answer_offset(partition, value) for partition, value in known.items()]
            answers += [_missing(partition, _LOST) for partition in sorted(gone)]
            response.topics.append(OffsetFetchResponseTopics(name=name, partitions=answers))
        return response
    for topic in request.topics:
        known, gone = committed.get(topic.name, {}), lost.get(topic.name, set())
        answers = [
            _missing(index, _LOST) if index in gone else _answer_offset(index, known.get(index))
            for index in topic.partition_indexes
        ]
        response.topics.append(
            OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=answers)
        )
    return response


def _answer_offset(partition: int, value: Offset | None) -> OffsetFetchResponsePartitions:
    if value is None:
        return OffsetFetchResponsePartitions(
            partition_index=partition, committed_offset=-1, metadata=""
        )
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
    )


def _missing(partition: int, code: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition, committed_offset=-1, metadata="", error_code=int(code)
    )


def delete(
    offsets: Offsets,
    group: ClassicGroup | ConsumerGroup | StreamsGroup | None,
    request: OffsetDeleteRequest,
) -> tuple[list[OffsetRecord], OffsetDeleteResponse]:
    if group is None or group.state is GroupState.DEAD:
        return [], OffsetDeleteResponse(error_code=int(ErrorCode.GROUP_ID_NOT_FOUND))
    # Which topics it reads is known only of a consumer group; another must have no members.
    if (
        isinstance(group, ClassicGroup)
        and group.state is not GroupState.EMPTY
        and group.protocol_type != CONSUMER
    ):
        return [], OffsetDeleteResponse(error_code=int(ErrorCode.NON_EMPTY_GROUP))
    records: list[OffsetRecord] = []
    response = OffsetDeleteResponse()
    stored = offsets.list_partitions(request.group_id)
    reads = _reader(group)
    for topic in request.topics:
        read = reads(topic.name)
        code = int(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if read else ErrorCode.NONE)
        answers = [
            OffsetDeleteResponsePartition(partition_index=entry.partition_index, error_code=code)
            for entry in topic.partitions
        ]
        response.topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=answers))
        known = set(stored.get(topic.name, ()))
        records += [
            OffsetRecord(request.group_id, topic.name, entry.partition_index, None)
            for entry in topic.partitions
            if not read and entry.partition_index in known
        ]
    return records, response


def find_expired(
    offsets: Offsets,
    group: ClassicGroup | ConsumerGroup | StreamsGroup,
    now_ms: int,
    retention_ms: int,
) -> list[OffsetRecord]:
    if isinstance(group, ClassicGroup) and not _may_expire(group):
        return []
    # KIP-211: the offsets of a group expire together, so long after its last member left. Those of
    # simple consumers, which never had one, and of topics not read any more: after each commit.
    # In groups with the new protocol: after each commit, too (Kafka: ConsumerGroup).
    kept_since_ms: int | None = None
    if (
        isinstance(group, ClassicGroup)
        and group.protocol_type is not None
        and group.state is GroupState.EMPTY
        and group.since_ms != -1
    ):
        kept_since_ms = group.since_ms
    reads = _reader(group)
    pending = offsets.pending.pending_partitions(group.group_id)
    return [
        OffsetRecord(group.group_id, topic, partition, None)
        for topic, partitions in offsets.committed_offsets(group.group_id).items()
        if not reads(topic)
        for partition, value in partitions.items()
        # An open transaction may be about to commit it.
        if (topic, partition) not in pending
        and _is_expired(value, kept_since_ms, now_ms, retention_ms)
    ]


def _reader(group: ClassicGroup | ConsumerGroup | StreamsGroup) -> Callable[[str], bool]:
    if not isinstance(group, ClassicGroup):
        return group.is_subscribed
    topics = group.find_subscribed_topics()
    # Of a consumer group with an unknown subscription every topic counts as read (Kafka:
    # ClassicGroup.isSubscribedToTopic).
    if topics is None:
        silent = group.protocol_type == CONSUMER
        return lambda topic: silent
    return topics.__contains__


def _may_expire(group: ClassicGroup) -> bool:
    if group.protocol_type is None or group.state is GroupState.EMPTY:
        return True
    # Not during a rebalance, as other topics may be read after it.
    return group.state is GroupState.STABLE and group.find_subscribed_topics() is not None


def _is_expired(value: Offset, kept_since_ms: int | None, now_ms: int, retention_ms: int) -> bool:
    # The commit has its own retention (OffsetCommit 2-4).
    if value.expires_at_ms != -1:
        return now_ms >= value.expires_at_ms
    since_ms = value.committed_at_ms if kept_since_ms is None else kept_since_ms
    return now_ms - since_ms >= retention_ms
