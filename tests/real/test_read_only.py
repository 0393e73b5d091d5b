"""Reading only, and settings of a whole cluster, with librdkafka, kafka-python and commands.

Covers: kafkawire.cli.cluster.read_only, kafkawire.cli.cluster.configs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer

from tests.kit.cli import Typed
from tests.kit.cluster import QUIET, Cluster, metadata_url
from tests.kit.machines import running
from tests.kit.minio import Minio
from tests.kit.waiting import wait_until
from tests.real.librdkafka import produce, read

pytestmark = pytest.mark.real

TOPIC = "orders"


@pytest.fixture(scope="module")
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Three brokers with one data folder, as three workers."""
    folder = tmp_path_factory.mktemp("cluster")
    url = metadata_url("sqlite", folder, request)
    with Cluster(folder, url, nodes=(1, 2, 3), shared=True) as made:
        wait_until(lambda: all(made.listed(node) == [1, 2, 3] for node in made.brokers), "all")
        made.create(1, TOPIC, [1, 2, 3])
        yield made


def switch(server: str, state: str, *more: str) -> list[Any]:
    done = Typed(server, "cluster", "read-only", state, "--json", *more)
    assert done.code == 0, done
    return list(done.json)


def values(consumer: Consumer, count: int) -> list[bytes]:
    return sorted(message.value() for message in read(consumer, count))


def test_producers_retry_and_deliver_afterwards(cluster: Cluster) -> None:
    server = cluster.bootstrap(1)
    consumer = cluster.consumer(1, "retry")
    consumer.subscribe([TOPIC])
    produce(server, TOPIC, [{"value": b"%d" % at, "partition": at} for at in range(3)])
    assert values(consumer, 3) == [b"0", b"1", b"2"]
    begun = time.monotonic()
    rows = switch(server, "on")
    print(f"all three brokers read only {time.monotonic() - begun:.2f} s after the command began")
    assert [(row["broker"], row["read_only"], row["state"]) for row in rows] == [
        (node, True, "applied") for node in (1, 2, 3)
    ]
    impatient = {"bootstrap.servers": server, "delivery.timeout.ms": 2000, "log_level": QUIET}
    errors: list[KafkaError] = []
    for partition in range(3):
        producer = Producer(impatient)
        producer.produce(
            TOPIC, b"lost", partition=partition, on_delivery=lambda why, _: errors.append(why)
        )
        assert producer.flush(60) == 0
    # The client's own timeout, since it retried until then.
    assert [each.code() for each in errors] == [KafkaError._MSG_TIMED_OUT] * 3
    idempotent = {"bootstrap.servers": server, "enable.idempotence": True, "log_level": QUIET}
    patient = Producer(idempotent)
    sent: list[int] = []
    for at in range(30):
        patient.produce(
            TOPIC, b"late %02d" % at, partition=at % 3,
            on_delivery=lambda why, message: sent.append(message.offset() if not why else -1),
        )  # fmt: skip
    patient.poll(1)
    assert sent == []
    switch(server, "off")
    assert patient.flush(60) == 0
    assert len(sent) == 30
    assert min(sent) >= 0
    assert values(consumer, 30) == [b"late %02d" % at for at in range(30)]


def test_topics_cannot_change_at_any_broker(cluster: Cluster) -> None:
    switch(cluster.bootstrap(1), "on")
    for node in cluster.brokers:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap(node)})
        with pytest.raises(KafkaException) as refused:
            admin.create_topics([NewTopic("new", 1)])["new"].result(60)
        assert refused.value.args[0].code() == KafkaError.POLICY_VIOLATION
        assert "broker.read.only" in refused.value.args[0].str()
        with pytest.raises(KafkaException):
            admin.delete_topics([TOPIC])[TOPIC].result(60)
    switch(cluster.bootstrap(2), "off")
    assert set(cluster.leaders(3, TOPIC)) == {0, 1, 2}


def test_refused_commits_do_not_end_the_reading(cluster: Cluster) -> None:
    server = cluster.bootstrap(1)
    consumer = cluster.consumer(1, "commits")
    consumer.subscribe([TOPIC])
    produce(server, TOPIC, [{"value": b"%d" % at} for at in range(3)])
    first = read(consumer, 1)[0]
    switch(server, "on", "--commits")
    with pytest.raises(KafkaException) as refused:
        consumer.commit(first, asynchronous=False)
    assert refused.value.args[0].code() == KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    assert len(read(consumer, 2)) == 2
    python = KafkaConsumer(
        TOPIC, bootstrap_servers=server, group_id="python", auto_offset_reset="earliest",
        enable_auto_commit=False,
    )  # fmt: skip
    assert next(python).topic == TOPIC
    python.commit_async()
    assert next(python).topic == TOPIC
    switch(server, "off")
    consumer.commit(first, asynchronous=False)
    python.commit()
    python.close()


def test_a_running_transaction_commits(cluster: Cluster) -> None:
    server = cluster.bootstrap(1)
    producer = Producer({"bootstrap.servers": server, "transactional.id": "t"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(TOPIC, b"of a transaction", partition=0)
    assert producer.flush(60) == 0
    switch(server, "on")
    producer.commit_transaction(60)
    consumer = cluster.consumer(1, "committed", **{"isolation.level": "read_committed"})
    consumer.subscribe([TOPIC])

    def polled() -> bool:
        message = consumer.poll(1)
        return message is not None and message.value() == b"of a transaction"

    wait_until(polled, "the record of the transaction")
    switch(server, "off")


def test_stored_settings_take_effect_together(cluster: Cluster) -> None:
    server = cluster.bootstrap(2)
    wanted = {"log.retention.ms": "7777", "cluster.name": "shop"}
    pairs = [f"{name}={value}" for name, value in wanted.items()]
    assert Typed(server, "configs", "set", *pairs, "--brokers-default", "--later").code == 0

    def effective(node: int) -> dict[str, str]:
        shown = Typed(server, "configs", "describe", "--broker", str(node), "--all", "--json").json
        return {row["name"]: row["value"] for row in shown if row["name"] in wanted}

    def versions() -> list[Any]:
        return list(Typed(server, "configs", "describe", "--applied", "--json").json)

    def all_applied() -> list[Any]:
        rows = versions()
        return rows if {row["state"] for row in rows} == {"applied"} else []

    before = wait_until(all_applied, "the version of the stored values")[0]["version"]
    for node in cluster.brokers:
        assert effective(node) == {"log.retention.ms": "-1", "cluster.name": ""}, "no effect yet"
    begun = time.monotonic()
    assert Typed(server, "configs", "apply", "--brokers-default").code == 0
    rows = wait_until(all_applied, "the version of the applied values")
    print(f"all three brokers have applied it {time.monotonic() - begun:.2f} s after the command")
    assert [(row["broker"], row["version"]) for row in rows] == [
        (node, before + 1) for node in (1, 2, 3)
    ], "one change of the metadata for both settings"
    for node in cluster.brokers:
        assert effective(node) == wanted
    assert "cluster shop (" in Typed(server, "cluster", "describe").out
    cluster.kill(3)
    gone = "not alive: applies them when it starts"
    wait_until(lambda: [row["state"] for row in versions()][2] == gone, "broker 3 is known as dead")
    cluster.start(3)
    wait_until(lambda: len(all_applied()) == 3, "broker 3 has applied it at its start")


@pytest.mark.machines
def test_a_broker_that_is_taken_over_reads_only(
    tmp_path: Path, request: pytest.FixtureRequest, minio: Minio, tier_url: str
) -> None:
    with running(tmp_path, request, minio, tier_url, nodes=(1, 2)) as machines:
        machines.create_everywhere(TOPIC, [2])
        produce(machines.bootstrap(1), TOPIC, [{"value": b"before"}])
        switch(machines.bootstrap(1), "on")
        machines.kill(2)
        machines.wait_for_host(2, {1})
        consumer = machines.consumer(1, "taken-over")
        consumer.subscribe([TOPIC])
        assert values(consumer, 1) == [b"before"]
        config = {"bootstrap.servers": machines.bootstrap(1), "log_level": QUIET}
        sent: list[object] = []
        producer = Producer({**config, "enable.idempotence": True})
        producer.produce(TOPIC, b"after", on_delivery=lambda why, _: sent.append(why))
        producer.poll(3)
        assert sent == []
        wait_until(
            lambda: Typed(machines.bootstrap(1), "cluster", "read-only", "off").code == 0, "off"
        )
        assert producer.flush(60) == 0
        assert sent == [None]
        assert values(consumer, 1) == [b"after"]
