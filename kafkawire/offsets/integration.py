"""Client-side offsets of any Kafka cluster: publish, subscribe, seek, commit, lag.

The counterpart of SeaweedMQ's SMQOffsetIntegration over Kafka's protocol: the leader of a partition
assigns offsets, and `kafkawire.offsets.subscription` keeps positions. Blocking, not thread-safe;
part of `kafkawire.offsets`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.fetching import fetch, sound_records
from kafkawire.client.offsets import (
    EARLIEST,
    LATEST,
    Partition,
    call_coordinator,
    commit,
    fetch_committed_offsets,
    leaders,
    list_offsets,
)
from kafkawire.client.producer import produce
from kafkawire.codec.batches import Record
from kafkawire.codec.errors import ErrorCode
from kafkawire.offsets.subscription import Seeker, Subscriber, Subscription
from kafkawire.offsets.types import OffsetRange, OffsetType


class LiveSource:
    """`kafkawire.offsets.subscription.OffsetSource` of one partition of any Kafka cluster.

    Each call is a request to the brokers, so a subscription sees the current log. Blocking. Raises
    ClientError if a broker cannot be reached or returns an error.

    `led_by`: known leaders; None: they are looked up. `committed`: known committed offsets of the
    group, by partition.
    """

    def __init__(
        self,
        cluster: Cluster,
        partition: Partition,
        led_by: Mapping[Partition, int] | None = None,
        committed: Mapping[Partition, int] | None = None,
    ) -> None:
        self._cluster = cluster
        self._partition = partition
        self._led_by = leaders(cluster, [partition[0]]) if led_by is None else led_by
        self._committed = committed
        if partition not in self._led_by:
            raise ClientError(f"topic {partition[0]} has no partition {partition[1]}")

    @property
    def leader(self) -> int:
        return self._led_by[self._partition]

    def log_start(self) -> int:
        return self._ask(EARLIEST)

    def high_watermark(self) -> int:
        return self._ask(LATEST)

    def offset_at(self, timestamp_ms: int) -> int | None:
        found = self._ask(max(0, timestamp_ms))
        return None if found < 0 else found

    def committed(self, group: str) -> int | None:
        if self._committed is not None:
            return self._committed.get(self._partition)
        found = fetch_committed_offsets(self._cluster, group).get(self._partition)
        return None if found is None else found[0]

    def _ask(self, timestamp: int) -> int:
        found = list_offsets(self._cluster, {self._partition: timestamp}, self._led_by)
        if self._partition not in found:
            topic, index = self._partition
            raise ClientError(f"{topic}-{index}: {ErrorCode.LEADER_NOT_AVAILABLE.sentence}")
        return found[self._partition]


class OffsetIntegration:
    """A connection to a cluster and the subscriptions made with it; a context manager.

    `server`: HOST:PORT[,HOST:PORT...]. Raises ClientError if a broker cannot be reached or returns
    an error, OffsetOutOfRange for offsets that a partition does not have.
    """

    def __init__(self, server: str) -> None:
        self._cluster = Cluster(server, "server")
        self._subscriptions = Subscriber()
        self._places: dict[str, tuple[Partition, LiveSource]] = {}

    def publish(
        self,
        topic: str,
        partition: int,
        records: Sequence[tuple[bytes | None, bytes | None]],
    ) -> OffsetRange:
        """Append records (key, value) as one batch with acks=all; return their offsets."""
        if not records:
            raise ValueError("there are no records to publish")
        source = self.source(topic, partition)
        now_ms = time.time_ns() // 1_000_000
        base = produce(self._cluster, source.leader, (topic, partition), records, now_ms)
        return OffsetRange(base, base + len(records))

    def source(self, topic: str, partition: int) -> LiveSource:
        """Return the current state of a partition: log start, high watermark, offsets by time,
        committed offsets."""
        return LiveSource(self._cluster, (topic, partition))

    def subscribe(
        self,
        name: str,
        topic: str,
        partition: int,
        offset_type: OffsetType = OffsetType.RESUME_OR_EARLIEST,
        value: int = 0,
        group: str = "",
    ) -> Subscription:
        """Create a subscription with a unique name; `value`: the offset or the time in ns, if the
        type needs one. Raises ValueError if the name is taken."""
        source = self.source(topic, partition)
        made = self._subscriptions.create(name, source, offset_type, value, group)
        self._places[name] = (topic, partition), source
        return made

    def subscription(self, name: str) -> Subscription:
        """Return the subscription of a name. Raises KeyError if there is none."""
        found = self._subscriptions.get(name)
        if found is None:
            raise KeyError(f"there is no subscription {name!r}")
        return found

    def read(self, name: str, count: int, wait_ms: int = 0) -> list[Record]:
        """Read up to `count` records from a subscription's position and advance it; fewer at the
        end of the log, after at most `wait_ms` if the position is at the end."""
        subscription = self.subscription(name)
        place, source = self._places[name]
        found: list[Record] = []
        while len(found) < count:
            got = fetch(self._cluster, source.leader, place, subscription.position, wait_ms)
            before = subscription.position
            for record in sound_records(got, before):
                if len(found) == count:
                    return found
                found.append(record)
                subscription.advance(record.offset + 1)
            # Skip offsets without a record: compacted ones, control batches.
            last = max((head.last_offset for _, head in got.batches()), default=-1)
            subscription.advance(max(subscription.position, last + 1))
            if subscription.position == before:
                break
        return found

    def commit(self, name: str) -> None:
        subscription = self.subscription(name)
        place, _ = self._places[name]
        if not subscription.group:
            raise ValueError(f"the subscription {name!r} has no group to commit for")
        codes = call_coordinator(
            lambda: commit(self._cluster, subscription.group, {place: subscription.position})
        )
        for (topic, index), code in codes.items():
            if code:
                raise ClientError(f"{topic}-{index}: {ErrorCode(code).name}")

    def lag(self, name: str) -> int:
        """Return the number of offsets from a subscription's position to the partition's end."""
        return self.subscription(name).lag

    def validate_range(self, topic: str, partition: int, start: int, end: int) -> OffsetRange:
        """Return the range [start, end). Raises OffsetOutOfRange unless all of it may be read."""
        return Seeker(self.source(topic, partition)).check_range(start, end)

    def unsubscribe(self, name: str) -> None:
        """Remove a subscription; an unknown name is ignored."""
        self._subscriptions.close(name)
        self._places.pop(name, None)

    def close(self) -> None:
        self._cluster.close()

    def __enter__(self) -> OffsetIntegration:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
