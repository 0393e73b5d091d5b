"""The whole round trip: a broker with a tier loses its disk and is restored from the bucket.

Whole brokers and a client in this loop; the tier is a folder. With the manifest and without it.
"""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.codec.batches import build, iter_batches, records
from kafkawire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kafkawire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.offsets.catalog.port import LIVE
from kafkawire.restore.evidence import EPOCH_MARGIN
from kafkawire.server.run import Server
from kafkawire.tiering.scrub.plan import FindingKind, ScrubReport
from tests.kit.client import Client
from tests.kit.server import port_of, running

BUSY = (14, 15, 16)
"""Codes while the group's coordinator is not available yet."""
SETTINGS = {
    "hot.bytes": str(1 << 20),
    "journal.roll.ms": "100", "cut.interval.ms": "50", "offsets.topic.num.partitions": "1",
    "log.cleaner.backoff.ms": "100",
}  # fmt: skip
PROMISE = {"tiering.max.lag.ms": "5000", "tiering.min.object.bytes": "1"}
"""Settings of the topics, not of the broker: the offsets topic must follow by itself."""
TOPICS = {
    "orders": {"retention.ms": "-1", **PROMISE},
    "state": {"cleanup.policy": "compact", **PROMISE},
}
WAIT_S = 60


@dataclass
class Seen:
    """The records and offsets that a client reads."""

    batches: dict[tuple[str, int], bytes] = field(default_factory=dict)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    committed: int = -1

    def latest(self, name: str) -> dict[bytes | None, bytes | None]:
        """The last value of each key of a topic."""
        found = {}
        for (topic, _), data in self.batches.items():
            for at, _ in iter_batches(data) if topic == name else ():
                found.update({record.key: record.value for record in records(data, at)})
        return found


async def patiently(call: Any, code_of: Any) -> Any:
    """The response, once there is a coordinator."""
    for _ in range(20 * WAIT_S):
        answer = await call()
        if code_of(answer) not in BUSY:
            return answer
        await asyncio.sleep(0.05)
    raise AssertionError("there is no coordinator")


async def consume(client: Client, name: str, index: int) -> tuple[bytes, int]:
    """All batches of a partition, and its end. A Fetch may be answered before a cold read has
    finished."""
    offset, end, data = 0, 1, b""
    for _ in range(200):
        ask = FetchPartition(index, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(max_wait_ms=2000, topics=[FetchTopic(name, partitions=[ask])])
        (topic,) = (await client.call(request, 11)).responses
        (part,) = topic.partitions
        assert part.error_code == 0, (name, index, offset, part.error_code)
        got, end = bytes(part.records or b""), part.high_watermark
        offset = max([offset, *(head.last_offset + 1 for _, head in iter_batches(got))])
        data += got
        if offset == end:
            return data, end
    raise AssertionError(f"{name}-{index} ends at {end}, nothing is received from {offset} on")


async def scan(client: Client) -> Seen:
    """Consume everything, and ask for the group's offset."""
    seen = Seen()
    for name in TOPICS:
        for index in range(2):
            seen.batches[name, index], seen.ends[name, index] = await consume(client, name, index)
    request = OffsetFetchRequest("readers", [OffsetFetchRequestTopic("orders", [1])])
    answer = await patiently(
        lambda: client.call(request, 5),
        lambda a: a.error_code or a.topics[0].partitions[0].error_code,
    )
    seen.committed = answer.topics[0].partitions[0].committed_offset
    return seen


async def produce(client: Client, name: str, index: int, pairs: list[Any]) -> int:
    """Produce one batch; return its base offset."""
    data = PartitionProduceData(index, bytes(build(pairs, timestamp_ms=1_700_000_000_000)))
    request = ProduceRequest(None, -1, 5000, [TopicProduceData(name, partition_data=[data])])
    (topic,) = (await client.call(request, 9)).responses
    (done,) = topic.partition_responses
    assert done.error_code == 0
    base: int = done.base_offset
    return base


async def fill(client: Client) -> None:
    """Create two topics with two partitions each, and a group that has read some of it."""
    topics = [
        CreatableTopic(
            name, 2, 1, configs=[CreatableTopicConfig(key, value) for key, value in own.items()]
        )
        for name, own in TOPICS.items()
    ]
    made = await client.call(CreateTopicsRequest(topics, 5000), 5)
    assert [topic.error_code for topic in made.topics] == [0, 0]
    for step in range(40):
        for index in range(2):
            value = b"%d of %d" % (step, index) + bytes(500)
            await produce(client, "orders", index, [(b"k%d" % step, value), (None, value)])
            await produce(client, "state", index, [(b"k%d" % (step % 7), value)])
    await patiently(
        lambda: client.call(FindCoordinatorRequest("readers"), 3), lambda answer: answer.error_code
    )
    row = OffsetCommitRequestPartition(1, 33)
    commit = OffsetCommitRequest(
        "readers", topics=[OffsetCommitRequestTopic("orders", partitions=[row])]
    )
    await patiently(lambda: client.call(commit, 7), lambda a: a.topics[0].partitions[0].error_code)


async def uploaded(server: Server) -> None:
    """Wait until everything is in the bucket, and every live segment has its object."""
    log = server.broker.log
    for _ in range(10 * WAIT_S):
        done = all(each.commit_offset == each.high_watermark for each in log.partitions.values())
        rows = [segment.row for segment in log.segments.store.by_id.values()]
        if done and all(row.object for row in rows if row.state == LIVE):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("not everything was uploaded in time")


async def lose(tmp_path: Path) -> Seen:
    """A broker that uploads everything and is stopped, and its folder deleted; return what clients
    had read."""
    async with running(tmp_path / "lost", **SETTINGS, tier_url=str(tmp_path / "tier")) as server:
        client = await Client.connect(port_of(server))
        await fill(client)
        await uploaded(server)
        seen = await scan(client)
        await client.close()
    shutil.rmtree(tmp_path / "lost")
    return seen


async def scrub(server: Server) -> ScrubReport:
    assert server.broker.tiering is not None
    reported = [each async for each in server.broker.tiering.scrub(True, True)]
    assert isinstance(reported[-1], ScrubReport)
    return reported[-1]


@pytest.mark.parametrize("manifest", ["manifest", "objects"])
@pytest.mark.real
async def test_restored_broker_has_all_records_and_offsets(tmp_path: Path, manifest: str) -> None:
    before = await lose(tmp_path)
    assert before.ends == {("orders", 0): 80, ("orders", 1): 80, ("state", 0): 40, ("state", 1): 40}
    assert before.committed == 33
    tier, data = tmp_path / "tier", tmp_path / "new"
    if manifest == "objects":
        shutil.rmtree(tier / "manifest")
    words = ["restore", str(tier), "--data", str(data), "--yes"]
    result = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert result.exit_code == 0, result.output
    async with running(data, **SETTINGS, tier_url=str(tier)) as server:
        client = await Client.connect(port_of(server))
        after = await scan(client)
        assert after.ends == before.ends
        assert after.committed == before.committed
        for index in range(2):
            assert after.batches["orders", index] == before.batches["orders", index]
        assert after.latest("state") == before.latest("state")
        # Offsets continue where they ended, in an epoch above any that was lost.
        assert await produce(client, "orders", 0, [(b"new", b"value")]) == 80
        ask = FetchPartition(0, fetch_offset=80, partition_max_bytes=1 << 20)
        request = FetchRequest(topics=[FetchTopic("orders", partitions=[ask])])
        (topic,) = (await client.call(request, 11)).responses
        ((_, head),) = iter_batches(bytes(topic.partitions[0].records or b""))
        assert (head.base_offset, head.leader_epoch >= EPOCH_MARGIN) == (80, True)
        orders = server.broker.catalog.by_name["orders"]
        assert dict(orders.configs) == TOPICS["orders"]
        assert server.broker.catalog.by_name["__consumer_offsets"].internal
        # The bucket is its own again: what was produced since is uploaded too.
        await uploaded(server)
        # Objects that cleaning had replaced are not used; a scrub deletes them.
        found = (await scrub(server)).findings
        assert {finding.kind for finding in found} <= {FindingKind.NAMED, FindingKind.ORPHAN}
        assert (await scrub(server)).findings == []
        await client.close()
