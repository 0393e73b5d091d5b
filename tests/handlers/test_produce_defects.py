"""Exceptions while one batch is appended: the other batches of the request are still written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.batches import HEAD_BYTES, build, iter_batches, records, resum
from kafkawire.codec.errors import ErrorCode
from kafkawire.log.partition.partition import Partition
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.server.run import Server
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import make, produce
from tests.kit.server import port_of, running

INT64_MAX = (1 << 63) - 1


@pytest.fixture(name="server")
async def one(tmp_path: Path) -> AsyncIterator[Server]:
    async with running(tmp_path) as server:
        yield server


async def values(client: Client, topic: str, index: int = 0) -> list[bytes | None]:
    row = FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1 << 20,
        topics=[FetchTopic(topic=topic, partitions=[row])],
    )  # fmt: skip
    answer = (await client.call(request, 11)).responses[0].partitions[0]
    assert answer.error_code == 0
    found = answer.records or b""
    return [record.value for at, _ in iter_batches(found) for record in records(found, at)]


@pytest.mark.interpreted
async def test_batches_before_failing_one_are_written(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = await Client.connect(port_of(server))
    await make(client, "t", 3)
    await client.call(produce("t", batch(b"0"), batch(b"0"), batch(b"0")), 7)
    queue = Partition.queue

    def broken(self: Partition, *arguments: Any) -> Any:
        if self.index == 1:
            raise RuntimeError("a defect")
        return queue(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Partition, "queue", broken)
        sent = [batch(b"%d" % index * 1000) for index in range(3)]
        answer = await client.call(produce("t", *sent), 7)
        client.send(produce("t", batch(b"x" * 1000)), 7)  # what is received next
    rows = answer.responses[0].partition_responses
    assert [row.error_code for row in rows] == [0, ErrorCode.UNKNOWN_SERVER_ERROR, 0]
    assert "appending a batch to t-1 failed" in caplog.text
    await client.receive()
    assert await values(client, "t") == [b"0", b"0" * 1000, b"x" * 1000]
    assert await values(client, "t", 1) == [b"0"]
    assert await values(client, "t", 2) == [b"0", b"2" * 1000]
    await client.close()


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
async def test_timestamps_beyond_int64_are_refused(server: Server, kind: str) -> None:
    client = await Client.connect(port_of(server))
    far = str(INT64_MAX)
    await make(
        client, "t", message_timestamp_after_max_ms=far, message_timestamp_before_max_ms=far,
        message_timestamp_type=kind,
    )  # fmt: skip
    for times in ([INT64_MAX], [INT64_MAX - 5, INT64_MAX], [0, INT64_MAX]):
        good = build([(None, b"v")] * len(times), timestamp_ms=times[0])
        answer = await client.call(produce("t", bytes(good)), 7)
        assert answer.responses[0].partition_responses[0].error_code == 0, times
    raw = bytearray(build([(None, b"a"), (None, b"b")], timestamp_ms=INT64_MAX))
    at = HEAD_BYTES + 2  # after length and attributes: the delta of the first record's time
    assert raw[at] == 0
    raw[at] = 20  # ten milliseconds
    resum(raw, 0, len(raw))
    answer = await client.call(produce("t", bytes(raw)), 7)
    code = answer.responses[0].partition_responses[0].error_code
    assert code == ErrorCode.INVALID_TIMESTAMP
    answer = await client.call(produce("t", batch(b"after")), 7)  # the log still takes writes
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert (await values(client, "t"))[-1] == b"after"
    await client.close()
