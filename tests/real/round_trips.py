"""Real clients that log in or show a certificate: each sends records, and reads them in a group."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokens
from aiokafka.helpers import create_ssl_context
from kafka.net.sasl.oauth import AbstractTokenProvider

from tests.kit.tls import certificates
from tests.kit.waiting import wait_until
from tests.real.members import poll_kafka_python

Values = list[bytes]


class Access(NamedTuple):
    """How a client connects over TLS. `certificate`: a file with a certificate and its key;
    `mechanism`: with which it logs in, with `token` or with `user` and `password`; `patience_ms`:
    how long it tries, where it does not end at the first refusal."""

    address: str
    certificate: Path | None = None
    mechanism: str = ""
    user: str = "alice"
    password: str = ""
    token: Callable[[], str] = str
    patience_ms: int = 30_000


def librdkafka(access: Access) -> dict[str, str]:
    """Return the settings that kcat and confluent-kafka have in common."""
    found = {
        "bootstrap.servers": access.address,
        "security.protocol": "SASL_SSL" if access.mechanism else "SSL",
        "ssl.ca.location": f"{certificates()}/ca.pem",
        "auto.offset.reset": "earliest",
        "message.timeout.ms": str(access.patience_ms),
    }
    if access.certificate is not None:
        both = str(access.certificate)
        found |= {"ssl.certificate.location": both, "ssl.key.location": both}
    if access.mechanism:
        found["sasl.mechanism"] = access.mechanism
    if access.password:
        found |= {"sasl.username": access.user, "sasl.password": access.password}
    return found


class Kcat:
    """The program."""

    def __init__(self, path: str) -> None:
        self._path = path

    def run(self, access: Access, *arguments: str, data: bytes = b"") -> tuple[int, bytes, str]:
        """Return exit code, output and error output."""
        words = [w for name, value in librdkafka(access).items() for w in ("-X", f"{name}={value}")]
        done = subprocess.run(
            [self._path, "-m", "20", *words, *arguments],
            input=data, capture_output=True, timeout=90, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr.decode()

    def send(self, access: Access, topic: str, values: Values) -> None:
        code, _, said = self.run(access, "-P", "-t", topic, data=b"\n".join(values) + b"\n")
        assert code == 0, said

    def read(self, access: Access, topic: str, group: str, count: int) -> Values:
        code, found, said = self.run(access, "-q", "-c", str(count), "-G", group, topic)
        assert code == 0, said
        return found.splitlines()


class Confluent:
    """confluent-kafka."""

    def config(self, access: Access) -> dict[str, Any]:
        found: dict[str, Any] = librdkafka(access)
        if access.mechanism == "OAUTHBEARER":
            found["oauth_cb"] = lambda _: (access.token(), time.time() + 3600)
        return found

    def send(self, access: Access, topic: str, values: Values) -> None:
        failed: list[Any] = []
        producer = confluent_kafka.Producer(self.config(access))
        for value in values:
            producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error))
        assert producer.flush(60) == 0
        for error in filter(None, failed):
            raise confluent_kafka.KafkaException(error)

    def read(self, access: Access, topic: str, group: str, count: int) -> Values:
        consumer = confluent_kafka.Consumer({**self.config(access), "group.id": group})
        found: Values = []

        def all_are_read() -> bool:
            found.extend(each.value() for each in consumer.consume(count, 1) if not each.error())
            return len(found) >= count

        with closing(consumer):
            consumer.subscribe([topic])
            wait_until(all_are_read, "the records")
        return found


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    def __init__(self, make: Callable[[], str]) -> None:
        super().__init__()
        self._make = make

    def token(self) -> str:
        return self._make()


class _AioTokens(AioTokens):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, make: Callable[[], str]) -> None:
        self._make = make

    async def token(self) -> str:
        return self._make()


def python(access: Access) -> dict[str, Any]:
    """Return the settings that kafka-python and aiokafka have in common."""
    found: dict[str, Any] = {
        "bootstrap_servers": access.address,
        "security_protocol": "SASL_SSL" if access.mechanism else "SSL",
    }
    if access.mechanism:
        found["sasl_mechanism"] = access.mechanism
    if access.password:
        found |= {"sasl_plain_username": access.user, "sasl_plain_password": access.password}
    return found


class KafkaPython:
    """kafka-python."""

    def config(self, access: Access) -> dict[str, Any]:
        found = python(access) | {"ssl_cafile": f"{certificates()}/ca.pem"}
        if access.certificate is not None:
            found["ssl_certfile"] = found["ssl_keyfile"] = str(access.certificate)
        if access.mechanism == "OAUTHBEARER":
            found["sasl_oauth_token_provider"] = _Tokens(access.token)
        return found

    def send(self, access: Access, topic: str, values: Values) -> None:
        producer = kafka.KafkaProducer(
            **self.config(access), max_block_ms=access.patience_ms,
            bootstrap_timeout_ms=access.patience_ms,
        )  # fmt: skip
        with closing(producer):
            for value in values:
                producer.send(topic, value).get(60)

    def read(self, access: Access, topic: str, group: str, count: int) -> Values:
        consumer = kafka.KafkaConsumer(
            topic, **self.config(access), group_id=group, auto_offset_reset="earliest",
            enable_auto_commit=False,
        )  # fmt: skip
        found: Values = []

        def all_are_read() -> bool:
            found.extend(each.value for each in poll_kafka_python(consumer))
            return len(found) >= count

        with closing(consumer):
            wait_until(all_are_read, "the records")
            consumer.commit()
        return found


class Aiokafka:
    """aiokafka."""

    def config(self, access: Access) -> dict[str, Any]:
        """Return the settings. Called in the event loop."""
        both = None if access.certificate is None else str(access.certificate)
        ca = f"{certificates()}/ca.pem"
        trusted = create_ssl_context(cafile=ca, certfile=both, keyfile=both)
        found = python(access) | {"ssl_context": trusted}
        if access.mechanism == "OAUTHBEARER":
            found["sasl_oauth_token_provider"] = _AioTokens(access.token)
        return found

    def send(self, access: Access, topic: str, values: Values) -> None:
        async def run() -> None:
            producer = AIOKafkaProducer(**self.config(access))
            try:
                await producer.start()
                for value in values:
                    await producer.send_and_wait(topic, value)
            finally:
                await producer.stop()

        asyncio.run(asyncio.wait_for(run(), 60))

    def read(self, access: Access, topic: str, group: str, count: int) -> Values:
        async def run() -> Values:
            consumer = AIOKafkaConsumer(
                topic, **self.config(access), group_id=group, auto_offset_reset="earliest",
                enable_auto_commit=False,
            )  # fmt: skip
            await consumer.start()
            try:
                found = [(await consumer.getone()).value for _ in range(count)]
                await consumer.commit()
            finally:
                await consumer.stop()
            return found

        return asyncio.run(asyncio.wait_for(run(), 60))


CLIENTS = ("kcat", "confluent-kafka", "kafka-python", "aiokafka")
RealClient = Kcat | Confluent | KafkaPython | Aiokafka


def refusal(client: RealClient, access: Access, name: str) -> str:
    """Return what the client says when it cannot send."""
    with pytest.raises((Exception, AssertionError)) as refused:
        client.send(access, name, [b"one"])
    said = f"{type(refused.value).__name__} {refused.value}"
    with warnings.catch_warnings():  # kafka-python leaves the socket of a failed start open
        warnings.simplefilter("ignore", ResourceWarning)
        del refused
        gc.collect()
    return said


def audited(path: Path, event: str) -> list[dict[str, Any]]:
    """Return the lines of an audit log about such events."""
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if row["event"] == event]


def send_and_read_in_a_group(client: RealClient, access: Access, name: str) -> None:
    """Send and read records; another consumer of the group continues after them."""
    values = [b"%d" % number for number in range(20)]
    client.send(access, name, values)
    assert client.read(access, name, name, len(values)) == values
    client.send(access, name, [b"more"])
    assert client.read(access, name, name, 1) == [b"more"]


def client_of(request: pytest.FixtureRequest) -> RealClient:
    """Return the client that is the parameter of a fixture; kcat needs the fixture `kcat`."""
    match request.param:
        case "kcat":
            return Kcat(request.getfixturevalue("kcat"))
        case "confluent-kafka":
            return Confluent()
        case "kafka-python":
            return KafkaPython()
        case _:
            return Aiokafka()
