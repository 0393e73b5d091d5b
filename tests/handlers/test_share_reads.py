"""Which records members of a share group get: committed ones, old ones from disk, delayed ones.

Covers: kafkawire.handlers.share_reads.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkawire.codec.batches import build
from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.share_reads import walk
from kafkawire.server.run import Server
from kafkawire.share.partition import FetchedBatch
from kafkawire.share.persister import UNSET_OFFSET, SharePartitionKey
from kafkawire.share.states import RecordState
from tests.kit.client import Client
from tests.kit.env import EPOCH_MS
from tests.kit.log.transactional import Producer
from tests.kit.produce_fetch import make, produce
from tests.kit.server import port_of, running
from tests.kit.share.members import (
    ACCEPT,
    GROUP,
    RELEASE,
    Member,
    initialize,
    row_of,
    serve_shares,
    set_group,
    values_of,
)
from tests.kit.share.persister import MemoryPersister
from tests.kit.waiting import until


@pytest.fixture
def persister(server: Server, monkeypatch: pytest.MonkeyPatch) -> MemoryPersister:
    return serve_shares(server.broker, monkeypatch)


def batch(*values: bytes, **head: int) -> bytes:
    return bytes(build([(None, value) for value in values], timestamp_ms=EPOCH_MS, **head))


@pytest.mark.parametrize("committed", [True, False])
async def test_readers_of_committed_records_get_no_others(
    server: Server, client: Client, persister: MemoryPersister, committed: bool
) -> None:
    topic = await make(client, "t")
    initialize(persister, topic)
    if committed:
        await set_group(server.broker, share_isolation_level="read_committed")
    partition = await server.broker.table.load_partition("t", 0)
    one, other = Producer(1), Producer(2)
    one.send(partition, b"a", b"b")
    other.send(partition, b"c")
    one.end(partition, commit=False)
    one.send(partition, b"d")
    one.end(partition, commit=True)
    await server.broker.log.commit_log.wait_until_committed()
    member = Member(client, topic)
    if committed:
        assert row_of(await member.fetch()) is None, "the transaction of `c` is open"
    other.end(partition, commit=True)
    await server.broker.log.commit_log.wait_until_committed()
    assert await member.acquire() == (
        [(2, 2, 1), (4, 4, 1)] if committed else [(0, 2, 1), (4, 4, 1)]
    )
    assert await member.settle(2, 2, ACCEPT) == (0, 0)
    assert await member.settle(4, 4, ACCEPT) == (0, 0)
    if committed:
        (state,) = persister.states.values()
        assert state.start_offset == 7, "what was aborted, and the markers, are done"


async def test_a_marker_that_comes_alone_is_stored_as_done(
    server: Server, client: Client, persister: MemoryPersister
) -> None:
    """Otherwise the group has a lag of one until more records come."""
    topic = await make(client, "t")
    initialize(persister, topic)
    partition = await server.broker.table.load_partition("t", 0)
    producer, member = Producer(1), Member(client, topic)
    producer.send(partition, b"a")
    await server.broker.log.commit_log.wait_until_committed()
    assert await member.acquire() == [(0, 0, 1)]
    assert await member.settle(0, 0, ACCEPT) == (0, 0)
    producer.end(partition, commit=True)
    await server.broker.log.commit_log.wait_until_committed()
    assert row_of(await member.fetch()) is None
    (key,) = persister.states
    await until(lambda: persister.states[key].start_offset == 2, "the offset after the marker")


async def test_a_released_record_comes_back_after_its_delay(
    server: Server, client: Client, persister: MemoryPersister
) -> None:
    await set_group(server.broker, share_retry_delay_ms="300", share_delivery_count_limit="5")
    topic = await make(client, "t")
    initialize(persister, topic)
    await client.call(produce("t", batch(b"a", b"b")), 9)
    member = Member(client, topic)
    assert await member.acquire() == [(0, 1, 1)]
    assert await member.settle(0, 0, RELEASE) == (0, 0)
    assert row_of(await member.fetch()) is None
    (leader,) = server.broker.shares._groups[GROUP].values()
    assert leader.machine is not None
    (run,) = leader.machine.runs(0, 0)
    assert run.value.state is RecordState.AVAILABLE
    assert run.value.until_ms > leader.now_ms()
    assert await member.acquire(max_wait_ms=10_000) == [(0, 0, 2)]
    # A new leader does not know when it was released: the delay begins again.
    assert await member.settle(0, 0, RELEASE) == (0, 0)
    leader.stop_serving(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert await member.fetch(max_wait_ms=1)
    (again,) = server.broker.shares._groups[GROUP].values()
    await until(lambda: again.machine is not None)
    assert again.machine is not None
    (run,) = again.machine.runs(0, 0)
    assert run.value.until_ms > again.now_ms()


async def test_old_records_are_read_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, hot_bytes=str(1 << 20), journal_roll_ms="3600000") as server:
        persister = serve_shares(server.broker, monkeypatch)
        client = await Client.connect(port_of(server))
        topic = await make(client, "t")
        initialize(persister, topic)
        for number in range(30):
            await client.call(produce("t", batch(b"%d" % number + bytes(100_000))), 9)
        member = Member(client, topic)
        got: list[int] = []
        while len(got) < 30:
            answer = await member.fetch(max_wait_ms=5_000, max_bytes=50 << 20)
            got += [int(value.rstrip(b"\0")) for value in values_of(row_of(answer))]
        assert got == list(range(30))
        assert server.broker.answer_memory.held_bytes == 0
        await client.close()


async def test_where_a_group_begins(
    server: Server, client: Client, persister: MemoryPersister
) -> None:
    topic = await make(client, "t")
    await client.call(produce("t", batch(b"a", b"b")), 9)
    initialize(persister, topic, start=UNSET_OFFSET)
    member = Member(client, topic)
    assert row_of(await member.fetch(max_wait_ms=50)) is None, "latest"
    key = SharePartitionKey(GROUP, topic, 0)
    await until(lambda: persister.states[key].start_offset == 2)
    for reset in ("earliest", "by_duration:P30000D"):
        await set_group(server.broker, share_auto_offset_reset=reset)
        server.broker.shares.end_group(GROUP)
        persister.initialize(key, start_offset=UNSET_OFFSET)
        assert await Member(client, topic, reset[:5]).acquire() == [(0, 1, 1)]


async def test_limits_of_records(client: Client, persister: MemoryPersister) -> None:
    topic = await make(client, "t")
    initialize(persister, topic)
    for _ in range(3):
        await client.call(produce("t", batch(b"a", b"b", b"c")), 9)
    member = Member(client, topic)
    assert await member.acquire(share_acquire_mode=1, max_records=2) == [(0, 1, 1)]
    # Whole batches: the rest of the first one, and the second.
    row = row_of(await member.fetch(max_records=2, batch_size=1))
    runs = [(run.first_offset, run.last_offset) for run in row.acquired_records]
    assert runs == [(2, 2), (3, 5)]
    assert values_of(row) == [b"c", b"a", b"b", b"c"]
    assert row_of(await member.fetch(max_records=0)) is None
    assert row_of(await member.fetch(max_bytes=0)) is None


def test_heads_of_batches_are_read_up_to_an_offset() -> None:
    one = batch(b"a", b"b")
    other = batch(b"c", base_offset=2, producer_id=7, attributes=0x10)
    marker = batch(b"", base_offset=3, attributes=0x30)
    parts = walk(
        [memoryview(one + other), memoryview(marker)], 9, [Aborted(7, 2, 3), Aborted(8, 0, 3)]
    )
    assert [part.batch for part in parts] == [
        FetchedBatch(0, 1), FetchedBatch(2, 2, True), FetchedBatch(3, 3, True),
    ]  # fmt: skip
    assert [(part.buffer, part.start) for part in parts] == [(0, 0), (0, len(one)), (1, 0)]
    assert len(walk([one + other], 2, [])) == 1
    for bad in (one[:-1], one[:30], one[:8] + b"\0\0\0\1" + one[12:]):
        with pytest.raises(KafkaError) as damaged:
            walk([bad], 9, [])
        assert damaged.value.code is ErrorCode.CORRUPT_MESSAGE
