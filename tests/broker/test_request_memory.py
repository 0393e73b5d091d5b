"""The memory of one request: at most a kilobyte for each element that its size allows.

tracemalloc sees all that Python allocates, and only for the broker: the client's frame is built
before, and its response is read into memory that is already allocated.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.codec.compile import encode
from kafkawire.codec.compile_decode import allowed_elements
from kafkawire.handlers.table import ApiRow
from kafkawire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from tests.broker.test_event_loop_time import NEWEST
from tests.kit.codec.extremes import GROUP, TOPIC, cases, frame
from tests.kit.loop_time import MeasuredBroker, measured

ELEMENT_BYTES = 1024
PER_BYTE = 8
"""Copies of the bytes themselves: received, decoded as text, encoded in the response."""
FLOOR_BYTES = 1 << 20
"""Allowed for a request of any size; includes what the broker allocates for other work
meanwhile."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredBroker]:
    data: Path = tmp_path_factory.mktemp("memory")
    tracemalloc.start()
    try:
        with measured(data / "data") as started:
            topic = CreatableTopic(name=TOPIC, num_partitions=200, replication_factor=1)
            started.ask(frame(19, 7, encode(CreateTopicsRequest(topics=[topic]), 7)))
            started.ask(frame(10, 4, encode(FindCoordinatorRequest(coordinator_keys=[GROUP]), 4)))
            yield started
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("row", NEWEST)
def test_memory_of_largest_request_is_bounded(broker: MeasuredBroker, row: ApiRow) -> None:
    topic_id = broker.server.broker.catalog.by_name[TOPIC].id
    for case in cases(row, row.max_version, 4_000, topic_id, ("distinct",)):
        size = len(case.frame)
        bound = FLOOR_BYTES + ELEMENT_BYTES * allowed_elements(size) + PER_BYTE * size
        taken = broker.memory(case.frame)
        assert taken <= bound, f"{case.name}: {taken} bytes for {size}, {bound} are allowed"


def test_request_of_empty_entries_only_is_refused(broker: MeasuredBroker) -> None:
    """Half a megabyte of empty keys takes no more memory than itself: the count is refused."""
    count = 512 << 10
    body = b"\0" + bytes((count + 1 & 0x7F | 0x80, count >> 7 & 0x7F | 0x80, count >> 14))
    taken = broker.memory(frame(10, 4, body + b"\1" * count + b"\0"))
    assert taken < 2 << 20
