"""A broker with topics and records, and the pages of a console on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from kafkawire.console.app import application
from kafkawire.console.web.frame import ConsoleOptions
from kafkawire.testing import InProcessBroker, TopicProducer, broker, create_topic

ORDERS, PARTITIONS, RECORDS = "orders", 3, 90


@pytest.fixture(scope="package")
def running() -> Iterator[InProcessBroker]:
    """A broker with RECORDS records in the topic ORDERS."""
    with broker() as started:
        create_topic(started.bootstrap, ORDERS, partitions=PARTITIONS)
        producer = TopicProducer(started.bootstrap)
        for number in range(RECORDS):
            value, key = b'{"number": %d}' % number, b"key-%d" % number
            producer.send(ORDERS, value, key=key, partition=number % PARTITIONS)
        yield started


@pytest.fixture
def pages(running: InProcessBroker) -> Iterator[TestClient]:
    """A browser without JavaScript."""
    options = ConsoleOptions(running.bootstrap, ("127.0.0.1",))
    with TestClient(application(options), base_url="http://127.0.0.1:8080") as client:
        yield client
