"""A broker with topics and records, and the pages of a console on it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from kafkawire.console.app import application
from kafkawire.console.web.frame import ConsoleOptions, PageFrame
from kafkawire.console.web.sessions import Sessions
from kafkawire.testing import InProcessBroker, TopicProducer, broker, create_topic
from kafkawire.testing.secured import AccessRule

ORDERS, PARTITIONS, RECORDS = "orders", 3, 90


@pytest.fixture(scope="package")
def running() -> Iterator[InProcessBroker]:
    """A broker with RECORDS records in the topic ORDERS."""
    with broker() as started:
        create_topic(started.bootstrap, ORDERS, partitions=PARTITIONS)
        producer = TopicProducer(started.bootstrap)
        # Each has a time of its own: records of one millisecond are in the order of partitions.
        first = time.time_ns() // 1_000_000 - RECORDS
        for number in range(RECORDS):
            value, key = b'{"number": %d}' % number, b"key-%d" % number
            partition, at = number % PARTITIONS, first + number
            producer.send(ORDERS, value, key=key, partition=partition, timestamp_ms=at)
        yield started


@pytest.fixture
def pages(running: InProcessBroker) -> Iterator[TestClient]:
    """A browser without JavaScript."""
    options = ConsoleOptions(running.bootstrap, ("127.0.0.1",))
    with TestClient(application(options), base_url="http://127.0.0.1:8080") as client:
        yield client


USERS = {"ann": "ann-secret", "bob": "bob-secret"}
OWN = {"ann": "ann-orders", "bob": "bob-orders"}
"""The topic of each user, whose rules are in RULES."""
RULES: list[AccessRule] = [
    *((user, "All", f"topic:{OWN[user]}*") for user in USERS),
    *((user, "All", f"group:{user}-*") for user in USERS),
    ("ann", "Describe", "topic:seen"),
    ("ann", "DescribeConfigs", "topic:seen"),
    ("ann", "Describe", "group:seen"),
]
ORIGIN = "http://127.0.0.1:8080"


@pytest.fixture(scope="package")
def secured() -> Iterator[InProcessBroker]:
    """A broker with two users, who may see different topics; "seen" ann may only see."""
    with broker(users=USERS, acls=RULES) as started:
        for name in (*OWN.values(), "seen"):
            create_topic(started.bootstrap, name, partitions=2)
            TopicProducer(started.bootstrap).send(name, b"value", key=b"key", partition=0)
        yield started


class Time:
    """A clock that a test sets, in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Browsers:
    """A console with log-in, and browsers without JavaScript that share it."""

    app: ASGIApp
    time: Time
    sessions: Sessions

    def open(self, address: str = "127.0.0.1") -> TestClient:
        """Return another browser."""
        client = (address, 50000)
        return TestClient(self.app, base_url=ORIGIN, headers={"origin": ORIGIN}, client=client)

    def log_in(self, user: str) -> TestClient:
        """Return a browser with a session of a user."""
        browser = self.open()
        form = {"user": user, "password": USERS[user]}
        answer = browser.post("/login", data=form, follow_redirects=False)
        assert answer.status_code == 303, answer.text
        return browser


@contextmanager
def console_of(secured: InProcessBroker, *, allow_changes: bool = True) -> Iterator[Browsers]:
    """Run a console with log-in for a `with` block."""
    clock = Time()
    options = ConsoleOptions(
        secured.addresses["SECURED"], ("127.0.0.1",), allow_changes=allow_changes, login=True,
        clock=clock,
    )  # fmt: skip
    frames: list[PageFrame] = []

    def record(*arguments: Any) -> PageFrame:
        frames.append(PageFrame(*arguments))
        return frames[0]

    with patch("kafkawire.console.app.PageFrame", record):
        app = application(options)
    with TestClient(app):  # its end closes the connections
        yield Browsers(app, clock, frames[0].sessions)


@pytest.fixture
def browsers(secured: InProcessBroker) -> Iterator[Browsers]:
    """A console with log-in that allows changes."""
    with console_of(secured) as found:
        yield found
