"""The logs of other brokers, as far as the follower of this machine has copies of them: partitions
with durability=replicated that consumers read here up to what is committed.

The follower process has the files, and is asked up to where they are committed. A log is followed
from the first read on: its frames are indexed as a start of its broker would index them, up to the
committed position, and each rise of that wakes the Fetches that wait. Nothing is stored: after an
end of the follower, another start of the broker that writes the log, or IDLE_S without a read, the
index is built again by the next read. Shell: reads files and the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os.path
from collections.abc import Collection, Iterable

from kafkawire.broker.followers.opening import read_certificate, read_identity
from kafkawire.broker.moving.plan import durability_of
from kafkawire.client.address import split_address
from kafkawire.codec.batches import (
    ATTRIBUTES,
    BASE_OFFSET,
    CONTROL,
    LEADER_EPOCH,
    PRODUCER_ID,
    TRANSACTIONAL,
)
from kafkawire.codec.configs.durability_rules import REPLICATED
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.codec.control import ABORT
from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.followers.network import TcpNetwork
from kafkawire.log.followers.source import FAILURES, CopyReader, reading
from kafkawire.log.io.ports import Env, FileSystem
from kafkawire.log.journal.directory import Journals
from kafkawire.log.journal.file import POSITION_BITS, POSITION_MASK, Journal, journal_name
from kafkawire.log.journal.format import HEADER_BYTES
from kafkawire.log.journal.index_columns import IndexColumns
from kafkawire.log.journal.scan import Fact, Scanned, scan
from kafkawire.log.manager import Log
from kafkawire.log.partition.hooks import Hooks
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.transactions import PartitionTransactions
from kafkawire.log_lines import reason_of
from kafkawire.metadata.catalog import Catalog
from kafkawire.offsets.catalog.port import PartitionRow
from kafkawire.offsets.catalog.replica_sets import FollowerRow
from kafkawire.replication.failures import FollowerError
from kafkawire.replication.journal_copy import NO_LIMIT
from kafkawire.replication.messages import CopyMessage
from kafkawire.replication.options import FOLLOWER_FOLDER, SSL

logger = logging.getLogger(__name__)

IDLE_S = 60.0
"""After which a log that no consumer reads is not followed any more: indexing it takes CPU time."""
LOAD_S = 2.0
"""How long a Fetch waits for the index of a log; then it is sent to the leader."""
CURRENT_S = 3.0
"""For so long a copy counts as in sync after it had everything: marks come twice a second."""
RETRY_S = 2.0
"""After which a log is followed again that could not be."""
SCAN_BYTES = 1 << 20
"""Bytes of a journal that a thread scans at once."""
MAX_ROWS = 2_000_000
"""Rows of the index of one log, each 40 bytes. The oldest are dropped: the leader has them."""


class FollowedLog:
    """The log of one process of another broker, in the copy of this machine. `loaded` is set when
    it is indexed, or has `ended`; `skipped`: partitions in it that the catalog did not have."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        catalog: Catalog,
        own: Log,
        follower: FollowerRow,
        process: CopyReader,
        data: str,
    ) -> None:
        self._env = env
        self._catalog = catalog
        self._loader = own.loader
        self._follower = follower
        self._process = process
        self.epoch = process.broker_epoch
        self._folder = os.path.join(data, FOLLOWER_FOLDER, str(process.node_id), str(self.epoch))
        # Nothing is sent from mappings: the follower truncates its files.
        self._journals = Journals(env, self._folder, 0, 0, 0, viewed_from=NO_LIMIT)
        segments = own.commit_log.reader.segments
        self._log = CommitLog(env, config, self._journals, segments, Hooks(_ignore), _refuse)
        self._partitions: dict[int, Partition] = {}
        self.skipped: set[int] = set()
        self._number = self._at = self._run_number = self._rows = 0
        self._current_s = -CURRENT_S
        self.used_s = self.begun_s = env.clock.monotonic()
        self.loaded = asyncio.Event()
        self.ended = False
        self._task = env.spawn(self._run(), f"follow the log of broker {process.node_id}")

    def stop(self) -> None:
        self._task.cancel()
        self._end()

    def find(self, number: int, offset: int) -> Partition | None:
        """Return a partition if it has an offset, or a Fetch may wait here for its records."""
        partition = self._partitions.get(number)
        if partition is None or self.ended or not self.loaded.is_set():
            return None
        if offset >= partition.high_watermark:
            # Otherwise the copy is not in sync: the leader has what is waited for.
            is_current = self._env.clock.monotonic() - self._current_s < CURRENT_S
            return partition if is_current else None
        base = partition.rows.base
        first = base[0] if base else partition.high_watermark
        return partition if offset >= max(first, partition.log_start) else None

    def take_row(self, row: PartitionRow, *, is_later: bool) -> None:
        """Take the log start of a partition from SQL. With a row that `is_later` than the index, a
        partition that is not in the copy begins where SQL has it end."""
        state, number = row.checkpoint, row.number
        partition = self._partitions.get(number)
        # Nothing is between the two: records leave the copy after SQL has them in segments.
        if partition is None and is_later and number not in self.skipped:
            partition = self._make(number)
            if partition is not None:
                ends = [each.end_offset for each in row.mappings[-1:]]
                _end_at(partition, max([0 if state is None else state.next_offset, *ends]))
        if partition is not None and state is not None:
            partition.log_start = max(partition.log_start, state.log_start)

    async def _run(self) -> None:
        now, known = self._env.clock.monotonic, 0
        try:
            async with reading(TcpNetwork(), self._process, self._follower) as source:
                while now() - self.used_s < IDLE_S:
                    copy = await source.wait_for_commit(self.epoch, known)
                    await self._index(copy)
                    known = copy.readable
                    if copy.committed <= copy.end:
                        self._current_s = now()
                    self.loaded.set()
        except FAILURES as failure:
            logger.info(
                "the copy of the log of broker %d, epoch %d, is not read here any more, its "
                "consumers are sent to the leader: %s",
                self._process.node_id, self.epoch, reason_of(failure),
            )  # fmt: skip
        finally:
            self._end()

    def _end(self) -> None:
        self.ended = True
        self.loaded.set()
        for partition in self._partitions.values():
            partition.notify_watchers()

    async def _index(self, copy: CopyMessage) -> None:
        """Index what has become readable. Raises OSError, also for damage."""
        limit = copy.readable
        if copy.files:
            self._drop_before(copy.files[0][0])
        for number, size in copy.files:
            if number < self._number or number > limit >> POSITION_BITS:
                continue
            if number > self._number:
                self._number, self._at = number, HEADER_BYTES
                path = os.path.join(self._folder, journal_name(number))
                self._journals.by_number[number] = Journal(number, path, None, size)
            is_last = number == limit >> POSITION_BITS
            stop = limit & POSITION_MASK if is_last else size
            await self._index_journal(self._journals.by_number[number], stop)
            # In the last one a frame may not be complete yet.
            if self._at < stop and not is_last:
                raise OSError(f"{self._journals.by_number[number].path} is damaged")

    async def _index_journal(self, journal: Journal, stop: int) -> None:
        submit, room = self._env.offload.submit, SCAN_BYTES
        while self._at < stop:
            end = min(stop, self._at + room)
            found = await submit(
                "read", scan_copy, self._env.fs, journal, self._at, end, self._run_number
            )
            if found.gaps:
                raise OSError(f"{journal.path} is damaged at byte {found.gaps[0].start}")
            if found.end > self._at:
                room = SCAN_BYTES
            elif end < stop:
                room *= 2  # a longer frame
            else:
                return
            self._at, self._run_number = found.end, found.run
            await self._add(found)

    async def _add(self, found: Scanned) -> None:
        """Add the rows that were scanned, and wake the Fetches that wait for them."""
        for number, rows in found.rows.items():
            partition = self._partitions.get(number) or self._make(number)
            if partition is not None:
                before = len(partition.rows)
                add_rows(partition, rows, found.facts.get(number, ()))
                self._rows += len(partition.rows) - before
                partition.notify_watchers()
            await self._env.slices.give_way()
        while self._rows > MAX_ROWS and len(self._journals.by_number) > 1:
            self._drop_before(list(self._journals.by_number)[1])

    def _make(self, number: int) -> Partition | None:
        """Return a new partition; None if its topic is not replicated, or not known."""
        location = self._catalog.locate(number)
        if location is None:
            self.skipped.add(number)
            return None
        config = self._loader.configs.config_of_topic(location.topic_id)
        if not config.replicated:
            return None
        made = self._partitions[number] = Partition(
            self._log, number, location.topic_id, location.topic, location.index,
            location.leader_epoch, config, self._loader.traffic.counters_of_topic(location.topic),
        )  # fmt: skip
        made.resign()
        made.removed = False  # it gets more records
        made.epochs = []
        return made

    def _drop_before(self, first: int) -> None:
        """Forget the rows in journals before one."""
        numbers = [each for each in self._journals.by_number if each < first]
        for number in numbers:
            del self._journals.by_number[number]
        for partition in self._partitions.values() if numbers else ():
            rows, transactions = partition.rows, partition.producers.transactions
            dropped = rows.row_at(first << POSITION_BITS)
            rows.drop_front(dropped)
            self._rows -= dropped
            if transactions is not None:
                transactions.aborted.drop_below(rows.base[0] if rows else partition.next_offset)


def scan_copy(fs: FileSystem, journal: Journal, start: int, stop: int, run: int) -> Scanned:
    """Scan the frames of a journal between two positions, of which the last may be cut. Blocks."""
    file = fs.open(journal.path)
    try:
        if file.size() < stop:
            raise OSError(f"{journal.path} ends before byte {stop}")
        # Only committed bytes are mapped, which the follower does not truncate.
        return scan(file.map(stop), journal.number, start, None, run)
    finally:
        file.close()


def add_rows(partition: Partition, rows: IndexColumns, facts: Iterable[Fact]) -> None:
    """Add committed rows to a partition, with the transactions and leader epochs in them."""
    index, before, end = partition.rows, len(partition.rows), partition.next_offset
    index.extend(rows)
    start = None
    for at, base in enumerate(rows.base, before):
        if base != end:
            start = at
        end = index.end_offset(at)
    # Another broker has led it meanwhile, and all transactions had ended then.
    if start is not None:
        index.drop_front(start)
        partition.producers.transactions = None
        _end_at(partition, index.base[0])
    _add_facts(partition, facts)
    _end_at(partition, end)


def _add_facts(partition: Partition, facts: Iterable[Fact]) -> None:
    """Add the transactions and leader epochs after the end of a partition."""
    for _, fields, marker in facts:
        base, epoch, attributes = fields[BASE_OFFSET], fields[LEADER_EPOCH], fields[ATTRIBUTES]
        if base < partition.next_offset:
            continue
        if not partition.epochs or epoch > partition.epochs[-1][0]:
            partition.epochs.append((epoch, base))
        if not attributes & TRANSACTIONAL:
            continue
        producer_id = fields[PRODUCER_ID]
        known = partition.producers.transactions
        if known is None:
            known = partition.producers.transactions = PartitionTransactions()
        if not attributes & CONTROL:
            if producer_id not in known.open:
                known.open_transaction(producer_id, base)
        # Coordinators send markers again: then nothing is open.
        elif marker is not None and marker.kind >= 0 and producer_id in known.open:
            known.end_transaction(producer_id, base, aborted=marker.kind == ABORT)


def _end_at(partition: Partition, offset: int) -> None:
    """Set log end and high watermark."""
    partition.next_offset = offset
    partition.raise_high_watermark(offset)


def _ignore(_: object) -> None: ...


async def _refuse(_: object) -> None:
    raise AssertionError("nothing is deleted in a copy")


class FollowedLogs:
    """The logs that are read here, by the node id of their brokers."""

    def __init__(
        self, env: Env, config: BrokerConfig, catalog: Catalog, log: Log, data: str
    ) -> None:
        self._env = env
        self._config = config
        self._catalog = catalog
        self._log = log
        self._data = data
        self._logs: dict[int, FollowedLog] = {}

    def find(self, number: int, offset: int) -> Partition | None:
        """Return the partition that another broker leads if it has an offset here, or a Fetch may
        wait for it."""
        followed = self._of(number)
        if followed is None:
            return None
        followed.used_s = self._env.clock.monotonic()
        return followed.find(number, offset)

    async def load(self, numbers: Collection[int]) -> set[int]:
        """Begin to follow the logs of partitions, and wait up to LOAD_S for their indexes; return
        the partitions whose log is indexed."""
        waiting = []
        for number in numbers:
            leader = self._catalog.leader_of(number)
            if leader is None or durability_of(self._catalog, number) != REPLICATED:
                continue
            followed = self._of(number)
            if followed is None or number in followed.skipped:
                followed = await self._follow(leader)
            if followed is not None and not followed.loaded.is_set():
                waiting.append(followed.loaded.wait())
        if waiting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOAD_S):
                    await asyncio.gather(*waiting)
        logs = ((number, self._of(number)) for number in numbers)
        return {number for number, each in logs if each is not None and each.loaded.is_set()}

    def take_row(self, row: PartitionRow, *, is_later: bool) -> None:
        """Take the row of a partition from SQL; `is_later`: it was read after `load` returned the
        partition."""
        followed = self._of(row.number)
        if followed is not None:
            followed.take_row(row, is_later=is_later)

    def _of(self, number: int) -> FollowedLog | None:
        """Return the log of the leader of a partition; None if it is not followed."""
        leader = self._catalog.leader_of(number)
        followed = self._logs.get(-1 if leader is None else leader)
        if followed is None or leader is None or followed.ended:
            return None
        # Another process writes the log since then.
        return followed if followed.epoch == self._catalog.brokers[leader].epoch else None

    async def _follow(self, leader: int) -> FollowedLog | None:
        """Begin to follow the log of a broker; None if that is not possible, or failed just now."""
        before, epoch = self._logs.get(leader), self._catalog.brokers[leader].epoch
        now_s = self._env.clock.monotonic()
        if before is not None and before.epoch == epoch and now_s - before.begun_s < RETRY_S:
            return None if before.ended else before
        follower = await self._own_follower()
        if follower is None or self._logs.get(leader) is not before:
            return None
        if before is not None:
            before.stop()
        process = CopyReader(self._catalog.cluster_id, leader, epoch)
        followed = self._logs[leader] = FollowedLog(
            self._env, self._config, self._catalog, self._log, follower, process, self._data
        )
        return followed

    async def _own_follower(self) -> FollowerRow | None:
        """Return the follower of this machine; None if it has none that can be used."""
        listener = split_address(self._config.replication_listener)
        if listener is None:
            return None
        submit = self._env.offload.submit
        encrypts = self._config.replication_security_protocol == SSL
        try:
            found = await submit("files", read_identity, self._data)
            certificate = await submit("files", read_certificate, self._data) if encrypts else ""
        except (OSError, FollowerError):
            return None
        if found is None:
            return None
        _, host, port = listener
        host = host if host not in ("", "0.0.0.0", "::") else "localhost"
        node_id = self._config.node_id
        return FollowerRow(found.replica_id.hex(), node_id, host, port, found.key, certificate)
