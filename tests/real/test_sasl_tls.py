"""Log-ins over TLS: real clients, and the commands of kafkawire."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.helpers import create_ssl_context

from kafkawire.testing.process import BrokerProcess
from tests.kit.ports import free_port
from tests.kit.tls import certificates
from tests.kit.waiting import wait_until

MECHANISMS = ("PLAIN", "SCRAM-SHA-512")
PASSWORD, WRONG = "alice-secret", "alice-wrong"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("sasl-tls")
    users = folder / "users"
    users.write_text(f"alice:{PASSWORD}\n")
    users.chmod(0o600)
    secret = folder / "password"
    secret.write_text(PASSWORD)
    address = f"localhost:{free_port()}"
    settings = {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.plain.users.file": users,
        "ssl.keystore.location": certificates() / "server.pem",
        "ssl.key.location": certificates() / "server.key",
    }
    with BrokerProcess(
        folder / "data", settings=settings, listeners=[f"SASL_TLS://{address}"]
    ) as process:
        done = command("users", "create", "alice", "--password-file", str(secret),
                       "--server", process.bootstrap)  # fmt: skip
        assert done.returncode == 0, done.stderr
        yield address
        assert not [each for each in (PASSWORD, WRONG) if each in process.output]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "kafkawire", *words], capture_output=True, text=True,
        timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def config(address: str, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap.servers": address, "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": password,
        "ssl.ca.location": f"{certificates()}/ca.pem",
    }  # fmt: skip


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka(address: str, mechanism: str) -> None:
    producer = confluent_kafka.Producer(config(address, mechanism))
    producer.produce(f"ck-{mechanism}", b"x" * 100_000)
    assert producer.flush(30) == 0
    errors: list[Any] = []
    refused = config(address, mechanism, WRONG) | {"error_cb": errors.append}
    client = confluent_kafka.Producer(refused)

    def is_refused() -> bool:
        client.poll(0.1)
        return any(each.code() == confluent_kafka.KafkaError._AUTHENTICATION for each in errors)

    wait_until(is_refused, "the refusal of the log-in")


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_python_clients(address: str, mechanism: str) -> None:
    common = {
        "bootstrap_servers": address, "security_protocol": "SASL_SSL",
        "sasl_mechanism": mechanism, "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORD,
    }  # fmt: skip
    ca = f"{certificates()}/ca.pem"

    def of_kafka_python() -> None:
        producer = kafka.KafkaProducer(**common, ssl_cafile=ca)
        producer.send(f"kp-{mechanism}", b"one").get(30)
        producer.close()

    await asyncio.to_thread(of_kafka_python)
    other = AIOKafkaProducer(**common, ssl_context=create_ssl_context(cafile=ca))
    await other.start()
    await asyncio.wait_for(other.send_and_wait(f"ak-{mechanism}", b"one"), 30)
    await other.stop()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_commands(address: str, mechanism: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"

    def listed(**changes: str) -> subprocess.CompletedProcess[str]:
        settings = config(address, mechanism) | changes
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return command("--command-config", str(file), "topics", "list", "--server", address)

    assert (listed().returncode, listed().stderr) == (0, "")
    refused = listed(**{"sasl.password": WRONG})
    assert refused.returncode == 1
    assert "Authentication failed" in refused.stderr
    stranger = listed(**{"ssl.ca.location": ""})
    assert stranger.returncode == 1
    assert "certificate" in stranger.stderr
    assert stranger.stderr.count("\n") == 1


def test_sql(address: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    settings = config(address, "PLAIN")
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    producer = confluent_kafka.Producer(settings)
    producer.produce("orders", b"one", b"4711")
    assert producer.flush(30) == 0
    statement = "SELECT count(*) AS n FROM orders WHERE key_text = '4711'"
    words = ["sql", "--source", address, "--format", "json", statement]
    done = command("--command-config", str(file), *words)
    assert (done.returncode, done.stdout) == (0, '{"n": 1}\n'), done.stderr
    missing = command("--command-config", f"{file}.no", *words)
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
