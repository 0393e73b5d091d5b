"""Real clients against a real broker: ours in a child process, or any other.

One broker per test session (per worker under xdist) is shared, so every test names its topics
and groups through `name` or `make_topic`. KAFKAWIRE_TEST_BOOTSTRAP=host:port runs the same tests
against that broker instead: run on Apache Kafka they show that they state Kafka's behaviour.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kafkawire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kafkawire.testing.process import BrokerProcess
from tests.kit.client import Client
from tests.real.members import wait_for

HERE = Path(__file__).parent
OTHER_BROKER = os.environ.get("KAFKAWIRE_TEST_BOOTSTRAP")
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",  # otherwise three seconds per group
    "group.min.session.timeout.ms": "1000",
    # Members of the consumer protocol learn of changes with their heartbeats.
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.assignment.interval.ms": "100",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}

START_MS = int(time.time() * 1000) - 3_600_000
"""The timestamp of a test's first record: only an hour ago, because retention.ms deletes old
records."""

MakeTopic = Callable[..., str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.real)
            # Brokers are child processes here: what is left open is a client's. On a busy machine
            # aiokafka ends its loop before the other side has closed TLS.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the end of the broker's output to the report of a failure."""
    outcome: Any = yield
    report = outcome.get_result()
    broker = getattr(item, "funcargs", {}).get("broker")
    if report.failed and isinstance(broker, BrokerProcess):
        report.sections.append(("broker", "".join(broker.output.splitlines(True)[-60:])))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess | None]:
    """Our broker; None where the tests run against another one."""
    if OTHER_BROKER:
        yield None
        return
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings=SETTINGS) as process:
        yield process


@pytest.fixture(scope="session")
def bootstrap(broker: BrokerProcess | None) -> str:
    return OTHER_BROKER or (broker.bootstrap if broker else "")


@pytest.fixture
def ours_only(broker: BrokerProcess | None) -> BrokerProcess:
    """Skip tests of behaviour that only our broker has."""
    if broker is None:
        pytest.skip("states the behaviour of kafkawire alone")
    return broker


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for topics and groups that no other test uses."""
    base = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:60].strip("-")
    return f"{base}-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> AdminClient:
    quiet = 2  # it outlives the broker at the end, and would log that
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": quiet})


@pytest.fixture
def make_topic(admin: AdminClient, name: str) -> MakeTopic:
    """make_topic(partitions=1, suffix="", **configs with dots as underscores) -> its name."""

    def make(partitions: int = 1, suffix: str = "", **configs: str) -> str:
        topic = name + suffix
        config = {key.replace("_", "."): value for key, value in configs.items()}
        new = NewTopic(topic, partitions, replication_factor=1, config=config)
        for future in admin.create_topics([new]).values():
            future.result(60)
        wait_for(lambda: is_seen(admin, topic, partitions))
        return topic

    return make


def alter_settings(bootstrap: str, kind: int, name: str, **settings: str) -> None:
    """Set settings of a resource, by name with underscores for dots. `kind`: one that
    librdkafka's admin client may not know."""

    async def alter() -> None:
        client = await Client.connect(int(bootstrap.rpartition(":")[2]))
        rows = [AlterableConfig(key.replace("_", "."), 0, value) for key, value in settings.items()]
        resource = AlterConfigsResource(kind, name, rows)
        answer = await client.call(IncrementalAlterConfigsRequest([resource]), 1)
        assert answer.responses[0].error_code == 0, answer
        await client.close()

    asyncio.run(alter())


def is_seen(admin: AdminClient, topic: str, partitions: int) -> bool:
    """Whether metadata contains the topic: in Kafka that is a little after the response."""
    found = admin.list_topics(topic, timeout=60).topics[topic]
    return found.error is None and len(found.partitions) == partitions
