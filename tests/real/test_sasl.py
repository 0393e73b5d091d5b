"""Log-ins of real clients with every mechanism, and users made by their admin clients."""

from __future__ import annotations

import asyncio
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from kafkawire.testing.process import BrokerProcess
from tests.kit.issuer import Issuer
from tests.kit.ports import free_port
from tests.kit.waiting import wait_until
from tests.real.test_kcat import kcat  # noqa: F401  (a fixture)

PASSWORDS = {"alice": "pass word,=", "bob": "b:ob"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
AUDIENCE = "kafka"
SECRETS = (*PASSWORDS.values(), "wrong-password")


class SaslBroker:
    """A broker with log-ins, its addresses, and an issuer of tokens."""

    def __init__(self, process: BrokerProcess, address: str, issuer: Issuer) -> None:
        self.process = process
        self.address = address
        self.issuer = issuer

    def token(self, **claims: Any) -> str:
        return self.issuer.token(time.time(), aud=AUDIENCE, **claims)


@pytest.fixture(scope="module")
def issuer() -> Iterator[tuple[Issuer, str]]:
    """An issuer whose keys are read by HTTP."""
    made = Issuer("live", "RS256")

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(made.key_set())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Keys)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield made, f"http://127.0.0.1:{server.server_port}/keys"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, issuer: tuple[Issuer, str]
) -> Iterator[SaslBroker]:
    folder = tmp_path_factory.mktemp("sasl")
    users = folder / "users"
    users.write_text(f"bob:{PASSWORDS['bob']}\n")
    users.chmod(0o600)
    address = f"127.0.0.1:{free_port()}"
    settings = {
        "sasl.enabled.mechanisms": ",".join((*MECHANISMS, "OAUTHBEARER")),
        "sasl.plain.users.file": users,
        "sasl.oauthbearer.jwks.endpoint.url": issuer[1],
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "group.initial.rebalance.delay.ms": 0,
    }
    with BrokerProcess(
        folder / "data",
        settings=settings,
        listeners=[f"SASL_PLAINTEXT://{address}"],
        arguments=["--log-level", "debug"],
    ) as process:
        admin = AdminClient({"bootstrap.servers": process.bootstrap})
        made = [
            UserScramCredentialUpsertion(
                "alice", ScramCredentialInfo(kind, 4096), PASSWORDS["alice"].encode()
            )
            for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        for each in made:
            for future in admin.alter_user_scram_credentials([each]).values():
                future.result(30)
        yield SaslBroker(process, address, issuer[0])
        assert not [secret for secret in SECRETS if secret in process.output]
        assert "eyJ" not in process.output, "the beginning of a token"
        assert "Traceback" not in process.output


def librdkafka(broker: SaslBroker, mechanism: str, password: str = "") -> dict[str, str]:
    return {
        "bootstrap.servers": broker.address, "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism, "sasl.username": "alice",
        "sasl.password": password or PASSWORDS["alice"],
    }  # fmt: skip


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kcat(kcat: str, broker: SaslBroker, mechanism: str) -> None:  # noqa: F811
    options = [
        word
        for name, value in librdkafka(broker, mechanism).items()
        if name != "bootstrap.servers"
        for word in ("-X", f"{name}={value}")
    ]
    command = [kcat, "-b", broker.address, *options, "-m", "20"]
    topic = f"kcat-{mechanism}"
    sent = subprocess.run(
        [*command, "-P", "-t", topic], input="one\n", text=True, timeout=60, check=False,
        capture_output=True,
    )  # fmt: skip
    assert sent.returncode == 0, sent.stderr
    found = subprocess.run(
        [*command, "-C", "-t", topic, "-e", "-q"], text=True, timeout=60, check=False,
        capture_output=True,
    )  # fmt: skip
    assert found.stdout == "one\n", found.stderr


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka(broker: SaslBroker, mechanism: str) -> None:
    producer = confluent_kafka.Producer(librdkafka(broker, mechanism))
    producer.produce(f"ck-{mechanism}", b"one")
    assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer(
        {**librdkafka(broker, mechanism), "group.id": mechanism, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([f"ck-{mechanism}"])
    found = consumer.poll(30)
    assert found.value() == b"one"
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_with_wrong_password(broker: SaslBroker, mechanism: str) -> None:
    errors: list[Any] = []
    config = librdkafka(broker, mechanism, SECRETS[-1])
    client = AdminClient({**config, "error_cb": errors.append})

    def refused() -> bool:
        client.poll(0.1)
        return any(each.code() == confluent_kafka.KafkaError._AUTHENTICATION for each in errors)

    wait_until(refused, "the refusal of the log-in")


def test_librdkafka_with_tokens(broker: SaslBroker) -> None:
    def token(_: str) -> tuple[str, float]:
        return broker.token(), time.time() + 3600

    config = {
        "bootstrap.servers": broker.address, "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER", "oauth_cb": token,
    }  # fmt: skip
    producer = confluent_kafka.Producer(config)
    producer.poll(0)
    producer.produce("ck-token", b"one")
    assert producer.flush(30) == 0


def test_librdkafka_with_token_of_other_issuer(broker: SaslBroker) -> None:
    errors: list[Any] = []
    other = Issuer("live", "RS256")
    config = {
        "bootstrap.servers": broker.address, "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER", "error_cb": errors.append,
        "oauth_cb": lambda _: (other.token(time.time(), aud=AUDIENCE), time.time() + 3600),
    }  # fmt: skip
    producer = confluent_kafka.Producer(config)

    def refused() -> bool:
        producer.poll(0.1)
        return any(each.code() == confluent_kafka.KafkaError._AUTHENTICATION for each in errors)

    wait_until(refused, "the refusal of the token")


def of_kafka_python(broker: SaslBroker, mechanism: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.address, "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism, "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORDS["alice"],
    }  # fmt: skip


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(broker: SaslBroker, mechanism: str) -> None:
    producer = kafka.KafkaProducer(**of_kafka_python(broker, mechanism))
    producer.send(f"kp-{mechanism}", b"one").get(30)
    producer.close()


class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, broker: SaslBroker) -> None:
        self.broker = broker

    async def token(self) -> str:
        return self.broker.token()


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "OAUTHBEARER"])
async def test_aiokafka(broker: SaslBroker, mechanism: str) -> None:
    if mechanism == "OAUTHBEARER":
        config = {
            "bootstrap_servers": broker.address, "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism, "sasl_oauth_token_provider": Tokens(broker),
        }  # fmt: skip
    else:
        config = of_kafka_python(broker, mechanism)
    producer = AIOKafkaProducer(**config)
    await producer.start()
    await asyncio.wait_for(producer.send_and_wait(f"ak-{mechanism}", b"one"), 30)
    await producer.stop()


def test_user_of_file(broker: SaslBroker) -> None:
    config = librdkafka(broker, "PLAIN", PASSWORDS["bob"]) | {"sasl.username": "bob"}
    assert AdminClient(config).list_topics(timeout=30).brokers


def test_admin_client_lists_and_deletes_users(broker: SaslBroker) -> None:
    admin = AdminClient(librdkafka(broker, "SCRAM-SHA-256"))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
    for each in (
        UserScramCredentialUpsertion("carol", info, b"pw"),
        UserScramCredentialDeletion("carol", ScramMechanism.SCRAM_SHA_512),
    ):
        for future in admin.alter_user_scram_credentials([each]).values():
            future.result(30)
    found = admin.describe_user_scram_credentials().result(30)
    assert sorted(found) == ["alice"]
    assert [each.iterations for each in found["alice"].scram_credential_infos] == [4096, 4096]
    with pytest.raises(confluent_kafka.KafkaException):
        admin.describe_user_scram_credentials(["carol"])["carol"].result(30)


def test_logs_in_again_before_limit(tmp_path: Path) -> None:
    monitors = free_port()
    users = tmp_path / "users"
    users.write_text("bob:pw\n")
    users.chmod(0o600)
    address = f"127.0.0.1:{free_port()}"
    settings = {
        "sasl.enabled.mechanisms": "PLAIN", "sasl.plain.users.file": users,
        "connections.max.reauth.ms": 3000, "metrics.listener": f"127.0.0.1:{monitors}",
    }  # fmt: skip
    with BrokerProcess(
        tmp_path / "data", settings=settings, listeners=[f"SASL_PLAINTEXT://{address}"]
    ) as process:
        errors: list[Any] = []
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN", "sasl.username": "bob", "sasl.password": "pw",
                "error_cb": errors.append,
            }
        )  # fmt: skip
        pages = f"http://127.0.0.1:{monitors}/metrics"
        line = re.compile(r'log_ins_total{mechanism="PLAIN",result="succeeded"} ([0-9]+)')

        def has_logged_in_again() -> bool:
            producer.produce("t", b"x")
            assert producer.flush(30) == 0
            with urlopen(pages, timeout=30) as page:
                found = line.search(page.read().decode())
            return found is not None and int(found[1]) >= 6  # of two or three connections

        wait_until(has_logged_in_again, "another log-in of each connection")
        assert not errors
        assert "closing the connection" not in process.output
