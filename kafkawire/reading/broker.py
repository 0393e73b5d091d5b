"""Records of any Kafka broker, fetched by offset.

Partitions are read one after another. With read_committed the end of a partition is its last stable
offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.fetching import Fetched, fetch_next, find_delivered_batches
from kafkawire.client.offsets import EARLIEST, LATEST, Partition, leaders, list_offsets
from kafkawire.client.offsets import READ_COMMITTED as COMMITTED_LEVEL
from kafkawire.client.offsets import READ_UNCOMMITTED as UNCOMMITTED_LEVEL
from kafkawire.client.security import NO_SECURITY, ClientSecurity
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.progress import Progress
from kafkawire.reading.files.traffic import ReadCost
from kafkawire.reading.matching import matching
from kafkawire.reading.model.records import (
    PartitionBounds,
    RecordConditions,
    TopicRecord,
    UnknownName,
    topic_record,
)
from kafkawire.reading.model.source import READ_COMMITTED, DamagedData, PartitionRange, SourceError
from kafkawire.reading.port import WIDER, OnDamage

TAIL_OFFSETS = 1000
"""Offsets that a search from the end reads first: a fraction of a Fetch with usual records."""
SEARCHED = "offsets searched"
UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)


class BrokerRecords:
    """Backend of a cluster, see port.Backend. `server`: HOST:PORT[,HOST:PORT...]."""

    def __init__(
        self,
        server: str,
        isolation: str = READ_COMMITTED,
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        self._server = server
        self._level = COMMITTED_LEVEL if isolation == READ_COMMITTED else UNCOMMITTED_LEVEL
        self._fetches = self._bytes = 0
        with _translate_errors():
            self._cluster = Cluster(server, "the address", security)
        self._leaders: dict[str, dict[Partition, int]] = {}

    def topics(self) -> dict[str, int]:
        with _translate_errors():
            rows = self._cluster.metadata(None).topics
        return {row.name: len(row.partitions) for row in rows if not row.error_code}

    def bounds(self, topic: str) -> list[PartitionBounds]:
        with _translate_errors():
            led_by = self._led_by(topic)
            starts = list_offsets(self._cluster, dict.fromkeys(led_by, EARLIEST), led_by)
            ends = list_offsets(self._cluster, dict.fromkeys(led_by, LATEST), led_by, self._level)
        for name, index in led_by:
            if (name, index) not in starts or (name, index) not in ends:
                raise SourceError(f"partition {index} of topic {topic!r} has no leader now")
        return [
            PartitionBounds(place[1], starts[place], max(starts[place], ends[place]))
            for place in sorted(led_by)
        ]

    def offsets_for_time(
        self, topic: str, partitions: Sequence[int], ms: int
    ) -> dict[int, int | None]:
        with _translate_errors():
            wanted = {(topic, each): max(0, ms) for each in partitions}
            found = list_offsets(self._cluster, wanted, self._led_by(topic), self._level)
        return {place[1]: at if at >= 0 else None for place, at in found.items()}

    def offsets_for_stored_time(
        self, topic: str, partitions: Sequence[int], ms: int
    ) -> dict[int, int | None]:
        raise SourceError("Kafka's protocol has no store times: read the bucket or data folder")

    def scan(
        self,
        ranges: Sequence[PartitionRange],
        wanted: RecordConditions,
        on_damage: OnDamage | None,
        progress: Progress,
    ) -> Iterator[TopicRecord]:
        total = sum(each.end - each.base for each in ranges)
        done = 0
        for each in ranges:
            at = each.base
            while at < each.end:
                with _translate_errors():
                    got, after = self._fetch(each, at)
                yield from _find_records(got, each._replace(base=at), wanted, on_damage)
                done += min(after, each.end) - at
                at = after
                progress(SEARCHED, done, total)

    def tail_offsets(self, wanted: PartitionRange) -> tuple[int, int]:
        return TAIL_OFFSETS, TAIL_OFFSETS * WIDER

    def unread(self, topic: str) -> list[PartitionBounds]:
        return []

    def traffic(self) -> list[ReadCost]:
        return [ReadCost(self._server, self._fetches, self._bytes)] if self._fetches else []

    def close(self) -> None:
        self._cluster.close()

    def _fetch(self, wanted: PartitionRange, at: int) -> tuple[Fetched, int]:
        place = wanted[:2]
        node = self._led_by(wanted.topic).get(place, -1)
        got, after = fetch_next(self._cluster, node, place, at, isolation=self._level)
        self._fetches += 1
        self._bytes += len(got.records)
        return got, after

    def _led_by(self, topic: str) -> dict[Partition, int]:
        if topic not in self._leaders:
            try:
                self._leaders[topic] = leaders(self._cluster, [topic])
            except BrokerError as error:
                if error.code in UNKNOWN:
                    raise UnknownName(
                        f"the broker at {self._server} has no topic {topic!r}"
                    ) from None
                raise
        return self._leaders[topic]


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise SourceError for an error of the client."""
    try:
        yield
    except (ClientError, KafkaError) as error:
        raise SourceError(str(error)) from None


def _find_records(
    got: Fetched, place: PartitionRange, wanted: RecordConditions, on_damage: OnDamage | None
) -> Iterator[TopicRecord]:
    """Yield the matching records of one Fetch."""
    topic, partition, base, end = place
    with _translate_errors():
        batches = list(find_delivered_batches(got))
    for position, head in batches:
        if head.base_offset >= end:  # a Fetch has a limit of bytes, none of offsets
            return
        try:
            if not got.sound(position, head):
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "its checksum is wrong")
            found = matching(got.records, position, head, wanted)
        except KafkaError as failure:
            error = DamagedData(
                f"the batch at offset {head.base_offset} of partition {partition} of topic "
                f"{topic!r} is damaged: {failure}",
                topic, partition, max(base, head.base_offset), head.last_offset + 1,
            )  # fmt: skip
            if on_damage is None:
                raise error from None
            on_damage(error)
            continue
        for record in found:
            if base <= record.offset < end:
                yield topic_record(topic, partition, record)
