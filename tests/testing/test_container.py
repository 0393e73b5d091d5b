"""A broker with the interface of testcontainers' KafkaContainer."""

from __future__ import annotations

import inspect
import socket
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from kafkawire.testing import BrokerFailed, KafkaWireContainer

pytestmark = pytest.mark.real


def use(container: Any) -> None:
    """A test as it is written for testcontainers."""
    with container as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.get_bootstrap_server()})
        assert admin.list_topics(timeout=20).topics == {}
        host, port = kafka.get_container_host_ip(), kafka.get_exposed_port(kafka.port)
        assert kafka.get_bootstrap_server() == f"{host}:{port}"


def test_used_as_a_container() -> None:
    container = KafkaWireContainer("confluentinc/cp-kafka:7.6.0").with_kraft()
    use(container)
    use(container)  # it may be started again


def test_start_and_stop() -> None:
    kafka = KafkaWireContainer()
    kafka.stop()  # not running
    assert kafka.start(timeout=60) is kafka
    address = "127.0.0.1", kafka.get_exposed_port(9093)
    assert kafka.start().get_exposed_port(9093) == address[1]
    out, err = kafka.get_logs()
    assert b"kafkawire listens on" in out
    assert err == b""
    kafka.stop(force=True, delete_volume=True)
    with pytest.raises(OSError, match="refused"), socket.create_connection(address, 5):
        pass
    with pytest.raises(RuntimeError, match="not started"):
        kafka.get_bootstrap_server()


def test_settings_of_confluents_images() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    kafka = (
        KafkaWireContainer(port=9092, settings={"default.replication.factor": 1})
        .with_env("KAFKA_NUM_PARTITIONS", "4")
        .with_envs(KAFKA_LISTENERS="PLAINTEXT://0.0.0.0:1", KAFKA_HEAP_OPTS="-Xmx1g")
        .with_bind_ports(9092, port)
    )
    with kafka:
        assert kafka.get_exposed_port(9092) == port
        assert kafka._broker is not None
        assert "num.partitions=4" in kafka._broker.command()
        assert not any("-Xmx1g" in word for word in kafka._broker.command())


def test_wrong_settings_are_named() -> None:
    kafka = KafkaWireContainer().with_env("KAFKA_NUM_PARTITIONS", "many")
    with pytest.raises(BrokerFailed, match=r"num\.partitions=many"):
        kafka.start()
    kafka.stop()


def test_arguments_are_those_of_testcontainers() -> None:
    """In testcontainers' own order and names, as far as they are there."""
    theirs = pytest.importorskip("testcontainers.community.kafka").KafkaContainer
    for name, method in inspect.getmembers(KafkaWireContainer, inspect.isfunction):
        if name.startswith("_"):
            continue
        ours = list(inspect.signature(method).parameters)
        assert list(inspect.signature(getattr(theirs, name)).parameters)[: len(ours)] == ours, name
