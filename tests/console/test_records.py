"""Reading records page by page: every record once, bounds, and the report of what was searched.

Covers: kafkawire.console.views.records, kafkawire.console.web.queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.offsets import leaders
from kafkawire.client.producer import produce
from kafkawire.console.views.records import (
    FoundRecord,
    RecordOrder,
    RecordPage,
    RecordQuery,
    read_records,
)
from kafkawire.console.web.queries import WrongInput, parse_positions, parse_time, positions_text
from kafkawire.testing import InProcessBroker, TopicProducer, create_topic
from tests.console.conftest import ORDERS, PARTITIONS, RECORDS

Place = tuple[int, int]


@pytest.fixture
def cluster(running: InProcessBroker) -> Iterator[Cluster]:
    with Cluster(running.bootstrap) as opened:
        yield opened


def page_by_page(cluster: Cluster, query: RecordQuery) -> list[RecordPage]:
    """Return all pages of a search."""
    pages = [read_records(cluster, query)]
    while pages[-1].more:
        assert len(pages) < 1000, "the search makes no progress"
        pages.append(read_records(cluster, replace(query, positions=pages[-1].more)))
    return pages


def places(records: list[FoundRecord]) -> list[Place]:
    return [(record.partition, record.offset) for record in records]


@pytest.mark.parametrize("order", list(RecordOrder))
@pytest.mark.parametrize("limit", [1, 7, 50, 500])
def test_pages_together_have_each_record_once(
    cluster: Cluster, order: RecordOrder, limit: int
) -> None:
    found = page_by_page(cluster, RecordQuery(ORDERS, order, limit=limit))
    records = [record for page in found for record in page.records]
    assert len(records) == RECORDS
    assert len(set(places(records))) == RECORDS
    assert sum(page.offsets for page in found) == RECORDS
    times = [record.timestamp for record in records]
    assert times == sorted(times, reverse=order is RecordOrder.BACKWARD)
    end = "start" if order is RecordOrder.BACKWARD else "end"
    assert found[-1].stopped == f"the {end} of the log was reached"
    assert all(len(page.records) <= limit for page in found)


@pytest.mark.parametrize("order", list(RecordOrder))
def test_timestamps_that_go_back_lose_no_record(
    running: InProcessBroker, cluster: Cluster, order: RecordOrder
) -> None:
    topic = f"back-{order}"
    create_topic(running.bootstrap, topic, partitions=2)
    producer = TopicProducer(running.bootstrap)
    for number in range(40):
        at = 1_700_000_000_000 - 1000 * number
        producer.send(topic, b"v", partition=number % 2, timestamp_ms=at)
    records = [
        record
        for page in page_by_page(cluster, RecordQuery(topic, order, limit=3))
        for record in page.records
    ]
    assert len(set(places(records))) == len(records) == 40


def test_search_reports_what_it_searched(cluster: Cluster) -> None:
    query = RecordQuery(ORDERS, RecordOrder.FORWARD, text='"number": 8')
    page = read_records(cluster, query)
    assert [record.key for record in page.records] == [
        b"key-8", *(b"key-%d" % number for number in range(80, 90))
    ]  # fmt: skip
    assert page.offsets == RECORDS
    assert [each[:3] for each in page.searched] == [(p, 0, 30) for p in range(PARTITIONS)]
    nothing = read_records(cluster, replace(query, text="absent"))
    assert (nothing.records, nothing.offsets) == ([], RECORDS)
    (only,) = read_records(cluster, replace(query, text="", key="key-7")).records
    assert (only.partition, only.offset) == (1, 2)


def test_bound_of_bytes_ends_a_page_and_the_next_continues(cluster: Cluster) -> None:
    query = RecordQuery(ORDERS, RecordOrder.FORWARD, text="absent")
    first = read_records(cluster, query, budget_bytes=100)
    assert first.stopped.endswith("MiB were read, the bound of one page")
    assert 0 < first.offsets < RECORDS
    second = read_records(cluster, replace(query, positions=first.more))
    assert first.offsets + second.offsets == RECORDS
    newest = read_records(cluster, RecordQuery(ORDERS, limit=5), budget_bytes=1)
    assert len(newest.records) >= 1, "a page has a record, whatever its size"


def test_newest_records_of_one_batch_are_read_at_once(
    running: InProcessBroker, cluster: Cluster
) -> None:
    create_topic(running.bootstrap, "batch")
    place = "batch", 0
    values = [(None, b"%d" % number) for number in range(40)]
    assert produce(cluster, leaders(cluster, ["batch"])[place], place, values, 1) == 0
    page = read_records(cluster, RecordQuery("batch", limit=10))
    assert places(list(page.records)) == [(0, offset) for offset in range(39, 29, -1)]
    assert page.fetched_bytes == page.records[0].batch_bytes
    assert page.more == {0: 30}


def test_bound_of_time_ends_a_page(cluster: Cluster) -> None:
    seconds = iter(range(0, 1000, 3))
    page = read_records(
        cluster, RecordQuery(ORDERS, RecordOrder.FORWARD, text="absent"), lambda: next(seconds)
    )
    assert page.stopped == "5 s have passed, the bound of one page"
    assert page.more


def test_search_from_a_time_begins_at_its_first_record(
    running: InProcessBroker, cluster: Cluster
) -> None:
    topic = "times"
    create_topic(running.bootstrap, topic, partitions=2)
    producer = TopicProducer(running.bootstrap)
    for second in range(10):
        producer.send(topic, b"v", partition=0, timestamp_ms=1_700_000_000_000 + 1000 * second)
    query = RecordQuery(topic, RecordOrder.FORWARD, time_ms=1_700_000_004_500)
    assert places(list(read_records(cluster, query).records)) == [(0, n) for n in range(5, 10)]
    after_all = replace(query, time_ms=1_800_000_000_000)
    assert read_records(cluster, after_all).records == []


def test_offsets_outside_of_the_log_are_its_ends(cluster: Cluster) -> None:
    beyond = RecordQuery(ORDERS, RecordOrder.FORWARD, 0, {0: 2**62})
    assert read_records(cluster, beyond).records == []
    with pytest.raises(ClientError, match="has no partition 99"):
        read_records(cluster, RecordQuery(ORDERS, partition=99))


def test_positions_are_read_as_they_are_written() -> None:
    assert parse_positions("after", positions_text({3: 5, 0: 2**63 - 1})) == {0: 2**63 - 1, 3: 5}
    for wrong in ("", "1", "1:2,", "1:-2", "1:9999999999999999999", "a:b", "0:0," * 201 + "0:0"):
        with pytest.raises(WrongInput):
            parse_positions("after", wrong)


def test_times_are_in_utc_without_a_zone() -> None:
    assert parse_time("at", "1970-01-01T00:01") == 60_000
    assert parse_time("at", "1970-01-01T01:01+01:00") == 60_000
    assert parse_time("at", "@123") == 123
    for wrong in ("", "yesterday", "@", "@-1", "@99999999999999999999", "2026-13-01"):
        with pytest.raises(WrongInput):
            parse_time("at", wrong)
