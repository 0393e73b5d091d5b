"""`kafkawire consume`: merged by timestamp, the last records, filters, formats.

Covers: kafkawire.cli.records.consume, kafkawire.cli.records.filters.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kafkawire.cli.records import consume
from kafkawire.client import fetching, merging
from kafkawire.client.cluster import Cluster
from kafkawire.client.fetching import PART_BYTES
from kafkawire.client.merging import MergedReader, OffsetSpan
from kafkawire.codec.batches import CONTROL, Record, pack
from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.fetch import FetchRequest
from tests.kit.cli import Typed, no_environment  # noqa: F401  (a fixture, by name)
from tests.kit.fake_kafka import FETCH, NODE, FakeKafka, Log, serving

T0 = 1_700_000_000_000


def record(
    offset: int, second: int, value: bytes, key: bytes | None = None, **header: str
) -> Record:
    headers = [(name, text.encode()) for name, text in header.items()]
    return Record(offset, T0 + 1000 * second, key, value, headers)


def log(*batches: list[Record]) -> Log:
    encoded = [bytes(pack(rows, codec=4)) for rows in batches]
    return Log(encoded, 0, batches[-1][-1].offset + 1)


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """Two partitions whose records interleave in time; the first one has a gap at offset 2."""
    even = log(
        [record(0, 0, b"a0", b"k"), record(1, 2, b"a2", color="red")],
        [record(3, 4, b"a4"), record(4, 3, b"a3, late", b"k", color="blue")],
    )
    odd = log([record(0, 1, b"b1", b"k")], [record(1, 5, b"b5"), record(2, 6, b"\xff\0")])
    with serving({("t", 0): even, ("t", 1): odd}) as running:
        yield running


def values(kafka: FakeKafka, *words: str) -> list[str]:
    return [line["value"] for line in Typed(kafka.address, "consume", "t", *words, "--json").lines]


BINARY = {"base64": "/wA="}


def test_partitions_are_merged_by_timestamp(kafka: FakeKafka) -> None:
    assert values(kafka) == ["a0", "b1", "a2", "a4", "a3, late", "b5", BINARY]
    assert values(kafka, "--max", "3") == ["a0", "b1", "a2"]
    only = Typed(kafka.address, "consume", "t:1", "--json").lines
    assert [line["offset"] for line in only] == [0, 1, 2]


def test_until_and_from_a_time(kafka: FakeKafka) -> None:
    # The fake broker finds whole batches by time, as a sparse index might.
    assert values(kafka, "--until", f"@{T0 + 3000}") == ["a0", "b1", "a2"]
    assert values(kafka, "--from", f"@{T0 + 3000}") == ["a4", "a3, late", "b5", BINARY]
    assert values(kafka, "--from", f"@{T0 + 3000}", "--until", f"@{T0 + 1000}") == []


@pytest.mark.parametrize(
    ("most", "expected"), [(0, []), (1, [BINARY]), (3, ["a3, late", "b5", BINARY])]
)
def test_tail_is_the_end_of_all_partitions(
    kafka: FakeKafka, most: int, expected: list[object]
) -> None:
    assert values(kafka, "--tail", str(most)) == expected
    everything = values(kafka)
    for many in range(1, 9):
        assert values(kafka, "--tail", str(many)) == everything[-many:]


def test_tail_reads_further_back_over_offsets_without_records() -> None:
    markers = [
        bytes(pack([record(n, n, b"\0\0\0\1\0\0\0\0", b"\0\0\0\1")], attributes=CONTROL))
        for n in range(3, 40)
    ]
    first = bytes(pack([record(n, n, b"%d" % n) for n in range(3)]))
    with serving({("t", 0): Log([first, *markers], 0, 40)}) as kafka:
        assert values(kafka, "--tail", "2") == ["1", "2"]
        assert values(kafka, "--tail", "1", "--from", "offset:3") == []


def test_filters_must_all_match(kafka: FakeKafka) -> None:
    assert values(kafka, "--key", "k") == ["a0", "b1", "a3, late"]
    assert values(kafka, "--grep", "^a[23]") == ["a2", "a3, late"]
    assert values(kafka, "--header", "color") == ["a2", "a3, late"]
    assert values(kafka, "--header", "color=blue") == ["a3, late"]
    assert values(kafka, "--header", "color=blue", "--header", "color=red") == []
    assert values(kafka, "--key", "k", "--grep", "b", "--max", "1") == ["b1"]


def test_memory_is_shared_between_partitions(kafka: FakeKafka) -> None:
    asked: list[int] = []

    def note(key: int, request: object) -> None:
        if isinstance(request, FetchRequest):
            asked.append(request.topics[0].partitions[0].partition_max_bytes)

    kafka.trouble = note
    with Cluster(kafka.address) as cluster:
        spans = {("t", 0): OffsetSpan(NODE, 0, 5)}
        assert len(list(MergedReader(cluster, spans).read())) == 4
        assert spans[("t", 0)] == OffsetSpan(NODE, 5, 5)
        many = {("t", n): OffsetSpan(NODE, 0, 0) for n in range(100_000)}
        many[("t", 1)] = OffsetSpan(NODE, 0, 3)
        list(MergedReader(cluster, many).read())
    assert max(asked) <= PART_BYTES
    assert asked[-1] == merging.MIN_SHARE_BYTES


def test_follow_yields_what_arrives(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "WAIT_MS", 2)
    with Cluster(kafka.address) as cluster:
        spans = {("t", 0): OffsetSpan(NODE, 3, None), ("t", 1): OffsetSpan(NODE, 3, None)}
        reader = MergedReader(cluster, spans)
        arriving = reader.follow()
        assert [r.value for _, r in itertools.islice(arriving, 2)] == [b"a4", b"a3, late"]
        kafka.logs[("t", 1)] = replace(
            kafka.logs[("t", 1)],
            batches=[*kafka.logs[("t", 1)].batches, bytes(pack([record(3, 9, b"new")]))],
            end=4,
        )
        assert next(arriving)[1].value == b"new"
        assert (spans[("t", 0)].position, spans[("t", 1)].position) == (5, 4)


def test_missing_batch_is_an_error(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "SLOW_S", 0)
    kafka.logs[("t", 1)].end = 9
    failed = Typed(kafka.address, "consume", "t")
    assert (failed.code, failed.err) == (1, "kafkawire: t:1 has no batch at offset 3\n")
    kafka.trouble = lambda key, _: ErrorCode.KAFKA_STORAGE_ERROR if key == FETCH else None
    assert "KAFKA_STORAGE_ERROR" in Typed(kafka.address, "consume", "t").err


def test_most_records_of_tail_are_bounded(kafka: FakeKafka) -> None:
    refused = Typed(kafka.address, "consume", "t", "--tail", str(consume.MAX_TAIL + 1))
    assert refused.code == 2
