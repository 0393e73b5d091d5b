"""A console as a child process, with sample data in its broker, and Chromium: for tests of pages
and for pictures of them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from playwright.sync_api import Browser, sync_playwright

from kafkawire.client.cluster import Cluster
from kafkawire.client.offsets import call_coordinator, commit
from kafkawire.console.views.offset_map import RecordPlace
from kafkawire.console.views.own import OwnBroker
from kafkawire.console.views.topics import describe_topic
from kafkawire.testing import BrokerProcess, TopicProducer, create_topic
from tests.kit.waiting import wait_until

CHROMIUM = "chromium"
"""Debian's; the browsers that Playwright downloads are not needed."""
REBOUND = "rebound.example"
"""A name that Chromium resolves to this machine, as a page that rebinds its name does."""
ARGUMENTS = ["--no-sandbox", f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1"]
ORDERS, CUSTOMERS, LARGE = "orders", "customers", "documents"
PARTITIONS, RECORDS = 6, 36_000
MAPPED = {RecordPlace.REMOTE, RecordPlace.BOTH}
LARGE_VALUE = json.dumps({"text": "long " * 200_000}).encode()
TIERED = {
    "remote.storage.enable": "true",
    "tiering.max.lag.ms": "60000",
    "tiering.min.object.bytes": "0",
    "segment.bytes": "1048576",
    "local.retention.bytes": "300000",
}
SETTINGS = {
    "journal.roll.ms": "200",
    "cut.interval.ms": "50",
    "log.retention.check.interval.ms": "200",
    "log.cleaner.backoff.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
    "disk.warn.percent": "100",  # the disk is that of the machine
}
"""Records reach segments, the tier and compaction within seconds."""


@contextlib.contextmanager
def running_console(server: str, port: int = 0) -> Iterator[str]:
    """Serve a console of a cluster until the context ends; its URL, without a slash at its end."""
    words = ["console", "--server", server, "--listen", f"127.0.0.1:{port}"]
    child = subprocess.Popen(
        [sys.executable, "-m", "kafkawire", *words], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        url = child.stdout.readline().strip().rstrip("/")
        assert url, "the console did not start"
        yield url
    finally:
        child.terminate()
        child.communicate()


@contextlib.contextmanager
def running_chromium() -> Iterator[Browser]:
    """Run Chromium without a window. Without it tests are skipped, and fail where CI is set."""
    program = shutil.which(CHROMIUM)
    if program is None:
        _skip("there is no Chromium: `make test` installs it on Debian")
    with sync_playwright() as playwright:
        # The sandbox needs rights that containers lack; the pages are our own.
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


def axe_source() -> str:
    """Return the source of axe-core, which finds barriers for people with disabilities."""
    file = Path(__file__).parents[2] / ".venv/axe/axe.min.js"
    if not file.exists():
        _skip("there is no axe-core: `make test` downloads it where there is npm")
    return file.read_text(encoding="utf-8")


def _skip(message: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@contextlib.contextmanager
def sample_broker(folder: str) -> Iterator[BrokerProcess]:
    """A broker with a tier in a folder; see `fill`."""
    settings = {**SETTINGS, "tier.url": f"file://{folder}/tier"}
    with BrokerProcess(f"{folder}/data", settings=settings) as started, fill(started.bootstrap):
        yield started


@contextlib.contextmanager
def fill(bootstrap: str) -> Iterator[None]:
    """Create topics with records in all places of a map, and groups with and without lag and
    members. The members leave when the context ends."""
    create_topic(bootstrap, ORDERS, PARTITIONS, TIERED)
    create_topic(bootstrap, "payments", 3, {**TIERED, "local.retention.bytes": "-2"})
    create_topic(bootstrap, CUSTOMERS, 2, {"cleanup.policy": "compact", "segment.ms": "1"})
    for name in ("clicks", "audit-log", "invoices.eu-central.v2", LARGE, "inventory"):
        create_topic(bootstrap, name)
    produce_rows(bootstrap, ORDERS, RECORDS, order)
    produce_rows(bootstrap, "payments", 3_000, order)
    for _ in range(3):
        produce_rows(bootstrap, CUSTOMERS, 300, customer)
    produce_rows(bootstrap, "clicks", 500, customer)
    TopicProducer(bootstrap).send(LARGE, LARGE_VALUE, key=b"big")
    with Cluster(bootstrap) as cluster:
        ends = {(ORDERS, index): RECORDS // PARTITIONS - 400 for index in range(PARTITIONS)}
        for group, offsets in (
            ("invoicing", ends), ("reports-nightly", {("clicks", 0): 20}),
            ("search-index", {("payments", index): 900 + index for index in range(3)}),
        ):  # fmt: skip
            codes = call_coordinator(lambda g=group, o=offsets: commit(cluster, g, o))  # type: ignore[misc]
            assert set(codes.values()) == {0}
        wait_until(
            lambda: _places(cluster) == MAPPED, "all records in the tier, the oldest only there"
        )
    with member(bootstrap, "billing", "billing-1", ORDERS):
        yield


def _places(cluster: Cluster) -> set[RecordPlace]:
    detail = describe_topic(cluster, OwnBroker(), ORDERS)
    return {span.place for each in detail.maps for span in each.spans}


def order(number: int) -> tuple[bytes, bytes]:
    """Return key and value of an order."""
    found = {
        "id": number, "customer": f"c-{number % 977:04}",
        "country": "DEFRNLPL"[number % 4 * 2 :][:2],
        "amount": f"{number % 90_000 / 100:.2f}", "currency": "EUR",
        "items": [{"sku": f"SKU-{number % 53:03}", "count": number % 3 + 1}],
        "note": "Ring twice, then leave it at the back door. " * 5,
    }  # fmt: skip
    return f"order-{number}".encode(), json.dumps(found).encode()


def customer(number: int) -> tuple[bytes, bytes]:
    """Return key and value of a customer; keys repeat."""
    return f"c-{number % 40:04}".encode(), b'{"name": "Customer %d"}' % number


def produce_rows(
    bootstrap: str, topic: str, count: int, made: Callable[[int], tuple[bytes, bytes]]
) -> None:
    """Append records to the partitions of a topic in rotation."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    cluster = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=60)
    partitions = len(cluster.topics[topic].partitions)
    first_ms = time.time_ns() // 1_000_000 - count
    for number in range(count):
        key, value = made(number)
        headers = [("source", b"shop"), ("trace", b"%032x" % number)] if number % 5 == 0 else []
        producer.produce(
            topic, value, key, number % partitions, headers=headers, timestamp=first_ms + number
        )
        if number % 1000 == 999:
            producer.flush(60)
    assert producer.flush(60) == 0


@contextlib.contextmanager
def member(bootstrap: str, group: str, client: str, topic: str) -> Iterator[Any]:
    """Have a consumer of the classic protocol in a group, which has read and committed a part."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": group, "client.id": client,
            "auto.offset.reset": "earliest", "enable.auto.commit": False,
        }
    )  # fmt: skip
    try:
        consumer.subscribe([topic])
        assert consumer.consume(1, timeout=60)
        at = [TopicPartition(each.topic, each.partition, 1500 + 300 * each.partition)
              for each in consumer.assignment()]  # fmt: skip
        consumer.commit(offsets=at, asynchronous=False)
        yield consumer
    finally:
        consumer.close()
