"""Load a Shard from its snapshot and the log after it, and write snapshots.

Loading reads the newest usable snapshot, then the committed part of the log after it, in slices
small enough for other work of the event loop. Records that cannot be parsed are skipped with a
warning, as are unknown record types, so that one bad record does not affect other groups. Damaged
ranges of the log are skipped; the commits known to be in them are recorded, so that they are not
answered as never committed. Other failures of the log are errors, because they may be temporary.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkawire.codec.batches import CONTROL, TRANSACTIONAL, BatchHead, iter_batches, records
from kafkawire.codec.control import ABORT, COMMIT, NO_COORDINATOR, TransactionMarker, read_marker
from kafkawire.codec.errors import DamagedOffsets, ErrorCode, KafkaError
from kafkawire.codec.types import Buffer, DecodeError
from kafkawire.coordination import snapshot
from kafkawire.coordination.snapshot import Contents, PendingPair, SnapshotLocation
from kafkawire.groups.pending import PendingRecord
from kafkawire.groups.records import (
    OffsetRecord,
    Record,
    committed_keys,
    decode_record,
    encode_record,
    ended_producers,
)
from kafkawire.groups.request import Settings
from kafkawire.groups.shard import Shard
from kafkawire.groups.transactional import PendingBatch
from kafkawire.log.io.ports import Env

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition

logger = logging.getLogger(__name__)

SLICE_BYTES = 32 * 1024
"""Bytes read and applied at a time: about 500 commits, under ten milliseconds."""
SLICE_RECORDS = 500
"""Records read from or written to a snapshot at a time, for the same reason."""


@dataclass(slots=True)
class Loaded:
    """A loaded shard. `next_offset`: the end of the loaded records; `log_bytes`: bytes read after
    the snapshot, which has `snapshot_bytes` (0: there was none)."""

    shard: Shard
    next_offset: int
    log_bytes: int
    snapshot_bytes: int


@dataclass(frozen=True, slots=True)
class LiveState:
    """The state that a snapshot stores: that of the records below `next_offset`."""

    next_offset: int
    records: list[Record]
    pending: list[PendingRecord]


async def load(
    env: Env,
    settings: Settings,
    partition: Partition,
    commit_log: CommitLog,
    place: SnapshotLocation,
) -> Loaded:
    """Load all committed records. Raises KafkaError or OSError if the log cannot be read."""
    try:
        await commit_log.committed()
    except KafkaError as error:
        logger.warning(
            "%s-%d: loading groups only up to the high watermark: %s",
            partition.topic,
            place.partition,
            error,
        )
    end = partition.high_watermark
    loaded = Loaded(Shard(settings), partition.log_start, 0, 0)
    await _load_snapshot(env, loaded, place, end)
    while loaded.next_offset < end:
        try:
            plan = partition.plan(loaded.next_offset, SLICE_BYTES, end, True)
            buffers = await commit_log.read(plan)
        except DamagedOffsets as damage:
            await _pass_damage(loaded, partition, damage.end)
            continue
        before = loaded.next_offset
        for buffer in buffers:
            _load_batches(loaded, buffer)
        if loaded.next_offset == before:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the log has no batch at offset {before}"
            )
    return loaded


async def _pass_damage(loaded: Loaded, partition: Partition, last: int) -> None:
    """Continue at `last`, after a damaged range."""
    first = loaded.next_offset
    payloads = await partition.damaged_payloads(first, last)
    lost = {key for payload in payloads for key in committed_keys(payload)}
    what = (
        f"{len(lost)} committed offsets were among it: they are answered with an error until the "
        "group commits again or `kafkawire offsets` resets them"
        if lost
        else "groups whose only commits were there have none any more"
    )
    where = f"{partition.topic}-{partition.index}"
    logger.critical("%s: offsets %d-%d and the group state stored there are lost: %s",
                    where, first, last - 1, what)  # fmt: skip
    ended = {producer_id for payload in payloads for producer_id in ended_producers(payload)}
    loaded.shard.offsets.lose(lost)
    loaded.shard.lose_transactions(ended)
    loaded.next_offset = last


async def _load_snapshot(env: Env, loaded: Loaded, place: SnapshotLocation, end: int) -> None:
    found = await env.offload.submit("files", snapshot.read, env.fs, place)
    if found is None:
        return
    next_offset, pairs = found.next_offset, found.pairs
    if next_offset > end:
        # With flush=os a crash can lose records that a snapshot has. Their offsets will be assigned
        # again, so the file must be deleted before that.
        logger.warning("removing group snapshot %s: it is ahead of the log", place.path)
        await env.offload.submit("files", snapshot.remove, env.fs, place)
        return
    for start in range(0, len(pairs), SLICE_RECORDS):
        for key, value in pairs[start : start + SLICE_RECORDS]:
            _load_record(loaded.shard, key, value)
        await env.slices.pause()
    for pending in found.pending:  # as many as open transactions committed: few
        _load_pending(loaded.shard, pending)
    loaded.next_offset = max(next_offset, loaded.next_offset)
    loaded.snapshot_bytes = sum(len(key) + len(value) for key, value in pairs)


def _load_batches(loaded: Loaded, buffer: Buffer) -> None:
    for position, head in iter_batches(buffer):
        if head.last_offset < loaded.next_offset:
            continue
        if head.attributes & CONTROL:
            _load_marker(loaded.shard, buffer, position, head)
        else:
            producer_id = head.producer_id if head.attributes & TRANSACTIONAL else -1
            try:
                for record in records(buffer, position):
                    if record.offset >= loaded.next_offset:
                        _load_record(loaded.shard, record.key, record.value, producer_id)
            except (KafkaError, DecodeError) as error:
                logger.warning(
                    "skipping the rest of a batch of __consumer_offsets, offsets %d-%d: %s",
                    head.base_offset, head.last_offset, error,
                )  # fmt: skip
        loaded.next_offset = head.last_offset + 1
        loaded.log_bytes += head.size_bytes


def _load_marker(shard: Shard, buffer: Buffer, position: int, head: BatchHead) -> None:
    kind = read_marker(buffer, position, head).kind
    if kind in (ABORT, COMMIT):  # no other types end a transaction
        ending = TransactionMarker(head.producer_id, head.producer_epoch, NO_COORDINATOR, kind)
        shard.load_transactional(ending)


def _load_pending(shard: Shard, stored: PendingPair) -> None:
    try:
        record = decode_record(stored.key, stored.value)
    except DecodeError as error:
        logger.warning("skipping a pending offset of a group snapshot: %s", error)
        return
    if isinstance(record, OffsetRecord) and record.value is not None:
        shard.load_pending(PendingRecord(stored.producer_id, record, stored.superseded))


def _load_record(
    shard: Shard, key: Buffer | None, value: Buffer | None, producer_id: int = -1
) -> None:
    """Apply a record of the log; `producer_id`: of its transaction, or -1."""
    try:
        record = decode_record(key, value)
    except DecodeError as error:
        logger.warning("skipping a record of __consumer_offsets: %s", error)
        return
    if isinstance(record, OffsetRecord) and record.value is not None and producer_id >= 0:
        shard.load_transactional(PendingBatch(producer_id, -1, (record,)))
    elif record is not None:  # a tombstone deletes at once, in a transaction too, as in Kafka
        shard.load(record)


async def store(env: Env, place: SnapshotLocation, live: LiveState) -> int:
    """Write a snapshot of `live`, whose records must be committed; return its size in bytes.
    Raises OSError."""
    pairs: list[snapshot.Pair] = []
    for number, record in enumerate(live.records):
        key, value = encode_record(record)
        assert value is not None, "tombstones are not live"
        pairs.append((key, value))
        if number % SLICE_RECORDS == SLICE_RECORDS - 1:
            await env.slices.pause()
    pending: list[PendingPair] = []
    for producer_id, record, superseded in live.pending:
        key, value = encode_record(record)
        assert value is not None, "transactions delete no offsets"
        pending.append(PendingPair(producer_id, superseded, key, value))
    contents = Contents(live.next_offset, pairs, pending)
    return await env.offload.submit("files", snapshot.write, env.fs, place, contents)
