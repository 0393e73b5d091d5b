"""One step of delivery: which records go to which partitions, as batches. Pure.

The records of a step keep the order of their due times in each partition of the target.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from kafkawire.codec.batches import HEAD_BYTES, Record, pack_steps
from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.codec.murmur2 import key_partition
from kafkawire.schedules.headers import SCHEDULED_FROM
from kafkawire.schedules.progress import Due

RECORD_OVERHEAD_BYTES = 32
"""Most that a record takes besides its fields: seven varints and an attribute."""
HEADER_OVERHEAD_BYTES = 10
"""Most that a header takes besides its name and value: two varints."""

Place: TypeAlias = tuple[bytes, int]
"""Topic id and index of a partition."""


class TargetTopic(NamedTuple):
    """A topic that records are delivered to. `config`: its settings."""

    name: str
    topic_id: bytes
    partitions: int
    config: TopicConfig


class DueRecord(NamedTuple):
    """A record that is due, with its target."""

    due: Due
    record: Record
    target: TargetTopic


class OutgoingBatch(NamedTuple):
    """A batch for one partition, without offsets and sequence numbers; and what is in it."""

    place: Place
    records: list[Record]
    entries: tuple[Due, ...]

    def pack_in_steps(
        self, producer_id: int, producer_epoch: int, base_sequence: int
    ) -> Generator[None, None, bytearray]:
        """Return the bytes of the batch, as a generator that yields about every millisecond."""
        return pack_steps(
            self.records,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )


class _OpenBatch:
    """A batch that takes more records. `size_bytes`: at least its size."""

    __slots__ = ("entries", "records", "size_bytes")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.entries: list[Due] = []
        self.size_bytes = HEAD_BYTES

    def close(self, place: Place) -> OutgoingBatch:
        return OutgoingBatch(place, self.records, tuple(self.entries))


def place_of(offset: int, record: Record, target: TargetTopic) -> Place:
    # As Kafka's DefaultPartitioner: the same key from another producer goes to the same partition.
    if record.key is not None:
        return target.topic_id, key_partition(record.key, target.partitions)
    return target.topic_id, offset % target.partitions


def fault_of(record: Record, target: TargetTopic, source: str) -> str | None:
    """Return why the target does not take a record; None: it does."""
    if record.key is None and target.config.cleanup_compact:
        return f"it has no key, and the target topic {target.name} is compacted"
    size = HEAD_BYTES + _size_bytes(record) + len(SCHEDULED_FROM) + len(source) + 40
    if size > target.config.max_message_bytes:
        return (
            f"its batch may be larger than max.message.bytes of the target topic {target.name}, "
            f"{target.config.max_message_bytes}"
        )
    return None


def batches_of(
    due_records: Iterable[DueRecord], source: str, now_ms: int
) -> Generator[None, None, list[OutgoingBatch]]:
    """Return the batches of a step, in an order that keeps the due times of each partition, as a
    generator that yields after each record. `source`: topic and partition, for the header."""
    open_batches: dict[Place, _OpenBatch] = {}
    done: list[OutgoingBatch] = []
    for due, record, target in due_records:
        place = place_of(due[1], record, target)
        made = _build_delivered(record, due, source, now_ms, target.config)
        size = _size_bytes(made)
        current = open_batches.get(place)
        # Closed before the others: the batches of one partition are appended in this order.
        if current is not None and current.size_bytes + size > target.config.max_message_bytes:
            done.append(current.close(place))
            current = None
        if current is None:
            current = open_batches[place] = _OpenBatch()
        made.offset = len(current.records)
        current.records.append(made)
        current.entries.append(due)
        current.size_bytes += size
        yield
    done += [batch.close(place) for place, batch in open_batches.items()]
    return done


def _build_delivered(
    record: Record, due: Due, source: str, now_ms: int, config: TopicConfig
) -> Record:
    # Its due time, unless the record is newer than that.
    timestamp = min(max(due[0], record.timestamp), now_ms)
    # The target would refuse it as too old (message.timestamp.before.max.ms).
    if now_ms - timestamp > config.before_max_ms:
        timestamp = now_ms
    headers = [*record.headers, (SCHEDULED_FROM, f"{source}-{due[1]}".encode())]
    return Record(0, timestamp, record.key, record.value, headers)


def _size_bytes(record: Record) -> int:
    """Return at least the size of a record in a batch."""
    size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += HEADER_OVERHEAD_BYTES + 4 * len(name) + len(value or b"")  # UTF-8
    return size


def sequence_after(base_sequence: int, records: Sequence[object]) -> int:
    """Return the sequence number that follows those of a batch."""
    # They wrap at 2^31, as in Kafka (DefaultRecordBatch.incrementSequence).
    return (base_sequence + len(records)) % (1 << 31)
