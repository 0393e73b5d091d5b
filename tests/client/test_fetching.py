"""Records of a Fetch as a consumer delivers them.

Covers: kafkawire.client.fetching.
"""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.client import fetching
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.fetching import Fetched, fetch_next, sound_records
from kafkawire.codec.batches import TRANSACTIONAL, build
from kafkawire.codec.control import ABORT, COMMIT, pack_marker
from kafkawire.codec.types import Buffer
from kafkawire.messages.fetch import FetchResponse
from tests.kit.fake_kafka import FETCH, NODE, Log, serving


def data(offset: int, producer_id: int = -1) -> bytearray:
    """A batch of one record, of a transaction if it has a producer."""
    attributes = TRANSACTIONAL if producer_id >= 0 else 0
    made = build([(None, b"%d" % offset)], timestamp_ms=1, producer_id=producer_id,
                 attributes=attributes)  # fmt: skip
    return at(offset, made)


def marker(offset: int, producer_id: int, kind: int) -> bytearray:
    return at(offset, pack_marker(producer_id, 0, 0, kind, 1))


def at(offset: int, batch: bytearray) -> bytearray:
    batch[:8] = offset.to_bytes(8, "big")
    return batch


def read(aborted: list[tuple[int, int]], *batches: Buffer, start: int = 0) -> list[int]:
    got = Fetched(0, 99, 99, b"".join(batches), aborted)
    return [record.offset for record in sound_records(got, start)]


def test_records_of_aborted_transactions_are_left_out() -> None:
    batches = [
        data(0, 7), data(1, 8), data(2), data(3, 7), marker(4, 7, ABORT), data(5, 7),
        marker(6, 8, COMMIT), marker(7, 7, COMMIT),
    ]  # fmt: skip
    assert read([(7, 0)], *batches) == [1, 2, 5]
    assert read([], *batches) == [0, 1, 2, 3, 5]
    assert read([(7, 0)], *batches, start=2) == [2, 5]


def test_a_producer_may_abort_twice() -> None:
    batches = [
        data(0, 7), marker(1, 7, ABORT), data(2, 7), marker(3, 7, COMMIT), data(4, 7),
        marker(5, 7, ABORT), data(6, 7),
    ]  # fmt: skip
    assert read([(7, 4), (7, 0)], *batches) == [2, 6]


@pytest.mark.parametrize("throttle_ms", [None, 0, 30])
def test_records_that_come_late_are_waited_for(throttle_ms: int | None) -> None:
    """Empty answers of a broker that reads from a slow storage, or throttles the client."""
    with serving({("t", 0): Log([bytes(data(0))], 0, 1)}) as fake, Cluster(fake.address) as cluster:
        late = 3

        def trouble(key: int, request: Any) -> Any:
            nonlocal late
            if key != FETCH or not late:
                return None
            late -= 1
            if throttle_ms is None:
                empty = Log([], 0, 1)
                held, fake.logs[("t", 0)] = fake.logs[("t", 0)], empty
                response = fake._fetch(request, 0)
                fake.logs[("t", 0)] = held
                return response
            return FetchResponse(throttle_time_ms=throttle_ms)

        fake.trouble = trouble
        got, after = fetch_next(cluster, NODE, ("t", 0), 0)
        assert (after, late) == (1, 0)
        assert len(got.records)


def test_records_that_never_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "SLOW_S", 0)
    monkeypatch.setattr(fetching, "THROTTLED_S", 0)
    with serving({("t", 0): Log([], 0, 5)}) as fake, Cluster(fake.address) as cluster:
        with pytest.raises(ClientError, match="t:0 has no batch at offset 3"):
            fetch_next(cluster, NODE, ("t", 0), 3)
        fake.trouble = lambda key, request: FetchResponse() if key == FETCH else None
        with pytest.raises(ClientError, match="a quota throttles this client"):
            fetch_next(cluster, NODE, ("t", 0), 3)
