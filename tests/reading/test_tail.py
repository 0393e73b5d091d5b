"""Reading through the Kafka protocol: the tail, its ends and losses, failures of the broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.manifest.keys import segment_key
from kafkawire.reading import read_task as reading
from kafkawire.reading import tail
from kafkawire.reading.catalog import Bounds, open_catalog
from kafkawire.reading.files import broker_queries as asking
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import (
    ABORTED,
    COMPACTED,
    CONTROL,
    DAMAGED,
    LOST,
    DamagedData,
    DataLoss,
    PartitionRange,
    Source,
    SourceError,
    Task,
    TaskPart,
)
from kafkawire.reading.read_task import read_task
from tests.kit.fake_kafka import CLOSE, FETCH, LIST_OFFSETS, METADATA, FakeKafka, Log, serving
from tests.kit.spark.files import START_MS, Files, Share, batch, batches, marker
from tests.kit.spark.reads import SELECTION, read, rows_of


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the attempts after which there would have been a pause."""
    made: list[int] = []
    for module in (asking, reading, tail):
        monkeypatch.setattr(module, "pause", made.append)
    return made


@pytest.fixture
def kafka(pauses: list[int]) -> Iterator[FakeKafka]:
    """One partition, t-0, of [0, 100) in batches of ten."""
    log = Log(batches(0, [10] * 10), 0, 100)
    with serving({("t", 0): log}) as fake:
        yield fake


def source(kafka: FakeKafka, **more: Any) -> Source:
    return Source(bootstrap=kafka.address, **more)


def tail_of(kafka: FakeKafka, base: int, end: int, **more: Any) -> Any:
    task = Task((TaskPart(PartitionRange("t", 0, base, end)),))
    on_damage = more.pop("on_damage", None)
    return read(source(kafka, **more), [], task, on_damage=on_damage)


def log_of(kafka: FakeKafka) -> Log:
    return kafka.logs["t", 0]


def troubles(*answers: Any, key: int = FETCH) -> Callable[[int, Any], Any]:
    """Responses to the first requests of a kind."""
    left = list(answers)
    return lambda asked, request: left.pop(0) if asked == key and left else None


@pytest.mark.parametrize("size", [8 << 20, 3000, 1])
def test_tail_is_read_from_broker(
    kafka: FakeKafka, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a response ends within a batch, the next one begins there."""
    monkeypatch.setattr(tail, "FETCH_BYTES", size)
    rows, accounts = tail_of(kafka, 15, 93)
    assert rows == rows_of("t", 0, range(15, 93))
    assert not accounts[0].gaps
    assert kafka.asked.count(METADATA) <= 3


def test_segments_are_read_before_tail(kafka: FakeKafka, tmp_path: Path) -> None:
    """Also where a batch of the broker overlaps the segments, and between two of them."""
    files = Files(open_place(str(tmp_path)))
    [number] = files.topic("t")
    files.put(1, Share(number, batches(0, [10] * 2)))
    files.put(2, Share(number, batches(40, [10] * 2), end=63))
    files.publish()
    kafka.ids = {"t": files.topics["t"].id}
    catalog = open_catalog(Source(files.place.url, kafka.address))
    assert catalog.bounds("t", 0) == Bounds(0, 63, 100)
    part = catalog.part(PartitionRange("t", 0, 5, 100))
    kafka.asked.clear()
    rows, accounts = read(catalog.source, catalog.places, Task((part,)))
    assert rows == rows_of("t", 0, [*range(5, 60), *range(63, 100)])
    assert accounts[0].gaps == [(60, 63, COMPACTED)]
    assert kafka.asked.count(FETCH) == 2


def test_offsets_below_the_log_start_are_lost(kafka: FakeKafka) -> None:
    log_of(kafka).start = 35
    with pytest.raises(DataLoss, match=r"\[10, 35\) .* are lost: the log starts at 35 now"):
        tail_of(kafka, 10, 50)
    rows, accounts = tail_of(kafka, 10, 50, fail_on_data_loss=False)
    assert rows == rows_of("t", 0, range(35, 50))
    assert accounts[0].gaps == [(10, 35, LOST)]
    rows, accounts = tail_of(kafka, 10, 20, fail_on_data_loss=False)
    assert (rows, accounts[0].gaps) == ([], [(10, 20, LOST)])


def test_offsets_after_the_end_are_lost(kafka: FakeKafka) -> None:
    """The log was created again, or truncated."""
    for base in (60, 130):
        rows, accounts = tail_of(kafka, base, 150, fail_on_data_loss=False)
        assert rows == rows_of("t", 0, range(base, 100))
        assert accounts[0].gaps == [(max(base, 100), 150, LOST)]
        with pytest.raises(DataLoss, match="the log ends"):
            tail_of(kafka, base, 150)


def test_lower_last_stable_offset_is_waited_for(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker answers a Fetch above its last stable offset at once: fifty would take no time."""
    slept: list[float] = []
    monkeypatch.setattr(tail, "time", SimpleNamespace(sleep=slept.append))
    log = log_of(kafka)
    known, log.batches, log.stable = log.batches, [], 40

    def recovers(key: int, request: object) -> None:
        if len(slept) == 3:
            log.batches, log.stable = known, None

    kafka.trouble = recovers
    rows, _ = tail_of(kafka, 60, 100)
    assert rows == rows_of("t", 0, range(60, 100))
    assert slept == [0.1] * 3


def test_deleted_topic_is_lost(kafka: FakeKafka) -> None:
    kafka.logs.clear()
    with pytest.raises(DataLoss, match="the topic is gone"):
        tail_of(kafka, 0, 10)
    rows, accounts = tail_of(kafka, 0, 10, fail_on_data_loss=False)
    assert (rows, accounts[0].gaps) == ([], [(0, 10, LOST)])


def test_compacted_end_of_log_is_accepted(kafka: FakeKafka) -> None:
    """The broker has no records there, though its high watermark is higher."""
    log_of(kafka).batches = log_of(kafka).batches[2:9]
    rows, accounts = tail_of(kafka, 0, 100)
    assert rows == rows_of("t", 0, range(20, 90))
    assert accounts[0].gaps == [(0, 20, COMPACTED), (90, 100, COMPACTED)]


def test_transient_errors_are_retried(kafka: FakeKafka, pauses: list[int]) -> None:
    kafka.trouble = troubles(
        CLOSE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, CLOSE
    )
    rows, _ = tail_of(kafka, 0, 100)
    assert rows == rows_of("t", 0, range(100))
    assert pauses == [1, 2, 3, 4]


def test_number_of_retries_is_bounded(kafka: FakeKafka, pauses: list[int]) -> None:
    kafka.trouble = troubles(*[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 100)
    with pytest.raises(SourceError, match="NOT_LEADER_OR_FOLLOWER"):
        tail_of(kafka, 0, 100)
    assert len(pauses) == 4
    pauses.clear()
    kafka.trouble = troubles(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(SourceError, match="TOPIC_AUTHORIZATION_FAILED"):
        tail_of(kafka, 0, 100)
    assert pauses == []


def test_unreachable_broker_is_reported(pauses: list[int]) -> None:
    with serving({}) as gone:
        pass
    with pytest.raises(SourceError, match=f"cannot connect to {gone.address}"):
        tail_of(gone, 0, 10)
    with pytest.raises(SourceError, match="must be HOST:PORT of a broker"):
        read(Source(bootstrap="nowhere"), [], Task((TaskPart(PartitionRange("t", 0, 0, 10)),)))


def test_reader_stopping_early_closes_connection(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "FETCH_BYTES", 1)
    task = Task((TaskPart(PartitionRange("t", 0, 0, 100)),))
    taken: Any = read_task(source(kafka), [], task, SELECTION, batch_rows=5)
    assert next(taken).num_rows == 5
    assert any("kafkawire-fetch" in thread.name for thread in threading.enumerate())
    taken.close()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not any("kafkawire-fetch" in thread.name for thread in threading.enumerate()):
            break
        time.sleep(0.01)
    assert not any("kafkawire-fetch" in thread.name for thread in threading.enumerate())


def transactional(kafka: FakeKafka) -> None:
    """Producer 7 aborts [0, 20) with a marker at 30; 8 commits [20, 30); then plain records."""
    of = {"producer_epoch": 0, "attributes": 0x10}
    log = log_of(kafka)
    log.batches = [
        batch(0, 10, producer_id=7, base_sequence=0, **of),
        batch(10, 10, producer_id=7, base_sequence=10, **of),
        batch(20, 10, producer_id=8, base_sequence=0, **of),
        marker(30, 7, commits=False),
        marker(31, 8, commits=True),
        batch(32, 8, producer_id=7, base_sequence=20, **of),
        batch(40, 10),
        marker(50, 7, commits=True),
    ]
    log.aborted = [(7, 0, 30)]
    log.end, log.stable = 60, 51


@pytest.mark.parametrize("size", [8 << 20, 1])
def test_aborted_records_of_tail_are_excluded(
    kafka: FakeKafka, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker may be in a later response than the records."""
    monkeypatch.setattr(tail, "FETCH_BYTES", size)
    transactional(kafka)
    rows, accounts = tail_of(kafka, 5, 51)
    assert rows == rows_of("t", 0, [*range(20, 30), *range(32, 50)])
    assert accounts[0].counts == {ABORTED: 15, CONTROL: 3}
    rows, accounts = tail_of(kafka, 5, 51, isolation="read_uncommitted")
    assert rows == rows_of("t", 0, [*range(5, 30), *range(32, 50)])
    assert accounts[0].counts == {CONTROL: 3}


def test_damaged_batch_of_tail_is_reported(kafka: FakeKafka) -> None:
    bad = bytearray(log_of(kafka).batches[3])
    bad[200] ^= 1
    log_of(kafka).batches[3] = bytes(bad)
    with pytest.raises(DamagedData, match=rf"the broker at {kafka.address}: .*\[30, 40\)"):
        tail_of(kafka, 0, 100)
    noted: list[Any] = []
    rows, accounts = tail_of(kafka, 0, 100, on_damage=lambda error, data: noted.append(data))
    assert rows == rows_of("t", 0, [*range(30), *range(40, 100)])
    assert accounts[0].gaps == [(30, 40, DAMAGED)]
    assert noted == [bytes(bad)]


def test_response_without_valid_batches_is_reported(kafka: FakeKafka) -> None:
    for junk in (b"x" * 10, b"\0" * 80):
        log_of(kafka).from_offset = lambda *_, junk=junk: junk  # type: ignore[method-assign]
        with pytest.raises(SourceError, match="t-0"):
            tail_of(kafka, 0, 100)


# The catalog together with a broker


@pytest.fixture
def both(kafka: FakeKafka, tmp_path: Path) -> Files:
    """t-0 is in segments up to 40."""
    files = Files(open_place(str(tmp_path / "tier")))
    [number] = files.topic("t")
    files.put(1, Share(number, batches(0, [10] * 4)))
    files.publish()
    kafka.ids = {"t": files.topics["t"].id}
    return files


def test_bounds_come_from_broker(kafka: FakeKafka, both: Files) -> None:
    log_of(kafka).start, log_of(kafka).stable = 12, 80
    kafka.logs["t", 1] = Log()
    kafka.logs["new", 0] = Log(end=7)
    catalog = open_catalog(Source(both.place.url, kafka.address))
    assert catalog.topics == {"new": 1, "t": 2}
    assert catalog.bounds("t", 0) == Bounds(12, 40, 80)
    assert catalog.bounds("t", 1) == Bounds(0, 0, 0)
    assert catalog.bounds("new", 0) == Bounds(0, 0, 7)
    assert catalog.part(PartitionRange("new", 0, 0, 7)).size_bytes == 7000
    with pytest.raises(SourceError, match=f"broker at {kafka.address} has no topic 'old'"):
        catalog.bounds("old", 0)
    dirty = replace(catalog.source, isolation="read_uncommitted")
    assert open_catalog(dirty).bounds("t", 0) == Bounds(12, 40, 100)
    log_of(kafka).end = 200
    log_of(kafka).stable = None
    assert catalog.bounds("t", 0).end == 80
    assert catalog.refresh_catalog().bounds("t", 0).end == 200
    log_of(kafka).start = 60
    assert catalog.refresh_catalog().bounds("t", 0) == Bounds(60, 60, 200)


def test_recreated_topic_is_read_from_broker(kafka: FakeKafka, both: Files) -> None:
    kafka.ids = {"t": b"another topic of"}
    catalog = open_catalog(Source(both.place.url, kafka.address))
    assert catalog.bounds("t", 0) == Bounds(0, 0, 100)
    assert catalog.part(PartitionRange("t", 0, 0, 100)).pieces == ()


def test_broker_of_other_cluster_is_refused(kafka: FakeKafka, both: Files) -> None:
    kafka.cluster_id = "another"
    with pytest.raises(SourceError, match=r"is of the cluster .*, the broker at .* of another"):
        open_catalog(Source(both.place.url, kafka.address))


def test_empty_tier_with_broker(kafka: FakeKafka, tmp_path: Path) -> None:
    """Everything is read from the broker, until something was uploaded."""
    catalog = open_catalog(Source(str(tmp_path / "tier"), kafka.address))
    assert catalog.bounds("t", 0) == Bounds(0, 0, 100)
    files = Files(open_place(str(tmp_path / "tier")))
    [number] = files.topic("t")
    files.put(1, Share(number, batches(0, [10] * 4)))
    assert catalog.refresh_catalog().places == []
    files.publish()
    kafka.ids = {"t": files.topics["t"].id}
    assert catalog.refresh_catalog().bounds("t", 0) == Bounds(0, 40, 100)


def test_timestamps_of_tail_are_looked_up_at_broker(kafka: FakeKafka, both: Files) -> None:
    catalog = open_catalog(Source(both.place.url, kafka.address))
    kafka.asked.clear()
    assert catalog.offset_for_time("t", 0, START_MS + 25) == 30
    assert kafka.asked.count(LIST_OFFSETS) == 2  # for the bounds alone
    assert catalog.offset_for_time("t", 0, START_MS + 55) == 60
    assert catalog.offset_for_time("t", 0, START_MS + 100) is None


def test_catalog_requests_are_retried(kafka: FakeKafka, pauses: list[int]) -> None:
    moving = [CLOSE, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    kafka.trouble = troubles(*moving, key=LIST_OFFSETS)
    assert asking.BrokerQueries(source(kafka)).ends("t") == {0: (0, 100)}
    assert pauses == [1, 2]


def test_unresponsive_broker_is_not_asked_five_times(
    kafka: FakeKafka, pauses: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "ASKED_WITHIN_S", -1.0)
    kafka.trouble = troubles(CLOSE, key=LIST_OFFSETS)
    with pytest.raises(SourceError, match="closed the connection"):
        asking.BrokerQueries(source(kafka)).ends("t")
    assert pauses == []


def test_records_of_deleted_file_are_read_from_broker(kafka: FakeKafka, both: Files) -> None:
    catalog = open_catalog(Source(both.place.url, kafka.address))
    part = catalog.part(PartitionRange("t", 0, 0, 100))
    both.place.delete([segment_key((1).to_bytes(16, "big"))])
    rows, _ = read(catalog.source, catalog.places, Task((part,)))
    assert rows == rows_of("t", 0, range(100))
