"""Real clients over TLS, with and without certificates; what is not TLS is refused."""

from __future__ import annotations

import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from kafkawire.client.cluster import Cluster
from kafkawire.messages.describe_cluster import DescribeClusterRequest
from kafkawire.testing.process import BrokerProcess
from tests.kit.ports import free_ports
from tests.kit.tls import certificates, client_context
from tests.real.conftest import SETTINGS
from tests.real.members import wait_for

STALLED = min(5_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1_000)
STALLED_BYTES = 250 << 20
"""Far above what handshakes may have (1,024 with 45 KB) and connections (some 10 KB each)."""
LARGE = 3_000_000
"""Bytes of a record that takes several steps of encryption."""


class Encrypted:
    """A broker with a listener for each kind of client."""

    def __init__(self, process: BrokerProcess, tls: int) -> None:
        self.process = process
        self.address = f"localhost:{tls}"
        self.port = tls


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    (tls,) = free_ports(1)
    made = certificates()
    settings = {
        **SETTINGS,
        "ssl.keystore.location": made / "server.pem", "ssl.key.location": made / "server.key",
        "ssl.truststore.location": made / "ca.pem", "ssl.client.auth": "requested",
        "message.max.bytes": 2 * LARGE,
        "socket.listen.backlog.size": 4096,  # thousands connect at once
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("tls")
    listeners = [f"TLS://127.0.0.1:{tls}"]
    arguments = ["--advertise", f"TLS://localhost:{tls}"]
    with BrokerProcess(
        folder, settings=settings, listeners=listeners, arguments=arguments
    ) as process:
        yield Encrypted(process, tls)


def records(count: int = 300) -> list[bytes]:
    return [b"%d:" % number + bytes(number * 50) for number in range(count)] + [bytes(LARGE)]


@pytest.mark.parametrize("shows", [False, True])
def test_confluent_kafka(encrypted: Encrypted, name: str, shows: bool) -> None:
    config: dict[str, Any] = {
        "bootstrap.servers": encrypted.address,
        "security.protocol": "SSL",
        "ssl.ca.location": f"{certificates()}/ca.pem",
        "message.max.bytes": 2 * LARGE,
    }
    if shows:
        config |= {
            "ssl.certificate.location": f"{certificates()}/client.pem",
            "ssl.key.location": f"{certificates()}/client.key",
        }
    producer = Producer(config)
    for value in records():
        producer.produce(name, value, partition=0)
    assert producer.flush(60) == 0
    consumer = Consumer({**config, "group.id": name, "auto.offset.reset": "earliest"})
    with closing(consumer):
        consumer.subscribe([name])
        found: list[bytes] = []

        def more() -> bool:
            found.extend(each.value() for each in consumer.consume(100, 1) if not each.error())
            return len(found) == len(records())

        wait_for(more)
    assert found == records()


def test_kafka_python(encrypted: Encrypted, name: str) -> None:
    config: dict[str, Any] = {
        "bootstrap_servers": encrypted.address,
        "security_protocol": "SSL",
        "ssl_cafile": f"{certificates()}/ca.pem",
    }
    with closing(KafkaProducer(**config, max_request_size=2 * LARGE)) as producer:
        for value in records():
            producer.send(name, value, partition=0)
        producer.flush(60)
    consumer = KafkaConsumer(**config, auto_offset_reset="earliest", enable_auto_commit=False)
    with closing(consumer):
        consumer.assign([TopicPartition(name, 0)])
        found = [next(consumer).value for _ in records()]
    assert found == records()


async def test_aiokafka(encrypted: Encrypted, name: str) -> None:
    config: dict[str, Any] = {
        "bootstrap_servers": encrypted.address,
        "security_protocol": "SSL",
        "ssl_context": client_context(),
    }
    producer = AIOKafkaProducer(**config, max_request_size=2 * LARGE)
    await producer.start()
    try:
        for value in records():
            await producer.send(name, value, partition=0)
        await producer.flush()
    finally:
        await producer.stop()
    consumer = AIOKafkaConsumer(**config, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(name, 0)])
    await consumer.start()
    try:
        found = [(await consumer.getone()).value for _ in records()]
    finally:
        await consumer.stop()
    assert found == records()


def test_what_is_not_tls_is_refused(encrypted: Encrypted) -> None:
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x20\0\x12\0\x03", bytes(range(100, 256))):
        with socket.create_connection(("127.0.0.1", encrypted.port), 30) as client:
            client.sendall(data)
            client.settimeout(30)
            assert client.recv(100) == b""
    wait_for(lambda: "does not speak TLS, which this listener" in encrypted.process.output)
    wait_for(lambda: "it sent an HTTP request" in encrypted.process.output)


def test_tls_to_a_plain_port_is_refused(encrypted: Encrypted) -> None:
    with (
        socket.create_connection(("127.0.0.1", encrypted.process.port), 30) as client,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        client_context().wrap_socket(client, server_hostname="localhost")
    wait_for(
        lambda: (
            "it speaks TLS, which this listener does not: set security.protocol=PLAINTEXT"
            in encrypted.process.output
        )
    )


def test_thousands_of_stalled_handshakes_do_not_stop_others(
    encrypted: Encrypted, name: str
) -> None:
    broker = psutil.Process(encrypted.process.pid)
    before = broker.memory_info().rss
    context = client_context()
    hello = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
    greeting = hello.read()
    stalled = []
    try:
        for number in range(STALLED):
            client = socket.create_connection(("127.0.0.1", encrypted.port), 30)
            client.sendall(greeting if number % 2 else greeting[:1])
            stalled.append(client)
        test_kafka_python(encrypted, name)
        grown = broker.memory_info().rss - before
        assert grown < STALLED_BYTES, f"{grown >> 20} MiB more"
        stalled[0].settimeout(60)
        assert stalled[0].recv(1) == b""  # its time is over
    finally:
        for client in stalled:
            client.close()


def test_a_new_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    from kafkawire.cli.certs import issue
    from tests.kit.tls import authority

    def write(common_name: str) -> None:
        made = issue(common_name, authority(), 1, ["localhost"])
        (tmp_path / "new").write_bytes(made.certificate_pem() + made.key_pem())
        (tmp_path / "new").replace(tmp_path / "both.pem")

    def presented() -> str:
        with socket.create_connection(("127.0.0.1", tls), 30) as plain:
            secured = client_context().wrap_socket(plain, server_hostname="localhost")
            with secured:
                return str(secured.getpeercert())

    write("before")
    (tls,) = free_ports(1)
    settings = {"ssl.keystore.location": tmp_path / "both.pem"}
    with BrokerProcess(settings=settings, listeners=[f"TLS://127.0.0.1:{tls}"]) as process:
        assert "before" in presented()
        with Cluster(process.bootstrap) as open_one:
            (tmp_path / "both.pem").write_bytes(b"broken")
            wait_for(lambda: "CRITICAL" in process.output)
            assert "before" in presented()
            write("after")
            wait_for(lambda: "after" in presented())
            open_one.request(60, DescribeClusterRequest())
