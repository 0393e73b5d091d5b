"""A database that is replaced by an older copy while a broker uses it: the broker acknowledges
nothing more, says so in one line and ends; its next start is refused; nothing is lost.

Covers: kafkawire.broker.following.older_metadata.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafkawire.testing.control import BrokerFailed
from kafkawire.testing.process import BrokerProcess
from tests.kit.cluster import QUIET, metadata_url
from tests.kit.postgres import dump, new_database, restore
from tests.kit.waiting import wait_until
from tests.real.librdkafka import produce, read
from tests.restore.test_lost_metadata import command

pytestmark = [pytest.mark.real, pytest.mark.slow]

FEW = {"log.retention.ms": "-1", "journal.roll.ms": "500", "cut.interval.ms": "100"}
"""Segments are cut and checkpoints stored while records arrive."""


class Copies:
    """Copies of a database that a broker uses."""

    def __init__(self, kind: str, url: str, folder: Path) -> None:
        self._kind, self._url, self._folder = kind, url, folder
        self._sql = ""

    def take(self) -> None:
        if self._kind == "postgresql":
            self._sql = dump(self._url)
            return
        for name in ("metadata.db", "metadata.db-wal"):
            shutil.copy(self._folder / "sql" / name, self._folder / name)

    def put_back(self) -> None:
        if self._kind == "postgresql":
            restore(self._url, self._sql)
            return
        for path in (self._folder / "sql").iterdir():
            path.unlink()
        for name in ("metadata.db", "metadata.db-wal"):
            (self._folder / name).rename(self._folder / "sql" / name)


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_broker_ends_when_its_database_goes_back(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = metadata_url(kind, tmp_path, request)
    copies = Copies(kind, url, tmp_path)
    broker = BrokerProcess(tmp_path / "data", settings=FEW, arguments=["--metadata", url])
    with broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": QUIET})
        admin.create_topics([NewTopic("t", 1, config={"segment.ms": "500"})])["t"].result(60)
        offsets = produce(broker.bootstrap, "t", [{"value": b"before"}] * 100)
        copies.take()
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": QUIET,
                             "message.timeout.ms": 3000})  # fmt: skip

        def send() -> bool:
            """Send records until the broker takes no more."""
            for _ in range(50):
                producer.produce("t", b"v", on_delivery=lambda error, message: offsets.append(
                    message.offset()) if error is None else None)  # fmt: skip
            producer.flush(30)
            return not broker.running

        cuts = broker.output.count("cut 1 partition")
        wait_until(lambda: send() or broker.output.count("cut 1 partition") > cuts, "a cut")
        copies.put_back()
        wait_until(send, lambda: f"the end of the broker\n{broker.output}")
        said = [line for line in broker.output.splitlines() if "CRITICAL" in line]
        assert len(said) == 1, broker.output
        assert "metadata was replaced while this broker was running" in said[0]
        assert f"`kafkawire restore --from-log --data {tmp_path / 'data'}`" in said[0]
        broker.stop()  # it has ended by itself
        with pytest.raises(BrokerFailed, match=r"ended with 2: .* is older than"):
            broker.start()
        empty = url
        if kind == "postgresql":
            empty = asyncio.run(new_database(request.getfixturevalue("postgres_url")))
        words = ["restore", "--from-log", "--data", str(tmp_path / "data"), "--metadata", empty]
        done = command(*words)
        assert done.returncode == 0, done
        broker.arguments[:] = ["--metadata", empty]
        broker.start()
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g",
                             "auto.offset.reset": "earliest", "log_level": QUIET})  # fmt: skip
        consumer.subscribe(["t"])
        found = [message.offset() for message in read(consumer, max(offsets) + 1)]
        consumer.close()
        assert found[: max(offsets) + 1] == list(range(max(offsets) + 1))
        assert offsets == sorted(set(offsets)), "no offset was given twice"
