"""Topics with known rows, produced by librdkafka to a real broker, for tests that read them with
Spark.

The produced records are kept here as Spark must show them: a Row for each record, by topic,
partition and offset. `until_cut` waits until the records are in segments that a manifest lists.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafkawire.reading.catalog import open_catalog
from kafkawire.reading.model.source import Source, SourceError
from kafkawire.testing.process import BrokerProcess

WITHIN_S = 60.0
START_MS = 1_700_000_000_000
QUICK = {
    "journal.roll.ms": "300",
    "cut.interval.ms": "100",
    "tiering.max.lag.ms": "5000",
    "tiering.min.object.bytes": "1",
    "tier.delete.delay.ms": "1",
}
"""Settings of a broker whose records are in segments, and those in the tier, within seconds."""
HASTY = {
    "journal.roll.ms": "200",
    "cut.interval.ms": "50",
    "log.segment.delete.delay.ms": "0",
    "segment.dead.max.ms": "1",
    "log.cleaner.backoff.ms": "100",
}
"""Settings of a broker that cuts, merges, cleans and deletes segments at once."""

Headers = tuple[tuple[str, bytes | None], ...]


class Row(NamedTuple):
    """One record. `headers` None: it has none."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None


@dataclass
class Topics:
    """The records produced to a broker, by topic and partition."""

    broker: BrokerProcess
    rows: dict[tuple[str, int], list[Row]] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    def make(self, name: str, partitions: int, **config: str) -> None:
        """Create a topic. Settings by name with underscores for dots."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        admin.create_topics([new])[name].result(60)
        self.rows |= {(name, partition): [] for partition in range(partitions)}

    def add_partitions(self, name: str, partitions: int) -> None:
        from confluent_kafka.admin import NewPartitions

        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_partitions([NewPartitions(name, partitions)])[name].result(60)
        for partition in range(partitions):
            self.rows.setdefault((name, partition), [])

    def delete(self, name: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.delete_topics([name])[name].result(60)
        self.rows = {key: rows for key, rows in self.rows.items() if key[0] != name}

    def produce(self, name: str, records: Iterable[Row], codec: str = "none") -> None:
        """Append records; each gets the next offset of its partition."""
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "compression.type": codec, "linger.ms": 5}
        )
        for row in records:
            there = self.rows[name, row.partition]
            there.append(row._replace(topic=name, offset=len(there)))
            headers = list(row.headers) if row.headers else None
            while True:
                try:
                    producer.produce(
                        name, row.value, row.key, row.partition,
                        timestamp=row.timestamp_ms, headers=headers,
                    )  # fmt: skip
                    break
                except BufferError:  # its queue is full
                    producer.poll(1)
        assert producer.flush(60) == 0

    def fill(self, name: str, count: int, codec: str = "none") -> None:
        """Append this many records, over all partitions: "NAME:n", n counted in the topic."""
        partitions = [partition for topic, partition in self.rows if topic == name]
        first = sum(len(self.rows[name, partition]) for partition in partitions)
        self.produce(
            name, (record(name, n, n % len(partitions)) for n in range(first, first + count)), codec
        )

    def of(self, *names: str) -> list[Row]:
        """All rows of topics, in order; of all topics if none is named."""
        return sorted(
            row for key, rows in self.rows.items() if not names or key[0] in names for row in rows
        )

    def until_cut(self, url: str, *names: str) -> None:
        """Wait until all rows of topics are in segments of a tier or a data folder."""
        end = time.monotonic() + WITHIN_S
        missing: Mapping[tuple[str, int], int] = self._wanted(names)
        while missing and time.monotonic() < end:
            time.sleep(0.2)
            missing = self._not_cut(url, names)
        assert not missing, f"not in segments of {url} after {WITHIN_S} s: {missing}"

    def _wanted(self, names: Sequence[str]) -> dict[tuple[str, int], int]:
        return {
            key: len(rows)
            for key, rows in self.rows.items()
            if rows and (not names or key[0] in names)
        }

    def _not_cut(self, url: str, names: Sequence[str]) -> dict[tuple[str, int], int]:
        wanted = self._wanted(names)
        try:
            catalog = open_catalog(Source(url))
        except SourceError:
            return wanted  # there is no manifest yet
        there = catalog.topics
        return {
            key: end
            for key, end in wanted.items()
            if there.get(key[0], 0) <= key[1] or catalog.bounds(*key).segments_end < end
        }


def record(name: str, n: int, partition: int) -> Row:
    """Record n of a topic; its timestamp is n seconds after START_MS."""
    value = b"%s:%d" % (name.encode(), n)
    return Row(name, partition, -1, START_MS + n * 1000, b"key-%d" % (n % 7), value, None)


def odd(partition: int) -> list[Row]:
    """Records with nulls, empty and large values, and timestamps out of order."""
    rows: list[tuple[int, bytes | None, bytes | None, Headers | None]] = [
        (START_MS + 5, None, b"no key", None),
        (START_MS + 4, b"no value", None, None),
        (START_MS + 3, None, None, (("only", b"headers"),)),
        (START_MS + 2, b"", b"", (("", b""), ("null", None), ("null", b"again"))),
        (START_MS + 1, b"large", b"x" * 300_000, None),
        (START_MS, "ünïcode".encode(), bytes(range(256)), (("ü", b"\xff\x00"),)),
    ]
    return [Row("", partition, -1, *row) for row in rows]
