"""Topics with durability=replicated: one broker with followers in threads.

Covers: kafkawire.broker.followers.*, kafkawire.log.followers.*.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.coordination import service as coordination_service
from kafkawire.log.append import follower_sink
from kafkawire.log.io.ports import Superseded
from kafkawire.log.recovery.identity import IdentityError
from kafkawire.messages.create_topics import CreatableTopic, CreatableTopicConfig
from kafkawire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kafkawire.messages.metadata import MetadataRequest
from kafkawire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.metadata.store import BrokerSuperseded
from kafkawire.offsets.catalog.replica_sets import ReplicaSet
from kafkawire.server.run import Server
from tests.kit.client import Client, batch
from tests.kit.followers import RunningFollower, stored_set
from tests.kit.produce_fetch import fetch, produce, values
from tests.kit.server import port_of, running
from tests.kit.waiting import WITHIN_S, until

T = TypeVar("T")
LISTENER = "127.0.0.1:1"
"""Of the broker's own machine, whose follower does not run in these tests."""


class Site:
    """The folders, the database and the followers of a test."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite+aiosqlite:///{folder}/shared.db"
        self._folder = folder
        self._followers: list[RunningFollower] = []

    async def follower(self, node_id: int, encrypts: bool = False) -> RunningFollower:
        """Start a follower, and register it."""
        made = RunningFollower(self._folder / f"replicas-{node_id}", node_id, encrypts)
        self._followers.append(made)
        await made.register(self.url)
        return made

    @asynccontextmanager
    async def broker(self, folder: str = "a", **more: str) -> AsyncIterator[Server]:
        """Run the broker, with its data in one of the folders."""
        settings = {
            "tier_url": str(self._folder / "tier"), "replication_listener": LISTENER,
            "replica_group_size": "2", "min_insync_replicas": "2",
            "replica_lag_time_max_ms": "500", **more,
        }  # fmt: skip
        async with running(self._folder / folder, metadata=self.url, **settings) as server:
            yield server

    @asynccontextmanager
    async def serving(self, folder: str = "a", **more: str) -> AsyncIterator[tuple[Server, Client]]:
        """Run the broker with the topic `t`, and connect a client."""
        async with self.broker(folder, **more) as server:
            if "t" not in server.broker.catalog.by_name:
                await create(server)
            client = await Client.connect(port_of(server))
            yield server, client
            await client.close()

    async def stored_set(self) -> ReplicaSet | None:
        """Return the set of the broker in SQL."""
        return await stored_set(self.url, 1)

    def stop(self) -> None:
        """Stop the followers."""
        for each in self._followers:
            each.stop()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.stop()


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
    """The written part of the broker's journals, by file name. A new one may not be at followers
    yet."""
    found = {}
    for each in server.broker.log.journals:
        path = Path(each.path)
        found[path.name] = path.read_bytes()[: each.end]
    return found


async def test_acks_all_is_answered_when_followers_have_the_records(site: Site) -> None:
    two = await site.follower(2)
    async with site.serving() as (server, client):
        await send_all(client, b"one")
        assert await send(client, b"two", b"three") is ErrorCode.NONE
        assert two.journals(1) == journals_of(server)
        assert await high_watermark(client) == 3
        assert await send(client, b"four", acks=1) is ErrorCode.NONE
        stored = await site.stored_set()
        assert stored is not None
        assert stored.in_sync == {two.row.replica_id}


async def test_produces_are_refused_without_enough_followers(site: Site) -> None:
    two = await site.follower(2)
    two.stop()
    async with site.serving() as (server, client):
        assert await send(client, b"one") is ErrorCode.NOT_ENOUGH_REPLICAS
        assert await send(client, b"one", acks=1) is ErrorCode.NOT_ENOUGH_REPLICAS
        two.start()
        await send_all(client, b"one")
        two.stop()
        await until(lambda: server.broker.log.commit_log.follower_sink.refusal is not None)
        assert await send(client, b"two") is ErrorCode.NOT_ENOUGH_REPLICAS
        two.start()
        await send_all(client, b"two")
        assert await high_watermark(client) == 2


async def test_follower_leaves_and_enters_the_set(site: Site) -> None:
    two, three = await site.follower(2), await site.follower(3)
    async with site.serving(replica_group_size="3") as (server, client):
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
        await until(lambda: two.journals(1) == three.journals(1) == journals_of(server))


async def test_topic_may_want_more_replicas_than_the_broker(site: Site) -> None:
    await site.follower(2)
    async with site.serving() as (server, client):
        await create(server, "more", min_insync_replicas="3")
        await send_all(client, b"one")
        assert await send(client, b"one", topic="more") is ErrorCode.NOT_ENOUGH_REPLICAS
        assert await send(client, b"one", topic="more", acks=1) is ErrorCode.NONE


async def test_broker_alone_goes_on_if_one_replica_is_enough(site: Site) -> None:
    async with site.serving(min_insync_replicas="1") as (_, client):
        await send_all(client, b"one")
        assert await high_watermark(client) == 1
    stored = await site.stored_set()
    assert stored is not None
    assert stored.in_sync == frozenset()


async def test_restart_continues_the_copies(site: Site) -> None:
    two = await site.follower(2)
    for round_ in range(3):
        async with site.serving() as (server, client):
            await send_all(client, b"value")
            assert await high_watermark(client) == round_ + 1
            await until(lambda: two.journals(1) == journals_of(server))
    assert len([each for each in two.folder.joinpath("1").iterdir() if each.is_dir()]) == 1


async def test_start_in_another_folder_takes_the_copy_of_a_follower(site: Site) -> None:
    await site.follower(2)
    async with site.serving() as (_, client):
        await send_all(client, *(b"%d" % at for at in range(100)))
    async with site.serving("b") as (_, client):
        answer = await client.call(fetch("t", 0), 12)
        page = answer.responses[0].partitions[0]
        assert page.high_watermark == 100
        await send_all(client, b"more")
        assert await high_watermark(client) == 101


async def test_followers_with_certificates_get_encrypted_connections(site: Site) -> None:
    two = await site.follower(2, encrypts=True)
    records = [bytes(100_000) for _ in range(100)]
    async with site.serving() as (server, client):
        for each in records:
            await send_all(client, each)
        await until(lambda: two.journals(1) == journals_of(server))
    async with site.serving("b") as (_, client):
        assert await high_watermark(client) == len(records)
        await send_all(client, b"more")
        two.stop()  # its own certificate is used again
        two.start()
        await send_all(client, b"more")


async def test_superseded_process_cannot_acknowledge(site: Site) -> None:
    await site.follower(2)
    async with site.serving() as (old, client):
        await send_all(client, b"one")
        ended: list[str] = []
        old.broker.when_superseded(ended.append)
        async with site.serving("b") as (_, other):
            await until(lambda: bool(ended))
            assert await send(client, b"lost") is ErrorCode.NOT_LEADER_OR_FOLLOWER
            await send_all(other, b"two")
            assert await high_watermark(other) == 2


async def test_metadata_has_replicas_and_those_in_sync(site: Site) -> None:
    _, three = await site.follower(2), await site.follower(3)
    async with site.serving(replica_group_size="3") as (_, client):
        await send_all(client, b"one")

        async def replicas() -> tuple[list[int], list[int]]:
            answer = await client.call(MetadataRequest(topics=None), 12)
            (row,) = answer.topics[0].partitions
            return row.replica_nodes, row.isr_nodes

        await becomes(replicas, ([1, 2, 3], [1, 2, 3]))
        three.stop()
        await becomes(replicas, ([1, 2, 3], [1, 2]))


async def test_new_topic_has_its_replicas_before_its_first_record(site: Site) -> None:
    await site.follower(2)
    for _ in range(2):  # created, and found by a start
        async with site.serving() as (_server, client):

            async def in_sync(client: Client = client) -> list[int]:
                answer = await client.call(MetadataRequest(topics=None), 12)
                return list(answer.topics[0].partitions[0].isr_nodes)

            await becomes(in_sync, [1, 2])


async def test_topic_is_refused_without_a_follower_of_this_machine(site: Site) -> None:
    async with site.broker(replication_listener="") as server:
        with pytest.raises(KafkaError, match=r"replication\.listener"):
            await create(server)


async def test_folder_that_alone_has_the_records_is_not_superseded(site: Site) -> None:
    async with site.serving(min_insync_replicas="1") as (_, client):
        await send_all(client, b"one")
    with pytest.raises(IdentityError, match="no follower was in sync"):
        async with site.broker("b", min_insync_replicas="1"):
            pass
    async with site.serving(min_insync_replicas="1") as (_, client):
        await send_all(client, b"two")
        assert await high_watermark(client) == 2


async def test_set_is_forgotten_without_replicated_topics(site: Site) -> None:
    two = await site.follower(2)
    async with site.serving() as (server, client):
        await send_all(client, b"one")
        await server.broker.topics.delete([server.broker.catalog.by_name["t"].id])
    two.stop()
    async with site.serving() as (server, client):  # waits for no follower
        assert await site.stored_set() is None
        two.start()
        await send_all(client, b"two")
        await until(lambda: two.journals(1) == journals_of(server))


async def test_start_that_waits_ends_when_it_is_superseded(site: Site) -> None:
    two = await site.follower(2)
    async with site.serving() as (server, client):
        await send_all(client, b"one")
        before = server.broker.catalog.brokers[1].epoch
    two.stop()
    started = asyncio.ensure_future(site.broker().__aenter__())
    other = SqlMetadata(site.url)
    await other.open()

    async def epoch() -> int:
        return (await other.reload()).brokers[1].epoch

    await becomes(epoch, before + 1)
    await other.register_broker(1, {}, None)
    await other.close()
    two.start()
    with pytest.raises((Superseded, BrokerSuperseded)):
        await started


async def test_records_of_local_topics_are_deleted_without_followers(site: Site) -> None:
    two = await site.follower(2)
    async with site.serving() as (server, client):
        await create(server, "local", durability="local", min_insync_replicas="1")
        await send_all(client, b"one")
        two.stop()
        assert await send(client, b"one", topic="local") is ErrorCode.NONE
        await until(lambda: server.broker.log.commit_log.follower_sink.refusal is not None)
        saving = asyncio.ensure_future(server.broker.log.checkpoint())
        partition = DeleteRecordsPartition(0, 1)
        request = DeleteRecordsRequest([DeleteRecordsTopic("local", [partition])], 60_000)
        answer = await client.call(request, 2)
        deleted = answer.topics[0].partitions[0]
        assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.NONE, 1)
        assert not saving.done()
        two.start()
        await saving


async def test_follower_that_was_stopped_is_not_waited_for(site: Site) -> None:
    two, _ = await site.follower(2), await site.follower(3)
    hour = {"replica_group_size": "3", "replica_lag_time_max_ms": "3600000"}
    async with site.serving(**hour) as (_, client):
        await send_all(client, b"one")
        two.stop()
        assert await send(client, b"two") is ErrorCode.NONE


async def commit_offset(client: Client, offset: int) -> int:
    """Commit an offset of a group without members; return the error."""
    topic = OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, offset)])
    answer = await client.call(OffsetCommitRequest("group", -1, topics=[topic]), 8)
    return int(answer.topics[0].partitions[0].error_code)


async def test_shutdown_waits_for_followers_for_a_limited_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (coordination_service, follower_sink):
        monkeypatch.setattr(module, "CLOSE_S", 0.5)
    two = await site.follower(2)
    async with site.serving(durability="replicated") as (server, client):
        replicas = server.broker.log.commit_log.follower_sink
        await send_all(client, b"one")
        await server.broker.groups.open()

        async def committed() -> int:
            return await commit_offset(client, 0)

        await becomes(committed, 0)
        two.stop()
        waiting = asyncio.ensure_future(commit_offset(client, 1))
        await until(lambda: replicas.queue.size_bytes > 0)
    await asyncio.gather(waiting, return_exceptions=True)


async def records_of(client: Client) -> list[bytes]:
    """Return the records of the topic."""
    answer = await client.call(fetch("t", 0), 12)
    return values(answer.responses[0].partitions[0])


def remove(journal: Path) -> None:
    journal.unlink()


def cut(journal: Path) -> None:
    """Cut a journal, and remove what else says how far it must reach."""
    os.truncate(journal, journal.stat().st_size // 2)
    home = journal.parents[1]
    for each in (*home.glob("ledger*"), *home.glob("run*"), *journal.parent.glob("*.index")):
        each.unlink()


def change(journal: Path) -> None:
    """Change a byte in the middle, and remove the index, so that the next start reads it."""
    data = bytearray(journal.read_bytes())
    data[len(data) // 2] ^= 1
    journal.write_bytes(data)
    for each in journal.parent.glob("*.index"):
        each.unlink()


@pytest.mark.parametrize("damage", [remove, cut, change])
async def test_start_with_damaged_journals_uses_the_copy_of_a_follower(
    site: Site, damage: Callable[[Path], None]
) -> None:
    two = await site.follower(2)
    sent = [b"%d" % at for at in range(100)]
    async with site.serving() as (server, client):
        for each in sent:
            await send_all(client, each)
        log, epoch = server.broker.log, server.broker.catalog.brokers[1].epoch
        await until(lambda: two.committed(1, epoch) == log.commit_log.disk_sink.committed)
        journal = Path(log.journals.active.path)
        written = log.journals.active.end
    os.truncate(journal, written)
    damage(journal)
    async with site.serving() as (_, client):
        assert await records_of(client) == sent
        await send_all(client, b"more")
        assert await records_of(client) == [*sent, b"more"]
    assert (journal.parents[1] / "superseded" / "1").is_dir()


async def test_ledger_has_bounds_of_what_is_acknowledged(site: Site) -> None:
    """Without followers the loss of a journal must not let offsets be used again."""
    async with site.serving(min_insync_replicas="1") as (server, client):
        await send_all(client, *(b"value" for _ in range(2000)))
        (info,) = server.broker.catalog.by_name["t"].partitions
        assert server.broker.log.partitions[info.number].bound >= 2000


async def test_damage_is_contained_if_local_topics_have_records_in_the_folder(site: Site) -> None:
    await site.follower(2)
    async with site.serving() as (server, client):
        await create(server, "own", durability="local")
        for at in range(100):
            await send_all(client, b"%d" % at)
            assert await send(client, b"%d" % at, acks=1, topic="own") is ErrorCode.NONE
        active = server.broker.log.journals.active
        journal, written = Path(active.path), active.end
    os.truncate(journal, written)
    change(journal)
    async with site.serving() as (_, client):
        assert await high_watermark(client) == 100
        assert await high_watermark(client, "own") == 100
        await send_all(client, b"more")
    assert not (journal.parents[1] / "superseded").exists()


async def test_damaged_journals_are_kept_if_local_topics_have_records_in_the_folder(
    site: Site,
) -> None:
    await site.follower(2)
    async with site.serving() as (server, client):
        await create(server, "own", durability="local")
        assert await send(client, b"one", acks=1, topic="own") is ErrorCode.NONE
        await send_all(client, b"one")
        journal = Path(server.broker.log.journals.active.path)
    remove(journal)
    for _ in range(2):  # nothing was changed by the first one
        with pytest.raises(IdentityError, match="records of own"):
            async with site.broker():
                pass
    assert not (journal.parents[1] / "superseded").exists()
