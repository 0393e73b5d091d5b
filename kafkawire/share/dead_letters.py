"""Dead letters (KIP-1191): a record in another topic for each record that a share group rejects, or
that was delivered too often.

A record is stored as ARCHIVING, its dead letter is written, and it is stored as ARCHIVED, some
records at a time. So the only question is, after a crash or with a new leader, whether the records
that are ARCHIVING have their dead letters already. The dead letters of a share partition are the
batches of an idempotent producer of its own. Its id follows from the share partition and its state
epoch, its epoch is the leader epoch. If this broker leads the partition of the dead-letter topic,
too, it knows the last batch of that producer, and reads from it for which offsets it is: all dead
letters in earlier batches were stored as ARCHIVED before. A leader that was replaced has an older
epoch, which the partition refuses. So a dead letter is written **exactly once** with the change of
the state, as long as the partition remembers the producer (producer.id.expiration.ms) and the batch
is in the log. A single broker always leads both.

Another broker's partition gets them by Produce, also of an idempotent producer, which only lives as
long as this leader: exactly once until the leader ends, and **at least once**, as always in Kafka,
if it ends before the answer is stored.

A dead letter that cannot be written is logged, and its record archived, as in Kafka: after five
attempts, or at once if the topic is missing or not for dead letters, so that members are not kept
from what follows. Kafka: ShareGroupDLQStateManager.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kafkawire.codec.batches import HEAD_BYTES, Record, dump_record, iter_batches, pack, records
from kafkawire.codec.configs.group_config import ShareGroupSettings
from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import Buffer
from kafkawire.log.io.callbacks import await_callbacks
from kafkawire.log.io.ports import Env
from kafkawire.plural import count
from kafkawire.share.counts import ShareCounts
from kafkawire.share.partition import ShareRecord
from kafkawire.share.persister import SharePartitionKey
from kafkawire.share.runs import OffsetRun
from kafkawire.share.states import ArchiveReason

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition

logger = logging.getLogger(__name__)

ATTEMPTS = 5
BACKOFF_S, BACKOFF_MAX_S = 1.0, 30.0
"""Attempts and pauses as in Kafka."""
READ_BYTES = 1 << 20
"""Bytes of the log that are read at once for copies of records."""
PRODUCER_IDS_FROM: Final = 1 << 62
"""Producer ids from here on are those of share partitions: half of all ids, far above those that
brokers give to clients."""
LAST_EPOCH: Final = (1 << 15) - 2
SEQUENCES: Final = 1 << 31
RECORD_OVERHEAD_BYTES = 8
"""Most that the length and the offset delta of a record take besides `dump_record`."""

FINAL = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.MESSAGE_TOO_LARGE,
    }
)
"""Errors after which another attempt would fail, too."""

TOPIC = "__dlq.errors.topic"
PARTITION = "__dlq.errors.partition"
OFFSET = "__dlq.errors.offset"
GROUP = "__dlq.errors.group"
DELIVERY_COUNT = "__dlq.errors.delivery.count"
MESSAGE = "__dlq.errors.message"
"""Headers of a dead letter; their values are text."""

_TEXTS = {
    ArchiveReason.REJECTED: "Offset rejected by client.",
    ArchiveReason.DELIVERED_TOO_OFTEN: "Offset delivery count exceeded the threshold.",
}


class LetterTopic(NamedTuple):
    """A topic that dead letters of a group may be written to."""

    name: str
    topic_id: bytes
    partitions: int
    config: TopicConfig


class DeadLetterTopics(Protocol):
    """The topics of the cluster, as dead letters need them."""

    async def find(self, name: str) -> LetterTopic:
        """Return a topic that is for dead letters, after creating it where that is enabled. Raises
        KafkaError with the reason, one of FINAL if it must not be used."""
        ...

    async def partition(self, topic: LetterTopic, index: int) -> Partition | None:
        """Return a partition, in memory; None: another broker leads it. Raises KafkaError."""
        ...

    async def produce(self, topic: LetterTopic, index: int, batch: Buffer) -> None:
        """Have another broker append a batch; return when all in-sync replicas have it, or had it
        already. Raises KafkaError."""
        ...

    async def take_producer_id(self) -> int:
        """Return a producer id that no other producer has. Raises KafkaError."""
        ...


class LetterSource(NamedTuple):
    """A share partition with dead letters: its partition, and the epochs of its leader and of its
    state, which is initialized again when its offsets are altered."""

    key: SharePartitionKey
    partition: Partition
    leader_epoch: int
    state_epoch: int

    @property
    def producer_id(self) -> int:
        return producer_id_of(self.key, self.state_epoch)


class Letter(NamedTuple):
    """A record that needs a dead letter."""

    offset: int
    deliveries: int
    reason: ArchiveReason


class _Elsewhere(NamedTuple):
    """The producer of dead letters in a partition of another broker, and its next sequence."""

    producer_id: int
    sequence: int


class DeadLetterWriter:
    """Writes the dead letters of the share partitions of a broker."""

    AT_ONCE: Final = 100
    """Records in one batch; while it is written no other of its share partition is."""

    def __init__(
        self,
        env: Env,
        commit_log: CommitLog,
        topics: DeadLetterTopics,
        settings_of: Callable[[str], ShareGroupSettings],
        counts: ShareCounts,
    ) -> None:
        self._env = env
        self._commit_log = commit_log
        self._topics = topics
        self._settings_of = settings_of
        # The last batch that is known, which need not be read again.
        self._last: dict[tuple[SharePartitionKey, int], int] = {}  # by number of the partition
        self._elsewhere: dict[SharePartitionKey, _Elsewhere] = {}
        self._counts = counts

    def remove_partition(self, key: SharePartitionKey) -> None:
        """Remove a share partition that this broker does not lead any more."""
        for known in [each for each in self._last if each[0] == key]:
            del self._last[known]
        self._elsewhere.pop(key, None)

    async def write(
        self, source: LetterSource, waiting: Sequence[OffsetRun[ShareRecord]]
    ) -> list[tuple[int, int]]:
        """Write dead letters of some of the records, at least one, or find that it is not possible;
        return their offsets."""
        letters = [
            Letter(offset, run.value.deliveries, run.value.reason)
            for run in waiting
            for offset in range(run.first, run.last + 1)
        ]
        error: KafkaError | None = None
        for attempt in range(ATTEMPTS):
            while self._commit_log.config.broker_read_only:  # none is lost because of that
                await self._env.sleep(BACKOFF_S)
            try:
                done = await self._attempt(source, letters)
                self._counts.count_letters(written=len(done))
                return _ranges(done)
            except KafkaError as failure:
                error = failure
            except OSError as failure:
                error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
            if error.code in FINAL:
                break
            if attempt + 1 < ATTEMPTS:
                await self._env.sleep(min(BACKOFF_S * 2**attempt, BACKOFF_MAX_S))
        self._counts.count_letters(lost=len(letters))
        logger.error(
            "share group %s: %s of %s-%d from offset %d on are archived without dead letters: %s",
            source.key.group_id, count(len(letters), "record"), source.partition.topic,
            source.partition.index, letters[0].offset, error,
        )  # fmt: skip
        return _ranges([letter.offset for letter in letters])

    async def _attempt(self, source: LetterSource, letters: Sequence[Letter]) -> list[int]:
        settings = self._settings_of(source.key.group_id)
        if not settings.dead_letter_topic:
            text = "the group has no dead-letter topic any more"
            raise KafkaError(ErrorCode.INVALID_CONFIG, text)
        topic = await self._topics.find(settings.dead_letter_topic)
        index = source.partition.index % topic.partitions
        target = await self._topics.partition(topic, index)
        if target is not None:
            sent = await self._find_sent(source, target)
            done = [letter.offset for letter in letters if letter.offset in sent]
            if done:
                return done
        copies: dict[int, Record] = {}
        if settings.copy_dead_letters:
            offsets = [letter.offset for letter in letters]
            copies = await self._read_records(source.partition, offsets)
        made, offsets = self._build(source, topic, letters, copies)
        if target is None:
            await self._produce(source.key, topic, index, made)
        else:
            await self._append(source, target, made)
        return offsets

    def _build(
        self,
        source: LetterSource,
        topic: LetterTopic,
        letters: Sequence[Letter],
        copies: dict[int, Record],
    ) -> tuple[list[Record], list[int]]:
        """Return the dead letters that fit into one batch, and of which offsets they are."""
        now_ms, room = self._env.clock.now_ms(), topic.config.max_message_bytes - HEAD_BYTES
        made: list[Record] = []
        for letter in letters:
            copy = copies.get(letter.offset)
            headers = list_headers(source.key.group_id, source.partition, letter)
            record = Record(len(made), now_ms, None, None, headers)
            if copy is not None:
                whole = Record(len(made), now_ms, copy.key, copy.value, headers)
                # Too large for the topic even alone: only the headers.
                if _size_bytes(whole) <= topic.config.max_message_bytes - HEAD_BYTES:
                    record = whole
            room -= _size_bytes(record)
            if made and room < 0:
                break
            made.append(record)
        return made, [letter.offset for letter in letters[: len(made)]]

    # -- in a partition of this broker ------------------------------------------------------

    async def _find_sent(self, source: LetterSource, target: Partition) -> set[int]:
        """Return for which offsets the last batch of dead letters is, unless it is of this
        process."""
        last = target.producers.find_last(source.producer_id)
        known = source.key, target.number
        if last is None or last.base_offset == self._last.get(known):
            return set()
        if last.base_offset < target.log_start:
            self._last[known] = last.base_offset
            return set()
        plan = target.plan(last.base_offset, READ_BYTES, target.next_offset, first=True)
        sent: set[int] = set()
        for buffer in await self._commit_log.read(plan):
            for position, head in iter_batches(buffer):
                if head.base_offset == last.base_offset:
                    sent = {_offset_of(record) for record in records(buffer, position)}
        if not sent:
            text = f"the last dead letters are not at offset {last.base_offset} of {target.topic}"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text)
        self._last[known] = last.base_offset
        return sent

    async def _append(self, source: LetterSource, target: Partition, made: list[Record]) -> None:
        producer_id, epoch = source.producer_id, min(source.leader_epoch, LAST_EPOCH)
        known = source.key, target.number
        # From the check to the append nothing else runs: no other leader can come in between.
        last = target.producers.find_last(producer_id)
        if last is not None and last.base_offset != self._last.get(known, last.base_offset + 1):
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, "another leader writes dead letters")
        if target.log.full or target.too_few_replicas:
            text = "the log is full, or too few replicas are in sync"
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, text)
        follows = last is not None and last.epoch == epoch
        sequence = (last.last_sequence + 1) % SEQUENCES if last is not None and follows else 0
        batch = pack(made, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        appended = target.append(memoryview(batch), self._env.clock.now_ms())
        await await_callbacks(target.after_commit)
        self._last[known] = appended.base_offset

    # -- in a partition of another broker ---------------------------------------------------

    async def _produce(
        self, key: SharePartitionKey, topic: LetterTopic, index: int, made: list[Record]
    ) -> None:
        producer = self._elsewhere.get(key)
        if producer is None:
            producer = _Elsewhere(await self._topics.take_producer_id(), 0)
            self._elsewhere[key] = producer
        batch = pack(
            made,
            producer_id=producer.producer_id,
            producer_epoch=0,
            base_sequence=producer.sequence,
        )
        await self._topics.produce(topic, index, batch)
        sequence = (producer.sequence + len(made)) % SEQUENCES
        self._elsewhere[key] = producer._replace(sequence=sequence)

    # -- copies ---------------------------------------------------------------------------

    async def _read_records(self, source: Partition, offsets: Sequence[int]) -> dict[int, Record]:
        """Return the records at these offsets that can be read."""
        found: dict[int, Record] = {}
        read_to = -1
        for offset in offsets:
            if offset <= read_to:
                continue  # it was in what was read, or there is none
            try:
                plan = source.plan(offset, READ_BYTES, source.high_watermark, first=True)
                buffers = await self._commit_log.read(plan)
                end, more = await self._env.offload.submit(
                    "read", find_records, buffers, frozenset(offsets)
                )
            except (KafkaError, OSError) as error:
                logger.warning(
                    "the dead letter of %s-%d at offset %d has only headers: %s",
                    source.topic, source.index, offset, error,
                )  # fmt: skip
                continue
            read_to = max(read_to, end)
            found |= more
        return found


def producer_id_of(key: SharePartitionKey, state_epoch: int) -> int:
    """Return the id of the producer of a share partition's dead letters, the same in each process:
    another one when its offsets were altered, since its records may be rejected again then."""
    text = b"%b %d %d %b" % (key.topic_id, key.partition, state_epoch, key.group_id.encode())
    digest = hashlib.sha256(text).digest()
    return PRODUCER_IDS_FROM | int.from_bytes(digest[:8], "big") >> 2


def list_headers(
    group_id: str, source: Partition, letter: Letter
) -> list[tuple[str, bytes | None]]:
    """Return the headers that say where a record was, and why it is dead."""
    texts = [
        (TOPIC, source.topic),
        (PARTITION, str(source.index)),
        (OFFSET, str(letter.offset)),
        (GROUP, group_id),
        (DELIVERY_COUNT, str(letter.deliveries)),
    ]
    if letter.reason in _TEXTS:  # it is not stored: a leader that loads the state has none
        texts.append((MESSAGE, _TEXTS[letter.reason]))
    return [(name, text.encode()) for name, text in texts]


def find_records(
    buffers: Sequence[Buffer], offsets: frozenset[int]
) -> tuple[int, dict[int, Record]]:
    """Return the last offset of some batches, and their records with these offsets. Decompresses:
    called in a thread."""
    end, found = -1, {}
    for buffer in buffers:
        for position, head in iter_batches(buffer):
            end = head.last_offset
            for record in records(buffer, position):
                if record.offset in offsets:
                    found[record.offset] = record
    return end, found


def _offset_of(record: Record) -> int:
    for name, value in record.headers:
        if name == OFFSET and value is not None:
            return int(value)
    return -1


def _size_bytes(record: Record) -> int:
    return len(dump_record(record)) + RECORD_OVERHEAD_BYTES


def _ranges(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Return offsets in rising order as ranges."""
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and found[-1][1] == offset - 1:
            found[-1] = found[-1][0], offset
        else:
            found.append((offset, offset))
    return found
