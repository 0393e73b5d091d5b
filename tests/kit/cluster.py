"""Several broker processes of one cluster: one metadata database, a data folder for each broker.

with Cluster(folder, url) as cluster:
    print(cluster.bootstrap(2))
    cluster.kill(1)
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.metadata import MetadataRequest
from kafkawire.metadata.catalog import TOPIC_RESOURCE
from kafkawire.testing.process import BrokerProcess
from tests.kit.client import Client
from tests.kit.postgres import new_database
from tests.kit.waiting import wait_until

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "log.retention.ms": "-1",
    "journal.bytes": str(4 << 20),
    "recycle.bytes": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
"""Fewer partitions of internal topics than usual, but some for each broker."""
QUIET = 2
"""Log level of clients that outlive a broker: they would report each lost connection."""
KEEPS_BROKERS = {"metadata.recovery.strategy": "none"}
"""Setting of librdkafka's clients that use a coordinator while brokers are killed. By default they
forget all brokers when none is reachable for a moment, and `send_offsets_to_transaction` then waits
forever for the coordinator that was known before (librdkafka issue 5511)."""
NO_LEADER = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._DESTROY_BROKER,
        KafkaError._TRANSPORT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)
"""Errors of a client while the broker of a partition is being taken over, or returns."""


def metadata_url(kind: str, folder: Path, request: pytest.FixtureRequest) -> str:
    """An empty database for a cluster: `kind` is "sqlite" or "postgresql"."""
    if kind == "sqlite":
        (folder / "sql").mkdir(parents=True)
        return f"sqlite:///{folder}/sql/metadata.db"
    return asyncio.run(new_database(request.getfixturevalue("postgres_url")))


class Cluster:
    """Brokers by node id, each on a free port that it keeps over restarts. `settings` are those of
    all brokers, `own` those of single ones by node id; `shared`: all have one data folder, as with
    `serve --workers`."""

    def __init__(
        self,
        folder: Path,
        url: str,
        nodes: Sequence[int] = (1, 2),
        settings: Mapping[str, object] | None = None,
        shared: bool = False,
        own: Mapping[int, Mapping[str, object]] | None = None,
    ) -> None:
        self._folder = folder
        self._paused: set[int] = set()
        self._admins: dict[int, AdminClient] = {}
        mine = own or {}
        self.brokers = {
            node: self._process(
                folder / ("data" if shared else f"data-{node}"),
                url,
                {**SETTINGS, **(settings or {}), **mine.get(node, {}), "node.id": node},
            )
            for node in nodes
        }

    def _process(self, data: Path, url: str, settings: Mapping[str, object]) -> BrokerProcess:
        """The process of one broker, not started."""
        return BrokerProcess(data, settings=settings, arguments=["--metadata", url])

    def __enter__(self) -> Self:
        try:
            for broker in self.brokers.values():
                broker.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            for node, broker in self.brokers.items():
                log = self._folder / f"broker-{node}.log"
                log.write_text(broker.output)
                lines = broker.output.splitlines(True)
                error.add_note(f"broker {node} (more in {log}):\n{''.join(lines[-40:])}")
            self.end()
            return
        try:
            for node in [*self._paused]:
                self.resume(node)
            for broker in self.brokers.values():
                broker.stop()
        finally:
            self.end()

    def end(self) -> None:
        """Kill the brokers that still run."""
        for broker in self.brokers.values():
            if broker.running:
                broker.kill()

    def bootstrap(self, node: int) -> str:
        """Address of one broker, for clients that know no other."""
        return self.brokers[node].bootstrap

    def start(self, node: int) -> None:
        self.brokers[node].start()

    def stop(self, node: int) -> None:
        self.brokers[node].stop()
        self._admins.clear()

    def kill(self, node: int) -> None:
        """Kill a broker, which may be paused."""
        self.brokers[node].kill()
        self._paused.discard(node)
        self._admins.clear()  # librdkafka's waits for the controller that it knew

    def pause(self, node: int) -> None:
        """Stop a broker with SIGSTOP: its connections remain, and it continues in the middle of
        what it was doing once it is resumed."""
        os.kill(self.brokers[node].pid, signal.SIGSTOP)
        self._paused.add(node)

    def resume(self, node: int) -> None:
        os.kill(self.brokers[node].pid, signal.SIGCONT)
        self._paused.discard(node)

    def wipe(self, node: int) -> None:
        """Delete the data folder of a broker that does not run."""
        broker = self.brokers[node]
        assert not broker.running, f"broker {node} runs"
        shutil.rmtree(broker.data)

    def restart(self, node: int) -> None:
        self.brokers[node].restart()

    def admin(self, node: int) -> AdminClient:
        """A client that asks this broker first; cluster-wide requests go to the controller."""
        if node not in self._admins:
            settings = {"bootstrap.servers": self.bootstrap(node), "log_level": QUIET}
            self._admins[node] = AdminClient(settings)
        return self._admins[node]

    def create(self, node: int, name: str, leaders: Sequence[int], **configs: str) -> None:
        """Create a topic at a broker, with one partition for each of the leaders."""
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        topic = NewTopic(
            name, len(leaders), replica_assignment=[[led] for led in leaders], config=settings
        )
        admin = self._fresh(node)  # a cached one waits for a controller that has ended
        admin.create_topics([topic])[name].result(60)

    def listed(self, node: int) -> list[int]:
        """The brokers that a client of this broker sees."""
        return sorted(self._fresh(node).list_topics(timeout=30).brokers)

    def leaders(self, node: int, topic: str) -> dict[int, int]:
        """Leaders by partition as this broker answers; empty: no such topic. -1: no leader.

        Not through librdkafka, which may send the request to another broker once it has addresses.
        """

        async def ask() -> dict[int, int]:
            client = await Client.connect(self.brokers[node].port)
            topics = (await client.call(MetadataRequest(None), 12)).topics  # a name may create it
            await client.close()
            rows = [row for each in topics if each.name == topic for row in each.partitions]
            return {each.partition_index: each.leader_id for each in rows}

        return asyncio.run(ask())

    def coordinator(self, node: int, key: str, kind: int = 0) -> int:
        """The coordinator of a group, or with another key type of FindCoordinator of a transaction
        (1) or a share partition (2), as this broker answers; 0: none yet."""

        async def ask() -> Any:
            client = await Client.connect(self.brokers[node].port)
            answer = await client.call(FindCoordinatorRequest("", kind, [key]), 6)
            await client.close()
            return answer.coordinators[0]

        found = asyncio.run(ask())
        assert found.error_code in (0, ErrorCode.COORDINATOR_NOT_AVAILABLE), found
        return 0 if found.error_code else int(found.node_id)

    def setting(self, node: int, topic: str, name: str) -> str:
        """A topic's setting as this broker knows it; librdkafka would ask the controller."""

        async def ask() -> str:
            client = await Client.connect(self.brokers[node].port)
            resource = DescribeConfigsResource(TOPIC_RESOURCE, topic, [name])
            (found,) = (await client.call(DescribeConfigsRequest([resource]), 4)).results
            await client.close()
            return str(found.configs[0].value)

        return asyncio.run(ask())

    def _fresh(self, node: int) -> AdminClient:
        """A client without anything cached, whose requests go to one broker: with the addresses of
        others it would ask those too."""
        return AdminClient({"bootstrap.servers": self.bootstrap(node), "log_level": QUIET})

    def consumer(self, node: int, group: str, **configs: Any) -> Consumer:
        settings = {
            "bootstrap.servers": self.bootstrap(node),
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 300,
            "session.timeout.ms": 10_000,
            "log_level": QUIET,
        }
        return Consumer({**settings, **{k.replace("_", "."): v for k, v in configs.items()}})

    def read_all(self, node: int, topic: str) -> dict[int, list[bytes]]:
        """All values of a topic by partition, up to its present ends, with one broker as
        bootstrap."""
        consumer = self.consumer(node, "unused")
        try:
            found: dict[int, list[bytes]] = {}
            for index in self.leaders(node, topic):
                at = TopicPartition(topic, index, 0)
                consumer.assign([at])
                _, end = wait_until(partial(bounds, consumer, at), f"a leader of {topic}-{index}")
                values = found[index] = []
                while len(values) < end:
                    for message in consumer.consume(end - len(values), 1):
                        assert message.error() is None, message.error()
                        values.append(message.value() or b"")
            return found
        finally:
            consumer.close()


def bounds(consumer: Consumer, at: TopicPartition) -> tuple[int, ...]:
    """Return the start and the end of a partition; nothing while it has no leader."""
    try:
        return tuple(consumer.get_watermark_offsets(at, timeout=30))
    except KafkaException as failure:
        if failure.args[0].code() in NO_LEADER:
            return ()
        raise
