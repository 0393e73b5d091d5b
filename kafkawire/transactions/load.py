"""Filling a TransactionShard from disk, and writing its records: snapshot plus the log after it.

Loading reads the newest usable snapshot, then the committed part of the log from there on, in
slices small enough for other work of the event loop. Records that do not parse are skipped with a
warning, as are records of unknown types. Damaged ranges of the log are passed over: an id whose
newest record was in one is forgotten, because its outcome may have been decided there, and an older
state would decide it again. Its producer is answered INVALID_PRODUCER_ID_MAPPING and has to begin
again; data of an open transaction stays open until an operator ends it (kafka-transactions
find-hanging).

Called by kafkawire.transactions.coordinator.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkawire.codec.batches import CONTROL, HEAD_BYTES, iter_batches, read_head, records
from kafkawire.codec.errors import DamagedOffsets, ErrorCode, KafkaError
from kafkawire.codec.types import Buffer, DecodeError
from kafkawire.coordination import snapshot
from kafkawire.coordination.snapshot import Contents, SnapshotLocation
from kafkawire.log.io.ports import Env
from kafkawire.transactions.machine.records import TransactionRecord, decode_record, encode_record
from kafkawire.transactions.machine.request import TransactionConfig
from kafkawire.transactions.machine.shard import TransactionShard

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition

logger = logging.getLogger(__name__)

SLICE_BYTES = 32 * 1024
"""Read and applied at a time: about 300 records, under ten milliseconds."""
SLICE_RECORDS = 300
"""Taken from or put into a snapshot at a time, for the same reason."""
MAX_LOGGED_IDS = 20
"""Transactional ids named in one log line."""

SNAPSHOT_MAGIC = b"KWTRANSA"


def snapshot_place(folder: str, partition: Partition) -> SnapshotLocation:
    """Where the snapshot of a partition of `__transaction_state` is."""
    return SnapshotLocation(
        folder, partition.topic_id, partition.index, SNAPSHOT_MAGIC, "transactions"
    )


@dataclass(slots=True)
class LoadedShard:
    """A filled shard. `next_offset`: everything below it is in; `log_bytes` were read after the
    snapshot, which has `snapshot_bytes` (0: there was none)."""

    shard: TransactionShard
    next_offset: int
    log_bytes: int = 0
    snapshot_bytes: int = 0


async def load(
    env: Env,
    config: TransactionConfig,
    partition: Partition,
    commit_log: CommitLog,
    place: SnapshotLocation,
) -> LoadedShard:
    """Read everything committed. Raises KafkaError or OSError if the log cannot be read."""
    try:
        await commit_log.committed()
    except KafkaError as error:
        logger.warning(
            "%s-%d: loading transactions only up to the high watermark: %s",
            partition.topic, partition.index, error,
        )  # fmt: skip
    end = partition.high_watermark
    loaded = LoadedShard(TransactionShard(config, partition.leader_epoch), partition.log_start)
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


async def _pass_damage(loaded: LoadedShard, partition: Partition, end: int) -> None:
    """Continue at `end`, after a damaged range; forget the ids that had records in it."""
    first = loaded.next_offset
    payloads = await partition.damaged_payloads(first, end)
    lost = sorted({name for payload in payloads for name in stored_ids(payload)})
    logger.critical(
        "%s-%d: offsets %d-%d are damaged; %d transactional ids with records there are forgotten, "
        "their producers have to start again, and open transactions of them have to be ended with "
        "kafka-transactions find-hanging and abort: %s",
        partition.topic, partition.index, first, end - 1, len(lost),
        ", ".join(lost[:MAX_LOGGED_IDS]),
    )  # fmt: skip
    for transactional_id in lost:
        loaded.shard.apply(TransactionRecord(transactional_id, None))
    loaded.next_offset = end


def stored_ids(payload: Buffer) -> set[str]:
    """Transactional ids in the batches of a damaged frame, as far as they can be read."""
    found: set[str] = set()
    at = 0
    while at + HEAD_BYTES <= len(payload):
        size = read_head(payload, at).size_bytes
        with suppress(KafkaError, DecodeError):  # before the damage there may be sound records
            for record in records(payload, at):
                decoded = decode_record(record.key, None)
                if decoded is not None:
                    found.add(decoded.transactional_id)
        if size < HEAD_BYTES:
            break
        at += size
    return found


async def _load_snapshot(env: Env, loaded: LoadedShard, place: SnapshotLocation, end: int) -> None:
    found = await env.offload.submit("files", snapshot.read, env.fs, place)
    if found is None:
        return
    next_offset, pairs = found.next_offset, found.pairs
    if next_offset > end:
        # Under flush=os a crash can take records that a snapshot has. Their offsets will be
        # given again, so the file must be gone before that happens.
        logger.warning("removing snapshot %s: it is ahead of the log", place.path)
        await env.offload.submit("files", snapshot.remove, env.fs, place)
        return
    for start in range(0, len(pairs), SLICE_RECORDS):
        for key, value in pairs[start : start + SLICE_RECORDS]:
            _load_record(loaded.shard, key, value)
        await env.slices.pause()
    loaded.next_offset = max(next_offset, loaded.next_offset)
    loaded.snapshot_bytes = sum(len(key) + len(value) for key, value in pairs)


def _load_batches(loaded: LoadedShard, buffer: Buffer) -> None:
    for position, head in iter_batches(buffer):
        if head.last_offset < loaded.next_offset:
            continue
        if not head.attributes & CONTROL:
            try:
                for record in records(buffer, position):
                    if record.offset >= loaded.next_offset:
                        _load_record(loaded.shard, record.key, record.value)
            except (KafkaError, DecodeError) as error:
                logger.warning(
                    "skipping the rest of a batch of __transaction_state, offsets %d-%d: %s",
                    head.base_offset, head.last_offset, error,
                )  # fmt: skip
        loaded.next_offset = head.last_offset + 1
        loaded.log_bytes += head.size_bytes


def _load_record(shard: TransactionShard, key: Buffer | None, value: Buffer | None) -> None:
    try:
        record = decode_record(key, value)
    except DecodeError as error:
        logger.warning("skipping a record of __transaction_state: %s", error)
        return
    if record is not None:
        shard.apply(record)


async def store(
    env: Env,
    place: SnapshotLocation,
    next_offset: int,
    transaction_version: int,
    live: Iterable[TransactionRecord],
) -> int:
    """Write a snapshot of `live`, the state after all records below `next_offset`; its size in
    bytes. The caller has made sure that these are committed. Raises OSError."""
    pairs: list[snapshot.Pair] = []
    for number, record in enumerate(live):
        key, value = encode_record(record, transaction_version)
        assert value is not None, "tombstones are not live"
        pairs.append((key, value))
        if number % SLICE_RECORDS == SLICE_RECORDS - 1:
            await env.slices.pause()
    contents = Contents(next_offset, pairs, [])
    return await env.offload.submit("files", snapshot.write, env.fs, place, contents)
