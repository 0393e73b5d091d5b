"""Produce and fetch over TLS, compared with the same without encryption, and with Apache Kafka.

    python -m bench.micro.tls [--rounds 3] [--seconds 2] [--kafka]

The broker has one core, the client the other; rounds without and with TLS alternate. The client is
one that sends the same requests again and ignores what it receives: librdkafka (`--client
confluent-kafka`) needs more CPU than the broker. MB/s of values; the CPU of the broker for a
gigabyte does not depend on what else the machine does. `--kafka`: Apache Kafka with the same
certificates, in turn with ours.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import ssl
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from struct import pack
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peer_recipes import install, java
from kafkawire.cli.certs import write
from kafkawire.codec.batches import build
from kafkawire.codec.compile import encode
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.testing.process import BrokerProcess
from tests.kit.ports import free_port, free_ports

VALUE = os.urandom(10_000)
FILL_BYTES = 300_000_000
"""Bytes that the consumers read repeatedly."""
KAFKA_WARM_ROUNDS = 2
"""Rounds that are not counted: a cold JVM has a fifth of the throughput of a warm one."""

Measured = tuple[float, float]
"""MB/s, and CPU seconds of the broker for a gigabyte."""


class Server:
    """A broker with a listener of each kind. `addresses`: of them, by protocol."""

    def __init__(self, name: str, pid: int, plain: str, tls: str) -> None:
        self.name = name
        self.process = psutil.Process(pid)
        self.addresses = {"PLAINTEXT": plain, "SSL": tls}
        for thread in self.process.threads():
            os.sched_setaffinity(thread.id, {0})

    def cpu(self) -> float:
        """Seconds so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


@contextlib.contextmanager
def kafkawire(folder: Path) -> Iterator[Server]:
    """This broker."""
    tls = f"localhost:{free_port()}"
    settings = {
        "ssl.keystore.location": folder / "server.pem", "ssl.key.location": folder / "server.key",
    }  # fmt: skip
    with BrokerProcess(settings=settings, listeners=[f"TLS://{tls}"]) as broker:
        yield Server("kafkawire", broker.pid, broker.bootstrap, tls)


@contextlib.contextmanager
def kafka(folder: Path) -> Iterator[Server]:
    """Apache Kafka with the certificate of `folder`."""
    install("kafka")
    plain, tls, controller = free_ports(3)
    store = folder / "both.pem"
    store.write_bytes((folder / "server.key").read_bytes() + (folder / "server.pem").read_bytes())
    listeners = f"PLAINTEXT://localhost:{plain},SSL://localhost:{tls}"
    config = folder / "kafka.properties"
    config.write_text(
        f"""\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:{controller}
controller.listener.names=CONTROLLER
listeners={listeners},CONTROLLER://localhost:{controller}
advertised.listeners={listeners}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
ssl.keystore.type=PEM
ssl.keystore.location={store}
log.dirs={folder}/kafka
offsets.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
"""
    )
    storage = ("format", "--standalone", "-t", "AAAAAAAAAAAAAAAAAAAAAA", "-c", str(config))
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(java("kafka.tools.StorageTool", *storage, options=()), check=True, **quiet)
    process = subprocess.Popen(java("kafka.Kafka", str(config)), **quiet)
    try:
        plain_address = f"localhost:{plain}"
        AdminClient({"bootstrap.servers": plain_address, "log_level": 0}).list_topics(timeout=60)
        yield Server("Apache Kafka", process.pid, plain_address, f"localhost:{tls}")
    finally:
        process.terminate()
        process.wait(60)


def config_of(server: Server, protocol: str, folder: Path) -> dict[str, Any]:
    """Settings of a client."""
    return {
        "bootstrap.servers": server.addresses[protocol],
        "security.protocol": protocol,
        "ssl.ca.location": str(folder / "ca.pem"),
    }


def produce(server: Server, config: dict[str, Any], topic: str, seconds: float) -> Measured:
    """Send as much as the broker accepts."""
    producer = Producer(
        {**config, "linger.ms": 5, "batch.size": 1_000_000, "acks": 1,
         "queue.buffering.max.kbytes": 65_536}
    )  # fmt: skip
    producer.list_topics(topic, timeout=30)
    sent, before, begun = 0, server.cpu(), time.perf_counter()
    while time.perf_counter() - begun < seconds:
        try:
            producer.produce(topic, VALUE, partition=0)
        except BufferError:
            producer.poll(0.01)
        else:
            sent += 1
    assert producer.flush(60) == 0
    took = time.perf_counter() - begun
    return rate(sent * len(VALUE), took, server.cpu() - before)


def fetch(server: Server, config: dict[str, Any], topic: str, seconds: float) -> Measured:
    """Read the topic from its beginning, and again."""
    consumer = Consumer(
        {**config, "group.id": "none", "enable.auto.commit": False, "check.crcs": False,
         "fetch.message.max.bytes": 4 << 20, "queued.max.messages.kbytes": 32_768,
         "fetch.queue.backoff.ms": 1}
    )  # fmt: skip
    with contextlib.closing(consumer):
        start = TopicPartition(topic, 0, 0)
        consumer.assign([start])
        consumer.consume(1, 30)
        read, before, begun = 0, server.cpu(), time.perf_counter()
        while time.perf_counter() - begun < seconds:
            messages = consumer.consume(1000, 0.2)
            read += len(messages)
            if messages and messages[-1].offset() >= FILL_BYTES // len(VALUE) - 2:
                consumer.assign([start])
        took = time.perf_counter() - begun
        return rate(read * len(VALUE), took, server.cpu() - before)


@contextlib.contextmanager
def connected(config: dict[str, Any]) -> Iterator[socket.socket]:
    """A plain or encrypted connection."""
    host, _, port = config["bootstrap.servers"].partition(":")
    with socket.create_connection((host, int(port)), 30) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        if config["security.protocol"] == "PLAINTEXT":
            yield plain
            return
        context = ssl.create_default_context(cafile=config["ssl.ca.location"])
        with context.wrap_socket(plain, server_hostname=host) as secured:
            yield secured


def frame(request: Any, key: int, version: int) -> bytes:
    """A request of no client id."""
    body = pack(">hhih", key, version, 1, -1) + encode(request, version)
    return pack(">i", len(body)) + body


def skip_response(client: socket.socket, buffer: memoryview) -> int:
    """Receive a response and return its size."""
    size = 4
    client.recv_into(buffer[:4], 4)
    left = int.from_bytes(buffer[:4])
    size += left
    while left:
        left -= client.recv_into(buffer, min(left, len(buffer)))
    return size


def produce_raw(server: Server, config: dict[str, Any], topic: str, seconds: float) -> Measured:
    """Send a megabyte in each of the requests, five in flight."""
    batch = build([(None, VALUE)] * 100, timestamp_ms=1)
    partition = PartitionProduceData(0, batch)
    data = frame(
        ProduceRequest(None, 1, 30_000, [TopicProduceData(topic, partition_data=[partition])]), 0, 7
    )
    buffer = memoryview(bytearray(1 << 16))
    with connected(config) as client:
        for _ in range(5):
            client.sendall(data)
        sent, before, begun = 0, server.cpu(), time.perf_counter()
        while time.perf_counter() - begun < seconds:
            skip_response(client, buffer)
            client.sendall(data)
            sent += 1
        return rate(sent * len(data), time.perf_counter() - begun, server.cpu() - before)


def fetch_raw(server: Server, config: dict[str, Any], topic: str, seconds: float) -> Measured:
    """Read a megabyte with each request, two in flight."""
    partition = FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=500, min_bytes=1, topics=[FetchTopic(topic, partitions=[partition])]
    )
    data = frame(request, 1, 4)
    buffer = memoryview(bytearray(1 << 20))
    with connected(config) as client:
        client.sendall(data + data)
        read, before, begun = 0, server.cpu(), time.perf_counter()
        while time.perf_counter() - begun < seconds:
            read += skip_response(client, buffer)
            client.sendall(data)
        return rate(read, time.perf_counter() - begun, server.cpu() - before)


def rate(count: int, seconds: float, cpu: float) -> Measured:
    return count / seconds / 1e6, cpu / max(count, 1) * 1e9


def prepare(server: Server, folder: Path) -> None:
    """Make the topics: "p" is written, "f" is read."""
    config = config_of(server, "PLAINTEXT", folder)
    topics = [NewTopic("p", 1, 1, config={"retention.bytes": "1000000000"}), NewTopic("f", 1, 1)]
    admin = AdminClient(config)
    for made in admin.create_topics(topics).values():
        made.result(30)
    producer = Producer(config)
    for _ in range(FILL_BYTES // len(VALUE)):
        producer.produce("f", VALUE, partition=0)
        if len(producer) > 5_000:
            producer.flush(60)
    assert producer.flush(60) == 0


CLIENTS = {"raw": (produce_raw, fetch_raw), "confluent-kafka": (produce, fetch)}


def compare(servers: list[Server], folder: Path, client: str, rounds: int, seconds: float) -> None:
    """Print the median of each."""
    runs = zip(("produce", "fetch"), CLIENTS[client], ("p", "f"), strict=True)
    jobs = list(runs)
    found: dict[tuple[str, str, str], list[Measured]] = {}
    warm = KAFKA_WARM_ROUNDS if len(servers) > 1 else 0
    for number in range(warm + rounds):
        for what, run, topic in jobs:
            for server in servers:
                for protocol in ("PLAINTEXT", "SSL"):
                    one = run(server, config_of(server, protocol, folder), topic, seconds)
                    if number >= warm:
                        found.setdefault((what, server.name, protocol), []).append(one)
    for (what, name, protocol), each in found.items():
        speed, cpu = (statistics.median(figures) for figures in zip(*each, strict=True))
        plain = statistics.median(one for one, _ in found[what, name, "PLAINTEXT"])
        print(
            f"{what} {name} {protocol}: {speed:.0f} MB/s, {speed / plain:.2f} of plaintext, "
            f"{cpu:.2f} s of CPU for a GB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--client", choices=tuple(CLIENTS), default="raw")
    parser.add_argument("--kafka", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as stack:
        folder = Path(made)
        write(folder, ["localhost"], "client", 2)
        servers = [stack.enter_context(kafkawire(folder))]
        if given.kafka:
            servers.append(stack.enter_context(kafka(folder)))
        os.sched_setaffinity(0, {1})
        for server in servers:
            prepare(server, folder)
        compare(servers, folder, given.client, given.rounds, given.seconds)


if __name__ == "__main__":
    main()
