"""Topics for dead letters: those of this broker, and of another one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kafkawire.broker.dead_letter_topics import ENABLE, PRODUCE, ClusterDeadLetterTopics
from kafkawire.codec.batches import Record, pack
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.messages.create_topics import CreatableTopic, CreatableTopicConfig
from kafkawire.server.run import Server
from kafkawire.share.counts import ShareCounts
from kafkawire.share.dead_letters import DeadLetterWriter, LetterSource
from kafkawire.share.partition import ShareRecord
from kafkawire.share.persister import SharePartitionKey
from kafkawire.share.runs import OffsetRun
from kafkawire.share.states import ArchiveReason, RecordState
from tests.kit.client import Client
from tests.kit.produce_fetch import make
from tests.kit.server import port_of, running
from tests.kit.share.settings import share_settings

DLQ = "dlq.x"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running(tmp_path, node_id="1") as started:
        configs = [CreatableTopicConfig(ENABLE, "true")]
        await started.broker.topics.create([CreatableTopic(DLQ, 1, 1, [], configs)])
        yield started


class Connection:
    """The broker of the test as another one. `lost`: answers that do not arrive."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.lost = 0

    async def request(self, broker: int, key: int, message: object) -> Any:
        assert (broker, key) == (1, PRODUCE)
        answer = await self.client.call(message, 13)
        if self.lost:
            self.lost -= 1
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION)
        return answer

    def close(self) -> None:
        self.lost = -1


def seen_by_another(server: Server, connection: Any) -> ClusterDeadLetterTopics:
    """The topics as a broker sees them that does not lead them."""
    broker = server.broker
    return ClusterDeadLetterTopics(
        9, broker.config, broker.catalog, broker.log.loader.configs.config_of_topic,
        broker.table.load_partition, broker.topics.create, broker.producer_ids.next_id,
        lambda: connection,
    )  # fmt: skip


async def test_another_broker_appends_each_dead_letter_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkawire.share.dead_letters.BACKOFF_S", 0.001)
    broker = server.broker
    client = await Client.connect(port_of(server))
    topic_id = await make(client, "t")
    connection = Connection(client)
    topics = seen_by_another(server, connection)
    settings = share_settings(dead_letter_topic=DLQ)
    counts = ShareCounts()
    letters = DeadLetterWriter(
        broker.env, broker.log.commit_log, topics, lambda _: settings, counts
    )
    partition = await broker.table.load_partition("t", 0)
    source = LetterSource(SharePartitionKey("g", topic_id, 0), partition, 1, 1)
    record = ShareRecord(RecordState.ARCHIVING, 2, reason=ArchiveReason.REJECTED)
    for at in range(3):
        connection.lost = at  # and it is sent again
        assert await letters.write(source, [OffsetRun(at, at, record)]) == [(at, at)]
    assert (await broker.table.load_partition(DLQ, 0)).high_watermark == 3
    assert (counts.letters_written, counts.letters_lost) == (3, 0)
    topics.close()
    await client.close()


async def test_refusals_of_the_other_broker_are_errors(server: Server) -> None:
    client = await Client.connect(port_of(server))
    topics = seen_by_another(server, Connection(client))
    topic = await topics.find(DLQ)
    assert await topics.partition(topic, 0) is None
    batch = pack([Record(0, 1, None, None)], producer_id=7, producer_epoch=0, base_sequence=5)
    await topics.produce(topic, 0, batch)
    later = pack([Record(0, 1, None, None)], producer_id=7, producer_epoch=0, base_sequence=9)
    with pytest.raises(KafkaError) as refused:
        await topics.produce(topic, 0, later)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await topics.take_producer_id() != await topics.take_producer_id()
    await client.close()


async def test_topics_that_take_no_dead_letters(server: Server) -> None:
    topics = server.broker.dead_letter_topics
    topic = await topics.find(DLQ)
    gone = topic._replace(topic_id=bytes(16))
    for attempt in (topics.partition(gone, 0), topics.produce(gone, 0, b"")):
        with pytest.raises(KafkaError) as deleted:
            await attempt
        assert deleted.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(KafkaError) as internal:
        await topics.find("__dlq")
    assert internal.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
