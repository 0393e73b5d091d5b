"""Load a Shard from its snapshot and the log after it, and write snapshots.

Records that cannot be parsed are skipped with a warning, as are unknown record types. Of damaged
ranges of the log the commits known to be in them are recorded, so that they are not answered as
never committed. Called by kafkawire.groups.coordinator.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkawire.codec.batches import BatchHead
from kafkawire.codec.control import ABORT, COMMIT, NO_COORDINATOR, TransactionMarker, read_marker
from kafkawire.codec.types import Buffer
from kafkawire.coordination import snapshot
from kafkawire.coordination.loader import PartitionLoader
from kafkawire.coordination.snapshot import Contents, PendingPair, SnapshotLocation
from kafkawire.groups.model.records import (
    OffsetRecord,
    committed_keys,
    decode_record,
    encode_record,
    ended_producers,
)
from kafkawire.groups.model.request import Settings
from kafkawire.groups.model.topics import ClusterTopics
from kafkawire.groups.model.transactional import PendingBatch
from kafkawire.groups.pending import PendingRecord
from kafkawire.groups.shard import Shard
from kafkawire.log.io.ports import Env

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition

logger = logging.getLogger(__name__)

SLICE_RECORDS = 500
"""Records read from a snapshot at a time: a few milliseconds."""

MAX_LOGGED_PRODUCERS = 20
"""Producer ids named in one line of the log."""


class GroupLoader(PartitionLoader):
    """The groups and offsets of one partition while they are loaded."""

    contents = "groups"
    slice_records = SLICE_RECORDS

    def __init__(
        self,
        env: Env,
        settings: Settings,
        partition: Partition,
        commit_log: CommitLog,
        place: SnapshotLocation,
        topics: ClusterTopics | None = None,
    ) -> None:
        super().__init__(env, partition, commit_log, place)
        self.shard = Shard(settings, topics)
        self._damaged = False

    async def load(self, *, gained: bool = False) -> None:
        await super().load(gained=gained)
        if self._damaged:
            self._end_lost_transactions()

    def _end_lost_transactions(self) -> None:
        partition, pending = self.partition, self.shard.offsets.pending
        transactions = partition.producers.transactions
        still_open = {} if transactions is None else transactions.open
        # Their marker is damaged so that not even its producer can be read. Consumers that request
        # stable offsets would wait for a marker that never comes.
        ended = sorted(pending.producers() - still_open.keys())
        if ended:
            logger.critical(
                "%s-%d: the markers that ended the transactions of producer ids %s are damaged: "
                "offsets committed in them are answered with an error until the group commits "
                "again or `kafkawire offsets` resets them",
                partition.topic, partition.index, _some(ended),
            )  # fmt: skip
            self.shard.lose_transactions(ended)
        if waiting := sorted(pending.producers() & still_open.keys()):
            logger.warning(
                "%s-%d: offsets of the open transactions of producer ids %s are pending; if the "
                "damage has taken the marker of one, consumers of its group wait until "
                "`kafkawire transactions hanging` finds it and `kafkawire transactions abort` "
                "ends it",
                partition.topic, partition.index, _some(waiting),
            )  # fmt: skip

    def apply_record(self, key: Buffer | None, value: Buffer | None, producer_id: int) -> None:
        record = decode_record(key, value)
        if isinstance(record, OffsetRecord) and record.value is not None and producer_id >= 0:
            self.shard.apply(PendingBatch(producer_id, -1, (record,)))
        # A tombstone deletes at once, in a transaction, too (as in Kafka).
        elif record is not None:
            self.shard.apply(record)

    def take_pending(self, stored: PendingPair) -> None:
        record = decode_record(stored.key, stored.value)
        if isinstance(record, OffsetRecord) and record.value is not None:
            self.shard.load_pending(PendingRecord(stored.producer_id, record, stored.superseded))

    def take_marker(self, buffer: Buffer, position: int, head: BatchHead) -> None:
        kind = read_marker(buffer, position, head).kind
        # Control records of other types end no transaction.
        if kind in (ABORT, COMMIT):
            ending = TransactionMarker(head.producer_id, head.producer_epoch, NO_COORDINATOR, kind)
            self.shard.apply(ending)

    async def pass_damage(self, first: int, end: int) -> None:
        self._damaged = True
        partition = self.partition
        payloads = await partition.damaged_payloads(first, end)
        lost = {key for payload in payloads for key in committed_keys(payload)}
        what = (
            f"{len(lost)} committed offsets were among it: they are answered with an error until "
            "the group commits again or `kafkawire offsets` resets them"
            if lost
            else "groups whose only commits were there have none any more"
        )
        where = f"{partition.topic}-{partition.index}"
        logger.critical("%s: offsets %d-%d and the group state stored there are lost: %s",
                        where, first, end - 1, what)  # fmt: skip
        ended = {producer_id for payload in payloads for producer_id in ended_producers(payload)}
        self.shard.offsets.lose(lost)
        self.shard.lose_transactions(ended)


def _some(producer_ids: list[int]) -> str:
    """Return the first producer ids for a log line, and how many there are besides."""
    shown = ", ".join(map(str, producer_ids[:MAX_LOGGED_PRODUCERS]))
    more = len(producer_ids) - MAX_LOGGED_PRODUCERS
    return f"{shown} and {more} more" if more > 0 else shown


@dataclass(frozen=True, slots=True)
class LiveState:
    """The state that a snapshot stores: that of the records below `next_offset`, of `shard` as of
    now or later."""

    next_offset: int
    shard: Shard
    pending: list[PendingRecord]


async def encode(env: Env, live: LiveState) -> Contents:
    pairs: list[snapshot.Pair] = []
    # The groups may change meanwhile: a change is in the log after `next_offset`, so a load applies
    # its record again, and of each key the last record counts. Not so with pending offsets, which
    # are therefore those as of `next_offset`.
    for record in live.shard.records():
        key, value = encode_record(record)
        assert value is not None, "tombstones are not live"
        pairs.append((key, value))
        await env.slices.give_way()
    pending: list[PendingPair] = []
    for producer_id, record, superseded in live.pending:
        key, value = encode_record(record)
        assert value is not None, "transactions delete no offsets"
        pending.append(PendingPair(producer_id, superseded, key, value))
        await env.slices.give_way()
    return Contents(live.next_offset, pairs, pending)
