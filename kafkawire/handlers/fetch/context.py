"""The parts of a broker that all of its Fetches use, and the Fetches that wait."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import ErrorCode, KafkaError, code_of
from kafkawire.codec.fetch import FetchResult
from kafkawire.codec.types import Part
from kafkawire.handlers.budget import IterationBudget
from kafkawire.handlers.fetch.aborted import list_aborted
from kafkawire.handlers.fetch.rack_reads import RackReads
from kafkawire.handlers.fetch.sessions import FetchSessions
from kafkawire.handlers.fetch.view_reads import ViewReads
from kafkawire.handlers.hot_rights import TopicRights
from kafkawire.handlers.leader_hints import LeaderHints
from kafkawire.log.segments.store.remote_tier import readable_log_start
from kafkawire.security.acls.model import Operation

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition, Plan
    from kafkawire.log.partition.state import LoadedPartition

logger = logging.getLogger(__name__)

DEFECTS_LOGGED_MAX = 1000
"""Partitions whose defective reads are logged, because clients retry repeatedly."""

BATCH_BYTES = 4 << 20
"""Bytes of responses sent in one event-loop iteration: the kernel copies them in a millisecond or
two, and all other clients wait."""


class WaitingFetch(Protocol):
    """A Fetch that waits for records, or for memory. Both methods answer it at once: `expire` with
    the available records, `give_up` without records."""

    def expire(self) -> None: ...
    def give_up(self) -> None: ...


class FetchContext:
    """One for the life of a broker. `parked`: the Fetches that wait for records;
    `starved`: those that wait for memory."""

    def __init__(self, broker: Broker) -> None:
        self.table = broker.table
        self.segments = broker.log.segments.store
        self.commit_log = broker.log.commit_log
        self.env = broker.env
        self.config = broker.config
        self.counts = broker.counts
        self.memory = broker.answer_memory
        self.quotas = broker.quotas
        self.parked: dict[WaitingFetch, None] = {}  # in order of arrival
        self.starved: dict[WaitingFetch, None] = {}
        self.defects: set[str] = set()
        self.rights = TopicRights(broker, "Fetch", Operation.READ)
        self.hints = LeaderHints(broker)
        self.racks = RackReads(broker)
        self.views = ViewReads(broker)
        self.sessions = FetchSessions(
            broker.env, broker.config.max_incremental_fetch_session_cache_slots
        )
        self.budget = IterationBudget(broker.env.call_soon, BATCH_BYTES)

    def code_of(self, failure: Exception, topic: str | bytes, index: int, offset: int) -> int:
        """Return the error of a failed read. A defect is logged once for each partition."""
        if not isinstance(failure, KafkaError | OSError):
            where = f"{topic if isinstance(topic, str) else topic.hex()}-{index}"
            if where not in self.defects and len(self.defects) < DEFECTS_LOGGED_MAX:
                self.defects.add(where)
                logger.error(
                    "reading %s at offset %d failed, answered with an error",
                    where,
                    offset,
                    exc_info=failure,
                )
        return int(code_of(failure))

    def describe(self, result: FetchResult, partition: Partition) -> None:
        """Set the log start and the end offsets of the partition."""
        result.high_watermark = partition.high_watermark
        result.last_stable_offset = partition.last_stable_offset
        result.log_start_offset = readable_log_start(partition, self.segments)

    async def read(
        self,
        result: FetchResult,
        plan: Plan,
        patience_s: float | None = None,
        *,
        committed: bool,
        spans: bool = False,
    ) -> None:
        """Read the records of the plan, or set their error; for a reader of `committed` records
        with the aborted transactions. `spans`: long stretches of files are not read."""
        aborted: list[Aborted] | None = [] if committed else None
        partition = plan.partition
        try:
            parts: Sequence[Part]
            try:
                parts = await read_parts(plan, patience_s, aborted, spans=spans)
            except (KafkaError, OSError):
                if not (partition.resigned and self.racks.enabled):
                    raise
                plan = await self.racks.plan_again(plan)
                aborted = [] if committed else None
                parts = await read_parts(plan, patience_s, aborted, spans=spans)
            result.records = [*parts]
            result.size_bytes = sum(map(len, parts))
            self.count_sent(partition, result.size_bytes)
            if aborted:
                result.aborted = list_aborted(aborted)
        except Exception as failure:
            result.error_code = self.code_of(failure, partition.topic, partition.index, plan.offset)
            if partition.resigned and self.racks.enabled:
                # Its leader may have a copy that can be read.
                result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER

    def count_sent(self, partition: LoadedPartition, size_bytes: int) -> None:
        """Count bytes of older records of a partition in a response."""
        partition.traffic.out_bytes += size_bytes
        if partition.resigned:
            self.counts.replica_bytes += size_bytes


async def read_parts(
    plan: Plan, patience_s: float | None, aborted: list[Aborted] | None, *, spans: bool
) -> Sequence[Part]:
    """Read the records of a plan from the log of its partition: that of this broker, or a copy."""
    log = cast("CommitLog", plan.partition.log)
    read = log.reader.read_parts if spans else log.read
    return await read(plan, patience_s, aborted)


def find_divergence(
    result: FetchResult, partition: Partition, last_epoch: int, offset: int
) -> bool:
    """KIP-595: set the end of the client's last epoch here if that is lower than the client's
    position, and return whether it is."""
    epoch, end_offset = partition.epoch_end(last_epoch)
    if epoch < 0 or end_offset < 0:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < last_epoch or end_offset < offset:
        result.diverging = (epoch, end_offset)
        return True
    return False
