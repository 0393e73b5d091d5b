"""Brokers of a single test, which it may crash; topics in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from kafkawire.testing.process import BrokerProcess
from tests.real.conftest import OTHER_BROKER, SETTINGS

TRANSACTIONS = {
    **SETTINGS,
    "transaction.state.log.num.partitions": "8",
    "offsets.topic.num.partitions": "8",
}


class OwnBroker:
    """A broker of ours, or one of KAFKAWIRE_TEST_BOOTSTRAP, which is never crashed."""

    def __init__(self, bootstrap: str, process: BrokerProcess | None = None) -> None:
        self.bootstrap = bootstrap
        self.process = process

    def crash(self) -> None:
        """Kill it with SIGKILL and start it on the same port and data."""
        if self.process is not None:
            self.process.kill()
            self.process.start()


@contextmanager
def run_broker(
    folder: Path, number: int = 0, more: Mapping[str, str] | None = None
) -> Iterator[OwnBroker]:
    """A broker with its data in `folder` and `more` settings, or the other one of this number."""
    if OTHER_BROKER:
        yield OwnBroker(OTHER_BROKER.split(",")[number])
        return
    with BrokerProcess(folder, settings={**TRANSACTIONS, **(more or {})}) as process:
        yield OwnBroker(process.bootstrap, process)


def create_topics(bootstrap: str, partitions: Mapping[str, int]) -> None:
    """Create topics by their names and numbers of partitions."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = [NewTopic(name, count, replication_factor=1) for name, count in partitions.items()]
    for created in admin.create_topics(new).values():
        created.result(60)
