"""Records of a broker: keys, times, transactions, damage, errors.

Covers: kafkawire.reading.broker, kafkawire.reading.matching, kafkawire.reading.reader.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkawire.codec.batches import Record, pack
from kafkawire.codec.errors import ErrorCode
from kafkawire.reading import (
    READ_UNCOMMITTED,
    DamagedData,
    SourceError,
    UnknownName,
    open_broker,
)
from tests.kit.fake_kafka import FETCH, FakeKafka, Log, serving
from tests.kit.ports import free_port
from tests.kit.spark.files import START_MS, batch, batches, marker


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """Topic t: two partitions; the first has an aborted transaction at the offsets 100 to 109."""
    aborted = batch(100, 10, producer_id=7, producer_epoch=0, base_sequence=0, attributes=0x10)
    one = Log(
        [*batches(0, [10] * 10, codec=4), aborted, marker(110, 7, commits=False)],
        0,
        111,
        aborted=[(7, 100, 110)],
    )
    two = Log([bytes(pack([Record(0, START_MS + 900, b"k5", None, [("a", b"1")])]))], 0, 1)
    with serving({("t", 0): one, ("t", 1): two}) as running:
        yield running


def test_read_find_and_latest(kafka: FakeKafka) -> None:
    with open_broker(kafka.address) as reader:
        assert reader.topics() == {"t": 2}
        assert reader.partitions("t") == [(0, 0, 111), (1, 0, 1)]
        assert reader.unread("t") == []
        assert [each.offset for each in reader.read("t", partitions=[0])] == list(range(100))
        assert [(each.partition, each.offset) for each in reader.find("t", b"k5")] == [
            (0, 5),
            (1, 0),
        ]
        assert reader.latest("t", b"k5") == (
            "t", 1, 0, START_MS + 900, b"k5", None, (("a", b"1"),),
        )  # fmt: skip
        assert reader.latest("t", b"absent") is None
        [traffic] = reader.traffic()
        assert traffic.requests == kafka.asked.count(FETCH)


def test_aborted_records_are_read_only_uncommitted(kafka: FakeKafka) -> None:
    with open_broker(kafka.address) as reader:
        assert list(reader.find("t", b"k105")) == []
        assert reader.latest("t", b"k105") is None
    with open_broker(kafka.address, isolation=READ_UNCOMMITTED) as reader:
        assert [each.offset for each in reader.find("t", b"k105")] == [105]


def test_times(kafka: FakeKafka) -> None:
    with open_broker(kafka.address) as reader:
        found = reader.read("t", partitions=[0], since=START_MS + 20, until=START_MS + 30)
        assert [each.offset for each in found] == list(range(20, 30))


def test_unknown_names(kafka: FakeKafka) -> None:
    with open_broker(kafka.address) as reader:
        with pytest.raises(UnknownName, match="has no topic 'u'"):
            reader.partitions("u")
        with pytest.raises(UnknownName, match="has no partition 7: it has 2"):
            reader.read("t", partitions=[7])


def test_errors_are_sentences(kafka: FakeKafka) -> None:
    with pytest.raises(SourceError, match=r"the address=nonsense: it must be HOST:PORT"):
        open_broker("nonsense")
    with pytest.raises(SourceError, match=r"127\.0\.0\.1"):
        open_broker(f"127.0.0.1:{free_port()}")
    kafka.trouble = lambda key, request: (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED if key == FETCH else None
    )
    with open_broker(kafka.address) as reader, pytest.raises(SourceError, match="AUTHORIZATION"):
        list(reader.read("t"))


def test_damage_is_raised_or_reported(kafka: FakeKafka) -> None:
    damaged = bytearray(kafka.logs["t", 0].batches[3])
    damaged[-1] ^= 1
    kafka.logs["t", 0].batches[3] = bytes(damaged)
    with open_broker(kafka.address) as reader, pytest.raises(DamagedData, match="checksum"):
        list(reader.read("t"))
    harmed: list[DamagedData] = []
    with open_broker(kafka.address, on_damage=harmed.append) as reader:
        found = [each.offset for each in reader.read("t", partitions=[0])]
    assert found == [*range(30), *range(40, 100)]
    assert [(each.base, each.end) for each in harmed] == [(30, 40)]
