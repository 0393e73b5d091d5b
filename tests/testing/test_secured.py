"""Brokers with encryption, users and access rules by one argument each.

Covers: kafkawire.testing.secured
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

import kafkawire.testing
from kafkawire.testing import TEST_SETTINGS, BrokerProcess

ACLS = [
    ("alice", "Write", "topic:orders*"),
    ("alice", "Create", "topic:orders*"),
    ("bob", "Read", "topic:*"),
    ("bob", "Read", "group:bob"),
    ("bob", "DescribeConfigs", "cluster"),
]


def send(settings: dict[str, str], topic: str) -> str:
    """The name of the error of a record; empty if it was stored."""
    results: list[Any] = []
    producer = Producer({**settings, "message.timeout.ms": 60_000, "log_level": 0})
    producer.produce(topic, b"42", on_delivery=lambda error, _: results.append(error))
    producer.flush(60)
    return "" if results[0] is None else str(results[0].name())


@pytest.mark.real
@pytest.mark.slow
def test_users_with_rules_over_tls(tmp_path: Path) -> None:
    users = {"alice": "secret", "bob": "other, secret"}
    with BrokerProcess(
        tmp_path, settings=TEST_SETTINGS, users=users, tls=True, acls=ACLS
    ) as broker:
        alice, bob = broker.client_settings("alice"), broker.client_settings("bob")
        assert alice["security.protocol"] == "SASL_SSL"
        assert send(alice, "orders-1") == ""
        assert send(bob, "orders-1") == "TOPIC_AUTHORIZATION_FAILED"
        assert send({**alice, "sasl.mechanism": "PLAIN"}, "orders-1") == ""
        assert send({**alice, "sasl.mechanism": "SCRAM-SHA-256"}, "orders-1") == ""
        broker.restart()
        assert broker.client_settings("alice") == alice
        group = {"group.id": "bob", "auto.offset.reset": "earliest"}
        consumer = Consumer({**bob, **group})
        consumer.subscribe(["orders-1"])
        message = None
        while message is None or message.error():
            message = consumer.poll(1)
        assert message.value() == b"42"
        consumer.close()
        assert len(broker.wait_for("orders-1", 3)) == 3


@pytest.mark.real
@pytest.mark.parametrize("tls", [False, True])
def test_users_or_encryption_alone(*, tls: bool) -> None:
    users = None if tls else {"alice": "secret"}
    with BrokerProcess(settings=TEST_SETTINGS, users=users, tls=tls) as broker:
        settings = broker.client_settings()
        assert settings["security.protocol"] == ("SSL" if tls else "SASL_PLAINTEXT")
        assert settings["bootstrap.servers"] != broker.bootstrap
        assert send(settings, "t") == ""
        if users:
            with pytest.raises(ValueError, match=r"^user=bob: it must be one of alice$"):
                broker.client_settings("bob")


@pytest.mark.real
def test_broker_without_security() -> None:
    with BrokerProcess(settings=TEST_SETTINGS) as broker:
        assert broker.client_settings() == {"bootstrap.servers": broker.bootstrap}


@pytest.mark.parametrize(
    ("users", "rule", "sentence"),
    [
        ({}, ("alice", "Read", "topic:t"), "users must be given"),
        ({"bob": ""}, ("alice", "Read", "topic:t"), "user alice is not one of bob"),
        ({"bob": ""}, ("bob", "Reads", "topic:t"), "such as Read topic:NAME"),
        ({"bob": ""}, ("bob", "Read", "topics:t"), "such as Read topic:NAME"),
    ],
)
def test_wrong_rules_are_named(
    users: dict[str, str], rule: tuple[str, str, str], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        BrokerProcess(users=users, acls=[rule])


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("brokers", [1, 2])
def test_users_of_brokers_in_this_process(brokers: int) -> None:
    users = {"alice": "secret", "bob": "other"}
    with kafkawire.testing.broker(brokers=brokers, users=users, tls=True, acls=ACLS) as broker:
        settings = broker.client_settings("alice")
        assert settings["security.protocol"] == "SASL_SSL"
        assert settings["bootstrap.servers"].count(",") == brokers - 1
        assert send(settings, "orders-1") == ""
        assert send(broker.client_settings("bob"), "orders-1") == "TOPIC_AUTHORIZATION_FAILED"
        assert len(broker.records("orders-1")) == 1
