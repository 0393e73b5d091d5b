"""Topics with durability=s3 while their storage fails, and a broker that continues after its
successor has started.

Covers: kafkawire.log.append.object_sink, kafkawire.log.objects.writer, kafkawire.log.object_logs,
kafkawire.server.run.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.server.service_manager import SUPERSEDED_CODE
from kafkawire.testing.process import BrokerProcess
from tests.kit.client import Client, batch
from tests.kit.cluster import SETTINGS, metadata_url
from tests.kit.exactly_once.history import Partition
from tests.kit.faulty_cluster import S3, FaultyCluster
from tests.kit.history.checker import check
from tests.kit.history.clients import (
    RecordedLoad,
    RecordingProducer,
    RecordingReader,
    read_finally,
)
from tests.kit.history.history import History, Kind, Result
from tests.kit.minio import Minio
from tests.kit.produce_fetch import make, produce
from tests.kit.proxy import Network
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.slow]

REMOTE, LOCAL, PARTITIONS = "remote", "local", 2
REFUSED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)
"""Answers of a process whose broker was started elsewhere: of the log objects, or of the log, if it
first notices that by a change of the catalog. Clients ask for the leader after both."""
ENOUGH = 100
"""Records of the other topic that are acknowledged during a fault: half a second of its load."""


@pytest.fixture
def cluster(
    tmp_path: Path, request: pytest.FixtureRequest, minio: Minio, tier_url: str
) -> Iterator[FaultyCluster]:
    url = metadata_url("postgresql", tmp_path, request)
    with Network() as network, FaultyCluster(tmp_path, network, url, minio, tier_url, [1]) as made:
        made.create(1, REMOTE, [1] * PARTITIONS, durability="s3")
        made.create(1, LOCAL, [1] * PARTITIONS)
        yield made


def acked(history: History, topic: str) -> int:
    return sum(
        each.kind is Kind.PRODUCE and each.result is Result.OK and each.partition[0] == topic
        for each in history.events
    )


async def _produced(port: int, topic: str) -> ErrorCode:
    client = await Client.connect(port)
    answer = await client.call(produce(topic, batch(b"not recorded")), 9)
    await client.close()
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


class Loads:
    """Load on both topics, with one history."""

    def __init__(self, cluster: FaultyCluster) -> None:
        self.bootstrap = cluster.bootstrap(1)
        self.history = History()
        self.remote, self.local = (
            RecordedLoad(
                self.bootstrap, topic, PARTITIONS, producers=1, history=self.history, prefix=topic
            )
            for topic in (REMOTE, LOCAL)
        )

    def wait_while_the_storage_fails(self) -> None:
        """Wait until objects that were being stored have ended, and the other topic has progress
        while this one has none."""

        def waits() -> bool:
            before, others = acked(self.history, REMOTE), acked(self.history, LOCAL)
            wait_until(lambda: acked(self.history, LOCAL) >= others + ENOUGH, "local records")
            return acked(self.history, REMOTE) == before

        wait_until(waits, "acknowledgements that wait")

    def heal(self) -> None:
        self.history.healed()
        self.remote.wait_for_progress()
        self.local.wait_for_progress()

    def check(self, folder: Path) -> None:
        partitions: list[Partition] = [*self.remote.partitions, *self.local.partitions]
        self.remote.stop()
        self.local.stop()
        read_finally(self.history, self.bootstrap, partitions)
        found = check(self.history)
        if found:
            self.history.save(folder / "history")
        assert found == []


def test_acknowledgements_wait_while_the_storage_fails(
    cluster: FaultyCluster, tmp_path: Path
) -> None:
    network, loads = cluster.network, Loads(cluster)
    with loads.local, loads.remote:
        loads.heal()
        loads.history.fault("S3 is slow")
        network.delay("1", S3, forth_s=0.3, back_s=0.3)
        before = acked(loads.history, REMOTE)
        wait_until(lambda: acked(loads.history, REMOTE) > before + ENOUGH, "records although slow")
        loads.history.fault("S3 refuses connections")
        network.refuse("1", S3)
        network.cut("1", S3)
        loads.wait_while_the_storage_fails()
        network.heal()
        loads.heal()
        loads.history.fault("S3 does not answer")
        network.silence("1", S3)
        loads.wait_while_the_storage_fails()
        network.heal()
        loads.heal()
    loads.check(tmp_path)


@pytest.mark.parametrize("silent", [False, True], ids=["refuses", "silent"])
def test_produces_are_refused_while_the_storage_fails_for_long(
    cluster: FaultyCluster, tmp_path: Path, silent: bool
) -> None:
    network, loads, port = cluster.network, Loads(cluster), cluster.brokers[1].port
    with loads.local, loads.remote:
        loads.heal()
        loads.history.fault("S3 is away")
        if silent:
            network.silence("1", S3)
        else:
            network.refuse("1", S3)
            network.cut("1", S3)
        line = "produces to topics with durability=s3 are refused: the remote tier could not be"
        wait_until(lambda: line in cluster.brokers[1].output, "the refusal")
        assert asyncio.run(_produced(port, REMOTE)) is ErrorCode.NOT_ENOUGH_REPLICAS
        loads.wait_while_the_storage_fails()
        network.heal()
        loads.heal()
    loads.check(tmp_path)
    assert "produces to topics with durability=s3 are accepted again" in cluster.brokers[1].output


class Pair:
    """Two processes of one broker, each with a folder and a port of its own."""

    def __init__(self, folder: Path, url: str, tier_url: str) -> None:
        settings = {**SETTINGS, "node.id": 1, "tier.url": tier_url, "durability": "s3"}
        arguments = ["--metadata", url]
        self.first, self.second = (
            BrokerProcess(folder / name, settings=settings, arguments=arguments)
            for name in ("first", "second")
        )

    def end(self) -> None:
        for each in (self.first, self.second):
            each.kill() if each.running else each.stop()


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest, tier_url: str) -> Iterator[Pair]:
    made = Pair(tmp_path, metadata_url("postgresql", tmp_path, request), tier_url)
    try:
        yield made
    finally:
        made.end()


async def _open(port: int) -> Client:
    client = await Client.connect(port)
    await make(client, REMOTE, PARTITIONS)
    await make(client, "other")
    return client


async def _prepare(port: int) -> None:
    client = await _open(port)
    await client.close()


async def _send_and_resume(client: Client, process: BrokerProcess) -> ErrorCode | None:
    """Produce to a stopped process, which then continues; return what it answers, None if it closes
    the connection."""
    client.send(produce("other", batch(b"x")), 9)
    await client.writer.drain()
    os.kill(process.pid, signal.SIGCONT)
    try:
        answer = await asyncio.wait_for(client.receive(), 60)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    finally:
        await client.close()
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def test_broker_that_continues_after_its_successor_has_started_stops(
    pair: Pair, tmp_path: Path
) -> None:
    first, second = pair.first, pair.second
    first.start()
    history = History()
    partitions = [(REMOTE, index) for index in range(PARTITIONS)]
    with asyncio.Runner() as runner:
        client = runner.run(_open(first.port))
        at = history, first.bootstrap, partitions
        producer = RecordingProducer("before", *at, 200, message_timeout_ms=5000)
        reader = RecordingReader("reader-before", *at)
        for each in (producer, reader):
            each.start()
        wait_until(lambda: acked(history, REMOTE) > ENOUGH, "records of the first process")
        history.fault("stop the broker, start its successor")
        os.kill(first.pid, signal.SIGSTOP)
        second.start()
        with RecordedLoad(
            second.bootstrap, REMOTE, PARTITIONS, history=history, prefix="after-"
        ) as load:
            load.wait_for_progress()
            history.fault("the first process continues")
            answer = runner.run(_send_and_resume(client, first))
            assert answer in (*REFUSED, None)
            wait_until(lambda: not first.running, "the end of the first process")
            reader.stop()
            producer.stop()
            load.heal()
    assert second.running
    assert load.findings(second.bootstrap, tmp_path / "history") == []
    check_superseded(first)
    second.stop()


def check_superseded(process: BrokerProcess) -> None:
    """Check how a process has ended whose broker was started elsewhere."""
    assert process._child is not None
    assert process._child.returncode == SUPERSEDED_CODE
    last = process.output.splitlines()[-1]
    assert re.match(r"kafkawire: (broker 1|another process) was started ", last), last


def test_broker_without_clients_notices_that_another_process_was_started(pair: Pair) -> None:
    pair.first.start()
    asyncio.run(_prepare(pair.first.port))
    pair.second.start()
    wait_until(lambda: not pair.first.running, "the end of the first process")
    check_superseded(pair.first)
    assert asyncio.run(_produced(pair.second.port, REMOTE)) is ErrorCode.NONE
    pair.second.stop()
