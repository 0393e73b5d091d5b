"""Topics with durability=replicated: one broker with followers in threads.

Covers: kafkawire.broker.followers.*, kafkawire.log.replicas.*.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.objects.commits import Superseded
from kafkawire.log.recovery.identity import IdentityError
from kafkawire.messages.create_topics import CreatableTopic, CreatableTopicConfig
from kafkawire.messages.metadata import MetadataRequest
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.metadata.store import BrokerSuperseded
from kafkawire.server.run import Server
from tests.kit.client import Client, batch
from tests.kit.followers import RunningFollower, stored_set
from tests.kit.produce_fetch import fetch, produce
from tests.kit.server import port_of, running
from tests.kit.waiting import WITHIN_S, until

T = TypeVar("T")
NewFollower = Callable[[int], RunningFollower]
LISTENER = "127.0.0.1:1"
"""Of the broker's own machine, whose follower does not run in these tests."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite+aiosqlite:///{tmp_path}/shared.db"


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[NewFollower]:
    made: list[RunningFollower] = []

    def new(node_id: int) -> RunningFollower:
        made.append(RunningFollower(tmp_path / f"replicas-{node_id}", node_id))
        return made[-1]

    yield new
    for each in made:
        each.stop()


@asynccontextmanager
async def broker(tmp_path: Path, url: str, folder: str = "a", **more: str) -> AsyncIterator[Server]:
    settings = {
        "tier_url": str(tmp_path / "tier"), "replication_listener": LISTENER,
        "replica_group_size": "2", "min_insync_replicas": "2", "replica_lag_time_max_ms": "500",
        **more,
    }  # fmt: skip
    async with running(tmp_path / folder, metadata=url, **settings) as server:
        yield server


async def create(server: Server, name: str = "t", **configs: str) -> None:
    topic = CreatableTopic(name, 1, -1)
    named = {"durability": "replicated"} | {
        key.replace("_", "."): value for key, value in configs.items()
    }
    topic.configs = [CreatableTopicConfig(name=key, value=value) for key, value in named.items()]
    (made,) = await server.broker.topics.create([topic])
    if isinstance(made, KafkaError):
        raise made


async def send(client: Client, *values: bytes, acks: int = -1, topic: str = "t") -> ErrorCode:
    answer = await client.call(produce(topic, batch(*values), acks=acks), 9)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


async def becomes(ask: Callable[[], Awaitable[T]], wanted: T) -> None:
    """Ask until the answer is the wanted one."""
    found = None
    async with asyncio.timeout(WITHIN_S):
        while found != wanted:
            found = await ask()
            await asyncio.sleep(0.01)


async def send_all(client: Client, *values: bytes, topic: str = "t") -> None:
    """Send again as long as the broker refuses for lack of replicas."""
    codes = {ErrorCode.NOT_ENOUGH_REPLICAS}
    async with asyncio.timeout(WITHIN_S):
        while codes == {ErrorCode.NOT_ENOUGH_REPLICAS}:
            codes = {await send(client, *values, topic=topic)}
            await asyncio.sleep(0.01)
    assert codes == {ErrorCode.NONE}


async def high_watermark(client: Client, topic: str = "t") -> int:
    answer = await client.call(fetch(topic, 0), 12)
    return int(answer.responses[0].partitions[0].high_watermark)


def journals_of(server: Server) -> dict[str, bytes]:
    """The written part of the broker's journals, by file name."""
    found = {}
    for each in server.broker.log.journals:
        path = Path(each.path)
        found[path.name] = path.read_bytes()[: each.end]
    return found


async def test_acks_all_is_answered_when_followers_have_the_records(
    tmp_path: Path, url: str, follower: NewFollower
) -> None:
    two = follower(2)
    await two.register(url)
    async with broker(tmp_path, url) as server:
        await create(server)
        client = await Client.connect(port_of(server))
        await send_all(client, b"one")
        assert await send(client, b"two", b"three") is ErrorCode.NONE
        assert two.journals(1) == journals_of(server)
        assert await high_watermark(client) == 3
        assert await send(client, b"four", acks=1) is ErrorCode.NONE
        stored = await stored_set(url, 1)
        assert stored is not None
        assert stored.in_sync == {two.row.replica_id}
        await client.close()


async def test_produces_are_refused_without_enough_followers(
    tmp_path: Path, url: str, follower: NewFollower
) -> None:
    two = follower(2)
    await two.register(url)
    two.stop()
    async with broker(tmp_path, url) as server:
        await create(server)
        client = await Client.connect(port_of(server))
        assert await send(client, b"one") is ErrorCode.NOT_ENOUGH_REPLICAS
        assert await send(client, b"one", acks=1) is ErrorCode.NOT_ENOUGH_REPLICAS
        two.start()
        await send_all(client, b"one")
        two.stop()
        await until(lambda: server.broker.log.commit_log.replicas.refusal is not None)
        assert await send(client, b"two") is ErrorCode.NOT_ENOUGH_REPLICAS
        two.start()
        await send_all(client, b"two")
        assert await high_watermark(client) == 2
        await client.close()


async def test_follower_leaves_and_enters_the_set(
    tmp_path: Path, url: str, follower: NewFollower
) -> None:
    two, three = follower(2), follower(3)
    await two.register(url)
    await three.register(url)
    async with broker(tmp_path, url, replica_group_size="3") as server:
        await create(server)
        client = await Client.connect(port_of(server))
        await send_all(client, b"one")
        in_sync = server.broker.log.replication.in_sync  # type: ignore[union-attr]
        assert in_sync is not None
        await until(lambda: len(in_sync.members) == 2)
        two_id = two.row.replica_id
        two.stop()
        assert await send(client, b"two") is ErrorCode.NONE  # once the set is stored without it
        assert in_sync.members == {three.row.replica_id}
        assert two_id not in in_sync.members
        two.start()
        await until(lambda: len(in_sync.members) == 2)
        assert await send(client, b"three") is ErrorCode.NONE
        assert two.journals(1) == three.journals(1) == journals_of(server)
        await client.close()


async def test_topic_may_want_more_replicas_than_the_broker(
    tmp_path: Path, url: str, follower: NewFollower
) -> None:
    two = follower(2)
    await two.register(url)
    async with broker(tmp_path, url) as server:
        await create(server)
        await create(server, "more", min_insync_replicas="3")
        client = await Client.connect(port_of(server))
        await send_all(client, b"one")
        assert await send(client, b"one", topic="more") is ErrorCode.NOT_ENOUGH_REPLICAS
        assert await send(client, b"one", topic="more", acks=1) is ErrorCode.NONE
        await client.close()


async def test_broker_alone_goes_on_if_one_replica_is_enough(tmp_path: Path, url: str) -> None:
    async with broker(tmp_path, url, min_insync_replicas="1") as server:
        await create(server)
        client = await Client.connect(port_of(server))
        await send_all(client, b"one")
        assert await high_watermark(client) == 1
        await client.close()
    stored = await stored_set(url, 1)
    assert stored is not None
    assert stored.in_sync == frozenset()


async def test_restart_continues_the_copies(
    tmp_path: Path, url: str, follower: NewFollower
) -> None:
    two = follower(2)
    await two.register(url)
    for round_ in range(3):
        async with broker(tmp_path, url) as server:
            if not round_:
                await create(server)
            client = await Client.connect(port_of(server))
            await send_all(client, b"value")
            assert await high_watermark(client) == round_ + 1
            assert two.journals(1) == journals_of(server)
            await client.close()
    assert len([each for each in two.folder.joinpath("1").iterdir() if each.is_dir()]) == 1


async def test_start_in_another_folder_takes_the_copy_of_a_follower(
    tmp_path: Path, url: str, follower: NewFollower
) -> None:
    two = follower(2)
    await two.register(url)
    async with broker(tmp_path, url) as server:
        await create(server)
        client = await Client.connect(port_of(server))
        await send_all(client, *(b"%d" % at for at in range(100)))
        await client.close()
    async with broker(tmp_path, url, "b") as server:
        client = await Client.connect(port_of(server))
        answer = await client.call(fetch("t", 0), 12)
        page = answer.responses[0].partitions[0]
        assert page.high_watermark == 100
        await send_all(client, b"more")
        assert await high_watermark(client) == 101
        await client.close()


async def test_superseded_process_cannot_acknowledge(
    tmp_path: Path, url: str, follower: NewFollower
) -> None:
    two = follower(2)
    await two.register(url)
    async with broker(tmp_path, url) as old:
        await create(old)
        client = await Client.connect(port_of(old))
        await send_all(client, b"one")
        ended: list[str] = []
        old.broker.when_superseded(ended.append)
        async with broker(tmp_path, url, "b") as new:
            other = await Client.connect(port_of(new))
            await until(lambda: bool(ended))
            assert await send(client, b"lost") is ErrorCode.NOT_LEADER_OR_FOLLOWER
            await send_all(other, b"two")
            assert await high_watermark(other) == 2
            await other.close()
        await client.close()


async def test_metadata_has_replicas_and_those_in_sync(
    tmp_path: Path, url: str, follower: NewFollower
) -> None:
    two, three = follower(2), follower(3)
    await two.register(url)
    await three.register(url)
    async with broker(tmp_path, url, replica_group_size="3") as server:
        await create(server)
        client = await Client.connect(port_of(server))
        await send_all(client, b"one")

        async def replicas() -> tuple[list[int], list[int]]:
            answer = await client.call(MetadataRequest(topics=None), 12)
            (row,) = answer.topics[0].partitions
            return row.replica_nodes, row.isr_nodes

        await becomes(replicas, ([1, 2, 3], [1, 2, 3]))
        three.stop()
        await becomes(replicas, ([1, 2, 3], [1, 2]))
        await client.close()


async def test_topic_is_refused_without_a_follower_of_this_machine(
    tmp_path: Path, url: str
) -> None:
    async with broker(tmp_path, url, replication_listener="") as server:
        with pytest.raises(KafkaError, match=r"replication\.listener"):
            await create(server)


async def test_folder_that_alone_has_the_records_is_not_superseded(
    tmp_path: Path, url: str
) -> None:
    async with broker(tmp_path, url, min_insync_replicas="1") as server:
        await create(server)
        client = await Client.connect(port_of(server))
        await send_all(client, b"one")
        await client.close()
    with pytest.raises(IdentityError, match="no follower was in sync"):
        async with broker(tmp_path, url, "b", min_insync_replicas="1"):
            pass
    async with broker(tmp_path, url, min_insync_replicas="1") as server:
        client = await Client.connect(port_of(server))
        await send_all(client, b"two")
        assert await high_watermark(client) == 2
        await client.close()


async def test_set_is_forgotten_without_replicated_topics(
    tmp_path: Path, url: str, follower: NewFollower
) -> None:
    two = follower(2)
    await two.register(url)
    async with broker(tmp_path, url) as server:
        await create(server)
        client = await Client.connect(port_of(server))
        await send_all(client, b"one")
        await server.broker.topics.delete([server.broker.catalog.by_name["t"].id])
        await client.close()
    two.stop()
    async with broker(tmp_path, url) as server:  # waits for no follower
        assert await stored_set(url, 1) is None
        two.start()
        await create(server)
        client = await Client.connect(port_of(server))
        await send_all(client, b"two")
        assert two.journals(1) == journals_of(server)
        await client.close()


async def test_start_that_waits_ends_when_it_is_superseded(
    tmp_path: Path, url: str, follower: NewFollower
) -> None:
    two = follower(2)
    await two.register(url)
    async with broker(tmp_path, url) as server:
        await create(server)
        client = await Client.connect(port_of(server))
        await send_all(client, b"one")
        before = server.broker.catalog.brokers[1].epoch
        await client.close()
    two.stop()
    started = asyncio.ensure_future(broker(tmp_path, url).__aenter__())
    other = SqlMetadata(url)
    await other.open()

    async def epoch() -> int:
        return (await other.reload()).brokers[1].epoch

    await becomes(epoch, before + 1)
    await other.register_broker(1, {}, None)
    await other.close()
    two.start()
    with pytest.raises((Superseded, BrokerSuperseded)):
        await started


async def test_follower_that_was_stopped_is_not_waited_for(
    tmp_path: Path, url: str, follower: NewFollower
) -> None:
    two, three = follower(2), follower(3)
    await two.register(url)
    await three.register(url)
    hour = {"replica_group_size": "3", "replica_lag_time_max_ms": "3600000"}
    async with broker(tmp_path, url, **hour) as server:
        await create(server)
        client = await Client.connect(port_of(server))
        await send_all(client, b"one")
        two.stop()
        assert await send(client, b"two") is ErrorCode.NONE
        await client.close()
