"""Commands that run until Ctrl-C continue after an outage of the broker.

Covers: kafkawire.cli.shared.outage, kafkawire.cli.tier.jobs.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from kafkawire.cli.shared.outage import MAX_WAIT_S, Outage, may_pass
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError, Closed, NoAnswer, UnknownBroker
from kafkawire.client.merging import MergedReader, OffsetSpan
from kafkawire.client.tier import send_command
from kafkawire.codec.batches import Record, pack
from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed, produce
from tests.kit.fake_kafka import CLOSE, FETCH, METADATA, NODE, Log, serving
from tests.kit.waiting import wait_until

STORAGE = "kafkawire.tiering.store.process_main"
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (Closed("closed"), True),
        (NoAnswer("cannot connect"), True),
        (UnknownBroker("broker 2 is not in the cluster's metadata"), True),
        (BrokerError("t", ErrorCode.NOT_LEADER_OR_FOLLOWER), True),
        (BrokerError("t", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), False),
        (BrokerError("t", ErrorCode.OFFSET_OUT_OF_RANGE), False),
        (BrokerError("t", 9999), False),
        (ClientError("the batch at offset 3 is damaged"), False),
    ],
)
def test_only_errors_that_pass_are_waited_for(error: ClientError, passes: bool) -> None:
    assert may_pass(error) is passes


def test_reader_continues_where_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    """Closed connections and a changed leader, in the records that are there and in later ones."""
    batches = [bytes(pack([Record(n, n, None, b"%d" % n, [])])) for n in range(4)]
    trouble: list[Any] = []
    waits: list[float] = []

    def answer(key: int, request: Any) -> Any:
        return trouble.pop() if trouble and key in (FETCH, METADATA) else None

    with serving({("t", 0): Log(batches, 0, 4)}) as kafka, Cluster(kafka.address) as cluster:
        kafka.trouble = answer
        reader = MergedReader(cluster, {("t", 0): OffsetSpan(NODE, 0, 2)})
        outage = Outage(cluster, waits.append)
        read = reader.read_through(outage)
        trouble[:] = [CLOSE] * 3 + [ErrorCode.LEADER_NOT_AVAILABLE, CLOSE]
        assert [record.offset for _, record in read] == [0, 1]
        assert capsys.readouterr().err.count("trying again until the broker answers\n") == 1
        assert len(waits) == 5
        arriving = reader.follow(outage)
        trouble[:] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert [next(arriving)[1].offset for _ in range(2)] == [2, 3]
        assert "NOT_LEADER_OR_FOLLOWER" in capsys.readouterr().err
        lost = [ErrorCode.OFFSET_OUT_OF_RANGE] * 3
        trouble[:] = [*lost, *[ErrorCode.KAFKA_STORAGE_ERROR] * 100, CLOSE]
        with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
            next(arriving)
        assert max(waits) <= MAX_WAIT_S
        assert capsys.readouterr().err.count("\n") == 1


def test_follower_waits_for_a_leader_that_is_not_in_the_metadata(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A restarted cluster names the former leader before it lists its brokers again."""
    batches = [bytes(pack([Record(n, n, None, b"%d" % n, [])])) for n in range(2)]
    waits: list[float] = []

    with serving({("t", 0): Log(batches, 0, 2)}) as kafka, Cluster(kafka.address) as cluster:
        stale = 5

        def answer(key: int, request: Any) -> Any:
            nonlocal stale
            if key != METADATA or not stale:
                return None
            stale -= 1
            row = MetadataResponsePartition(partition_index=0, leader_id=NODE + 1)
            topic = MetadataResponseTopic(name="t", partitions=[row])
            return MetadataResponse(brokers=[], topics=[topic] if request.topics else [])

        kafka.trouble = answer
        reader = MergedReader(cluster, {("t", 0): OffsetSpan(NODE + 1, 0, None)})
        arriving = reader.follow(Outage(cluster, waits.append))
        assert [next(arriving)[1].offset for _ in range(2)] == [0, 1]
    assert len(waits) == 3
    notified = "broker 2 is not in the cluster's metadata; trying again until the broker answers\n"
    assert capsys.readouterr().err == f"kafkawire: {notified}"


@contextmanager
def command(*words: str) -> Iterator[subprocess.Popen[str]]:
    running = subprocess.Popen(
        [sys.executable, "-m", "kafkawire", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield running
    finally:
        running.kill()
        running.wait()


@pytest.mark.real
def test_followed_topic_has_each_record_once_over_restarts(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings={**SETTINGS, "num.partitions": "2"}) as broker:
        produce(broker.bootstrap, "t", {0: 50, 1: 50})
        words = (
            "consume",
            "t",
            "--follow",
            "--json",
            "--limit",
            "300",
            "--server",
            broker.bootstrap,
        )
        with command(*words) as consuming:
            assert consuming.stdout is not None
            lines = [json.loads(consuming.stdout.readline()) for _ in range(100)]
            for _ in range(2):
                broker.kill()
                assert consuming.stderr is not None
                assert "trying again until the broker answers" in consuming.stderr.readline()
                broker.start()
                produce(broker.bootstrap, "t", {0: 50, 1: 50})
                lines += [json.loads(consuming.stdout.readline()) for _ in range(100)]
            out, err = consuming.communicate(timeout=30)
    assert (consuming.returncode, out, err) == (0, "", "")
    for partition in (0, 1):
        offsets = [line["offset"] for line in lines if line["partition"] == partition]
        assert offsets == list(range(150))


@pytest.mark.real
def test_watched_lag_continues_after_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as broker:
        words = ("groups", "lag", "--watch", "--interval", "100ms", "--json")
        with command(*words, "--server", broker.bootstrap) as watching:
            assert watching.stdout is not None
            assert json.loads(watching.stdout.readline()) == []
            broker.kill()
            assert watching.stderr is not None
            assert "trying again until the broker answers" in watching.stderr.readline()
            broker.start()
            produce(broker.bootstrap, "t", {0: 3})
            assert Typed(broker.bootstrap, "consume", "t", "--group", "g").code == 0
            while not (groups := json.loads(watching.stdout.readline())):
                pass  # lines of before the restart, and of before the group
            assert [each["group"] for each in groups] == ["g"]
            watching.send_signal(signal.SIGINT)
            _, err = watching.communicate(timeout=30)
    assert (watching.returncode, err) == (0, "")


@contextmanager
def suspended_storage(broker: BrokerProcess) -> Iterator[psutil.Process]:
    """Suspend the broker's child that reads and writes its tier."""

    def found() -> list[psutil.Process]:
        children = psutil.Process(broker.pid).children(recursive=True)
        return [each for each in children if STORAGE in " ".join(each.cmdline())]

    (child,) = wait_until(found, "a storage process")
    child.suspend()
    try:
        yield child
    finally:
        with suppress(psutil.NoSuchProcess):
            child.resume()


@contextmanager
def watched_scrub(broker: BrokerProcess) -> Iterator[subprocess.Popen[str]]:
    """A `tier scrub` that the broker has begun."""
    with command("tier", "scrub", "--server", broker.bootstrap) as scrubbing:
        with Cluster(broker.bootstrap) as cluster:

            def begun() -> bool:
                return bool(send_command(cluster, "scrub", watch=True)["state"] == "scrubbing")

            wait_until(begun, "a scrub")
        yield scrubbing


@pytest.mark.real
def test_watched_scrub_ends_with_a_sentence_after_restart(tmp_path: Path) -> None:
    """A scrub does not survive the broker; one that is watched is not left waiting."""
    settings = {**SETTINGS, "tier.url": f"{tmp_path}/tier", "journal.roll.ms": "100"}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        produce(broker.bootstrap, "t", {0: 3})
        with suspended_storage(broker) as storage, watched_scrub(broker) as scrubbing:
            psutil.Process(broker.pid).kill()
            storage.resume()  # it has the broker's output, which is read to its end
            broker.kill()
            assert scrubbing.stderr is not None
            assert "trying again until the broker answers" in scrubbing.stderr.readline()
            broker.start()
            out, err = scrubbing.communicate(timeout=60)
    assert (scrubbing.returncode, out) == (1, "")
    assert err == "kafkawire: tier scrub: the broker was restarted; run it again\n"
