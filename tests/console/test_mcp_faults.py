"""Injected faults, each explained by at most three calls of `kafkawire mcp`: cause and remedy.

Covers: kafkawire.console.views.findings.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer

from kafkawire.client.admin import delete_records
from kafkawire.client.cluster import Cluster
from kafkawire.client.offsets import EARLIEST, call_coordinator, commit, leaders, list_offsets
from kafkawire.client.producer import append
from kafkawire.client.quotas import alter_quotas
from kafkawire.client.transactions import TransactionalProducer, init_producer
from kafkawire.codec.batches import Record, pack
from kafkawire.console.views.findings import explain_partition, explain_quotas
from kafkawire.console.views.offset_map import PartitionMap
from kafkawire.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from kafkawire.testing import BrokerProcess, InProcessBroker, TopicProducer, broker, create_topic
from kafkawire.testing.topics import unique_name
from tests.kit.cli import Typed, no_environment  # noqa: F401  (a fixture, by name)
from tests.kit.groups.streams import word_count
from tests.kit.mcp import McpSession
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.slow]
MAX_CALLS = 3


class Diagnosis:
    """The calls of one fault, and all that they answered."""

    def __init__(self, session: McpSession) -> None:
        self._session = session
        self._calls = 0
        self.text = ""

    def ask(self, tool: str, **arguments: object) -> Diagnosis:
        self._calls += 1
        assert self._calls <= MAX_CALLS
        self.text += self._session.ask(tool, **arguments) + "\n"
        return self

    def names(self, *words: str) -> None:
        """Fail unless each of these words was in an answer."""
        for each in words:
            assert each in self.text, f"{each!r} is not in {self.text}"


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessBroker]:
    settings = {
        "group.streams.initial.rebalance.delay.ms": "0",
        "group.initial.rebalance.delay.ms": "0",
        "cut.interval.ms": "50",
        "log.retention.check.interval.ms": "100",
        "disk.warn.percent": "1",
        "transaction.partition.verification.enable": "false",  # for the hanging transaction
    }
    with broker(settings=settings) as started:
        yield started


@pytest.fixture(scope="module")
def session(running: InProcessBroker) -> Iterator[McpSession]:
    with McpSession(running.bootstrap) as opened:
        yield opened


@pytest.fixture
def asked(session: McpSession) -> Diagnosis:
    return Diagnosis(session)


@pytest.fixture
def topic(running: InProcessBroker) -> str:
    """A topic with five records in one partition."""
    name = unique_name("orders")
    create_topic(running.bootstrap, name)
    fill(running.bootstrap, name)
    return name


def fill(bootstrap: str, topic: str, count: int = 5, age_ms: int = 0) -> None:
    producer = TopicProducer(bootstrap)
    for number in range(count):
        when = time.time_ns() // 1_000_000 - age_ms
        producer.send(topic, b"%d" % number, key=b"k%d" % (number % 2), timestamp_ms=when)


def committed(bootstrap: str, group: str, topic: str, offset: int) -> None:
    with Cluster(bootstrap) as cluster:
        call_coordinator(lambda: commit(cluster, group, {(topic, 0): offset}))


def cut(bootstrap: str, topic: str, before: int) -> None:
    with Cluster(bootstrap) as cluster:
        delete_records(cluster, {(topic, 0): before}, leaders(cluster, [topic]))


def opened(bootstrap: str, topic: str, name: str) -> Producer:
    """A producer with an open transaction in a topic."""
    settings = {"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush()
    return producer


def member(bootstrap: str, group: str, topic: str, **more: object) -> Consumer:
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0, **more}
    consumer = Consumer({"auto.offset.reset": "earliest", **settings})
    consumer.subscribe([topic])
    return consumer


# Groups.


def test_group_without_members(running: InProcessBroker, topic: str, asked: Diagnosis) -> None:
    committed(running.bootstrap, "idle", topic, 2)
    asked.ask("why_cluster").names("why_group(group='idle')")
    asked.ask("why_group", group="idle", observe_s=0)
    asked.names("no members", "Records left to read: 3", "Start a consumer with this group.id")


def test_member_that_does_not_poll(running: InProcessBroker, topic: str, asked: Diagnosis) -> None:
    first = member(running.bootstrap, "stuck", topic)
    wait_until(lambda: first.poll(0.2) is not None, "a record")  # and never again
    second = member(running.bootstrap, "stuck", topic)
    try:

        def rebalancing() -> bool:
            second.poll(0.2)
            answer = Typed(running.bootstrap, "groups", "list", "--json").json
            return ("stuck", "PreparingRebalance") in {(r["group"], r["state"]) for r in answer}

        wait_until(rebalancing, "a rebalance")
        asked.ask("why_group", group="stuck", observe_s=0)
        asked.names("waits for 1 of 2 members to join again", "joins again when it polls",
                    "max.poll.interval.ms")  # fmt: skip
    finally:
        first.close()
        second.close()


def test_offset_below_log_start(running: InProcessBroker, topic: str, asked: Diagnosis) -> None:
    committed(running.bootstrap, "late", topic, 1)
    cut(running.bootstrap, topic, 4)
    asked.ask("why_group", group="late", observe_s=0)
    asked.names("below the log start offset 4", "3 records were deleted unread", "reset-offsets")


def test_group_that_waits_for_a_transaction(
    running: InProcessBroker, topic: str, asked: Diagnosis
) -> None:
    producer = opened(running.bootstrap, topic, "payments-1")
    try:
        committed(running.bootstrap, "readers", topic, 5)
        asked.ask("why_group", group="readers", observe_s=0)
        asked.names("open transaction of producer", "payments-1", "End the transaction")
    finally:
        producer.abort_transaction()


def test_locked_records_of_a_share_group(
    running: InProcessBroker, topic: str, asked: Diagnosis
) -> None:
    group = unique_name("workers")
    words = ("configs", "set", "share.auto.offset.reset=earliest", "--group", group)
    assert Typed(running.bootstrap, *words).code == 0
    consumer = ShareConsumer(
        {"bootstrap.servers": running.bootstrap, "group.id": group, "log_level": 0,
         "share.acknowledgement.mode": "explicit"}
    )  # fmt: skip
    consumer.subscribe([topic])
    try:
        wait_until(lambda: consumer.poll(0.5), "records")  # and acknowledges none
        asked.ask("why_group", group=group, observe_s=1)
        asked.names("No member has acknowledged", "share.record.lock.duration.ms")
        asked.names(f"of {topic}:0 are locked for member", "Let the members acknowledge")
    finally:
        consumer.close()


def test_streams_group_that_waits_for_topics(running: InProcessBroker, asked: Diagnosis) -> None:
    topology = word_count()
    with Cluster(running.bootstrap) as cluster:
        call_coordinator(lambda: cluster.coordinator_id("words"))
        beat = StreamsGroupHeartbeatRequest(
            "words", "m1", 0, rebalance_timeout_ms=30_000, topology=topology, process_id="p1",
            active_tasks=[], standby_tasks=[], warmup_tasks=[],
        )  # fmt: skip
        cluster.coordinator("words").request(88, beat)
        asked.ask("why_cluster").names("Streams group words waits for its topics", "why_group")
        asked.ask("why_group", group="words", observe_s=0)
        asked.names("topics of its topology do not exist: c, r, t", "Create the missing topics")


# Transactions.


def test_hanging_transaction(running: InProcessBroker, topic: str, asked: Diagnosis) -> None:
    """Of a producer that no coordinator knows."""
    batch = pack([Record(0, time.time_ns() // 1_000_000, None, b"x", ())])
    TransactionalProducer("", 987_654, 0).seal(batch, 0)
    with Cluster(running.bootstrap) as cluster:
        node = leaders(cluster, [topic])[topic, 0]
        done = append(cluster, node, {(topic, 0): batch}, transactional_id="lost")
        assert done[topic, 0].code == 0
    asked.ask("why_cluster").names("hanging transaction", "why_transaction()")
    asked.ask("why_transaction")
    asked.names("producer 987654", "no coordinator knows it", "transactions abort")
    words = ("transactions", "abort", f"{topic}:0", "--start-offset", "5")
    assert Typed(running.bootstrap, *words).code == 0


def test_fenced_producer(running: InProcessBroker, asked: Diagnosis) -> None:
    with Cluster(running.bootstrap) as cluster:
        for _ in range(2):
            call_coordinator(lambda: init_producer(cluster, "twice", 60_000))
    asked.ask("why_transaction", transactional_id="twice")
    asked.names("has epoch 1", "epoch below 1 was fenced", "give each running instance an id")


# Records.


def test_misspelled_topic(topic: str, asked: Diagnosis) -> None:
    wrong = topic.replace("orders", "ordes")
    asked.ask("why_topic", topic=wrong)
    asked.names("UNKNOWN_TOPIC_OR_PARTITION", f"Similar names: {topic}", "topics create")


def test_deleted_records(running: InProcessBroker, topic: str, asked: Diagnosis) -> None:
    cut(running.bootstrap, topic, 3)
    asked.ask("why_topic", topic=topic, partition=0, offset=1)
    asked.names("DeleteRecords", "no retention applies")
    name = unique_name("kept")
    create_topic(running.bootstrap, name, settings={"retention.ms": 604_800_000})
    fill(running.bootstrap, name)
    cut(running.bootstrap, name, 3)
    asked.ask("why_topic", topic=name, partition=0, offset=1)
    asked.names("before offset 3 are gone", "DeleteRecords", "retention.ms=604800000) has not")


def test_records_that_retention_removed(running: InProcessBroker, asked: Diagnosis) -> None:
    name = unique_name("short")
    create_topic(running.bootstrap, name, settings={"retention.ms": 1000, "segment.ms": 100})
    fill(running.bootstrap, name, age_ms=3_600_000)

    def removed() -> bool:
        with Cluster(running.bootstrap) as cluster:
            led_by = leaders(cluster, [name])
            return list_offsets(cluster, {(name, 0): EARLIEST}, led_by)[name, 0] == 5

    wait_until(removed, "retention")
    asked.ask("why_topic", topic=name)
    asked.names("before offset 5 are gone", "retention (retention.ms=1000) has removed them",
                "Raise it")  # fmt: skip


def test_deleted_key_of_a_compacted_topic(running: InProcessBroker, asked: Diagnosis) -> None:
    name = unique_name("customers")
    create_topic(running.bootstrap, name, settings={"cleanup.policy": "compact"})
    producer = TopicProducer(running.bootstrap)
    producer.send(name, b"1", key=b"ada")
    producer.send(name, None, key=b"ada")
    asked.ask("why_topic", topic=name, key="ada").names("tombstone", "Write the key again")
    asked.ask("why_topic", topic=name, key="bob").names("never written", "delete.retention.ms")


def test_delayed_records(running: InProcessBroker, topic: str, asked: Diagnosis) -> None:
    name = unique_name("later")
    create_topic(running.bootstrap, name, settings={"schedule.target.topic": topic})
    when = time.time_ns() // 1_000_000 + 7_200_000
    TopicProducer(running.bootstrap).send(name, b"x", timestamp_ms=when)

    def waits() -> bool:
        rows = Typed(running.bootstrap, "schedule", "show", name, "--json").json
        return any(each["waiting"] for each in rows["partitions"])

    wait_until(waits, "the record")
    asked.ask("why_topic", topic=name)
    asked.names("is of a schedule topic: 1 record", f"go to {topic} then", "schedule cancel")


# Clients.


def test_throttled_client(running: InProcessBroker, asked: Diagnosis) -> None:
    with Cluster(running.bootstrap) as cluster:
        alter_quotas(cluster, {"client-id": "loader"}, {"producer_byte_rate": 1024.0})
    asked.ask("why_client", client_id="loader")
    asked.names("client-id loader", "producer_byte_rate=1024", "quotas set")
    others = explain_quotas([({"client-id": "loader"}, {"producer_byte_rate": 1.0})], "u", "other")
    assert others == []


def test_read_only_broker(running: InProcessBroker, topic: str, asked: Diagnosis) -> None:
    assert Typed(running.bootstrap, "cluster", "read-only", "on").code == 0
    try:
        asked.ask("why_cluster")
        asked.names("read-only (broker.read.only=true)", "kafkawire cluster read-only off")
    finally:
        assert Typed(running.bootstrap, "cluster", "read-only", "off").code == 0


def test_disk_that_is_nearly_full(running: InProcessBroker, asked: Diagnosis) -> None:
    asked.ask("why_cluster").names("The disk of broker 1 is", "% full", "Lower retention")


def test_missing_access_rule(tmp_path: Path) -> None:
    users = {"alice": "secret", "admin": "secret"}
    settings = {"super.users": "User:admin;User:ANONYMOUS"}
    with broker(users=users, acls=[], settings=settings) as secured:
        create_topic(secured.bootstrap, "orders")
        with McpSession(secured.bootstrap) as session:
            asked = Diagnosis(session)
            asked.ask("why_client", user="alice", operation="read", name="orders")
            asked.names("User:alice may not read topic orders", "acls add alice read --topic ord")
        own = secured.client_settings("alice")
        file = tmp_path / "alice.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in own.items()))
        with McpSession(own["bootstrap.servers"], "--command-config", str(file)) as session:
            asked = Diagnosis(session)
            asked.ask("why_topic", topic="orders").names("lacks the right", "acls add USER read")
            asked.ask("list_topics").names('"total": 0')


def test_brokers_that_are_away() -> None:
    with broker(brokers=2) as several:
        create_topic(several.bootstrap, "orders", partitions=4)
        with McpSession(several.bootstrap) as session:
            several.stop_broker(2)
            asked = Diagnosis(session)
            asked.ask("why_cluster")
            asked.names("Broker 2", "not alive", "Start broker 2")


def test_partitions_without_leader_or_replica() -> None:
    def found(leader: int, in_sync: tuple[int, ...]) -> list[str]:
        known = PartitionMap(0, leader, (1, 2), in_sync, 0, 5, 5, ())
        nobody = cast("Cluster", None)  # nothing is asked
        return [str(each) for each in explain_partition(nobody, "t", known, {})]

    assert "t:0 has no leader: it is not served" in found(-1, ())[0]
    assert "Start broker 1 or 2" in found(-1, ())[0]
    assert "the replicas of broker 2 are not in sync" in found(1, (1,))[0]
    assert found(1, (1, 2)) == []


# The tier.


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[tuple[BrokerProcess, Path]]:
    """A broker with a remote tier in a folder, and a topic with records."""
    tier = tmp_path / "tier"
    tier.mkdir()
    settings = {"tier.url": f"file://{tier}", "journal.roll.ms": "1000000"}
    with BrokerProcess(tmp_path / "data", settings=settings) as started:
        more = {"remote.storage.enable": "true", "tiering.max.lag.ms": 3_600_000}
        create_topic(started.bootstrap, "orders", settings=more)
        fill(started.bootstrap, "orders")
        yield started, tier


def test_tier_paused_and_records_too_new(tiered: tuple[BrokerProcess, Path]) -> None:
    started, _ = tiered
    with McpSession(started.bootstrap) as session:
        asked = Diagnosis(session).ask("why_tier", topic="orders")
        asked.names("Not in the tier: orders:0, offsets 0 to 5", "active", "tiering.max.lag.ms")
        assert Typed(started.bootstrap, "tier", "pause").code == 0
        asked = Diagnosis(session).ask("why_cluster")
        asked.names("paused (tier.paused)", "tier resume", "why_tier()")


def test_tier_that_refuses(tiered: tuple[BrokerProcess, Path]) -> None:
    started, tier = tiered
    with McpSession(started.bootstrap) as session:
        tier.rename(tier.with_name("gone"))
        tier.write_text("")  # no folder any more
        words = ("configs", "set", "tiering.max.lag.ms=5000", "--topic", "orders")
        assert Typed(started.bootstrap, *words).code == 0

        def failed() -> bool:
            return "refuses or fails" in session.ask("why_tier", topic="orders")

        wait_until(failed, lambda: session.ask("why_tier", topic="orders"))
        asked = Diagnosis(session).ask("why_cluster")
        asked.ask("why_tier", topic="orders").names("refuses or fails", "Repair the bucket")


def test_late_upload_is_one_finding(tiered: tuple[BrokerProcess, Path]) -> None:
    started, _ = tiered
    with McpSession(started.bootstrap) as session:
        assert Typed(started.bootstrap, "tier", "pause").code == 0
        words = ("configs", "set", "tiering.max.lag.ms=5000", "--topic", "orders")
        assert Typed(started.bootstrap, *words).code == 0

        def late() -> list[str]:
            findings = json.loads(session.ask("why_cluster"))["findings"]
            sentences = (each["sentence"] for each in findings)
            return [each for each in sentences if "tiering.max.lag.ms" in each]

        wait_until(lambda: bool(late()), "a finding")
        assert len(late()) == 1, late()


def test_no_tier(topic: str, asked: Diagnosis) -> None:
    asked.ask("why_tier", topic=topic)
    asked.names("no remote tier", "Start the broker with --tier URL")
