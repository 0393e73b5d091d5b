"""Listeners with settings of their own: certificates, client certificates, mechanisms, limits."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from kafkawire.cli.certs import issue, write
from kafkawire.testing.process import BrokerProcess
from tests.kit.ports import free_ports
from tests.kit.tls import authority, certificates
from tests.kit.waiting import wait_until
from tests.real.conftest import SETTINGS

PASSWORD = "bob-secret"


class Listeners:
    """A broker with a listener for each kind of client. `other`: the folder with the
    certificates of another authority."""

    def __init__(self, process: BrokerProcess, other: Path, ports: list[int]) -> None:
        self.process = process
        self.other = other
        self.open, self.mutual, self.plain, self.scram = (f"localhost:{port}" for port in ports)


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listeners]:
    folder = tmp_path_factory.mktemp("listeners")
    other = folder / "other"
    other.mkdir()
    write(other, ["localhost"], "bob", 2)
    users = folder / "users"
    users.write_text(f"bob:{PASSWORD}\n")
    users.chmod(0o600)
    ports = free_ports(4)
    mutual = "listener.name.mutual"
    settings: dict[str, Any] = {
        **SETTINGS,
        "ssl.keystore.location": certificates() / "server.pem",
        "ssl.key.location": certificates() / "server.key",
        f"{mutual}.ssl.keystore.location": other / "server.pem",
        f"{mutual}.ssl.key.location": other / "server.key",
        f"{mutual}.ssl.truststore.location": other / "ca.pem",
        f"{mutual}.ssl.client.auth": "required",
        f"{mutual}.ssl.enabled.protocols": "TLSv1.3",
        "sasl.plain.users.file": users,
        "listener.name.plain.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
    }
    protocols = ("OPEN=TLS", "MUTUAL=TLS", "PLAIN=SASL_TLS", "SCRAM=SASL_PLAINTEXT")
    named = [f"{name}://localhost:{port}" for name, port in zip(protocols, ports, strict=True)]
    with BrokerProcess(folder / "data", settings=settings, listeners=named) as process:
        yield Listeners(process, other, ports)


def works(address: str, **settings: Any) -> str:
    """Produce a record; return why that failed, or nothing."""
    errors: list[KafkaError] = []
    config = {"bootstrap.servers": address, "error_cb": errors.append, "log_level": 0}
    producer = Producer(config | {name.replace("_", "."): text for name, text in settings.items()})
    done: list[Any] = []
    producer.produce("t", b"one", on_delivery=lambda error, _: done.append(error))

    def is_over() -> bool:
        producer.poll(0.1)
        return bool(done) or any(each.code() in FATAL for each in errors)

    wait_until(is_over, f"a record at {address}")
    if done and done[0] is None:
        return ""
    producer.purge()
    producer.flush(5)
    return " ".join(each.str() for each in errors)


FATAL = (KafkaError._SSL, KafkaError._AUTHENTICATION, KafkaError._ALL_BROKERS_DOWN)
SSL, SASL = {"security_protocol": "SSL"}, {"sasl_username": "bob", "sasl_password": PASSWORD}


def shown_by(folder: Path) -> dict[str, str]:
    return {
        "ssl_certificate_location": f"{folder}/client.pem",
        "ssl_key_location": f"{folder}/client.key",
    }


def test_each_listener_has_its_certificate(listeners: Listeners) -> None:
    ours, other = f"{certificates()}/ca.pem", f"{listeners.other}/ca.pem"
    bob = shown_by(listeners.other)
    assert not works(listeners.open, **SSL, ssl_ca_location=ours)
    assert not works(listeners.mutual, **SSL, ssl_ca_location=other, **bob)
    assert "certificate" in works(listeners.open, **SSL, ssl_ca_location=other)
    assert "certificate" in works(listeners.mutual, **SSL, ssl_ca_location=ours, **bob)


def test_one_listener_requires_certificates_of_its_authority(listeners: Listeners) -> None:
    other = f"{listeners.other}/ca.pem"
    assert works(listeners.mutual, **SSL, ssl_ca_location=other)
    assert works(listeners.mutual, **SSL, ssl_ca_location=other, **shown_by(certificates()))


def version_of(address: str, folder: Path) -> str | None:
    host, _, port = address.partition(":")
    context = ssl.create_default_context(cafile=f"{folder}/ca.pem")
    context.load_cert_chain(f"{folder}/client.pem", f"{folder}/client.key")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection((host, int(port)), 30) as plain,
        context.wrap_socket(plain, server_hostname=host) as sock,
    ):
        return sock.version()


def test_one_listener_has_other_versions(listeners: Listeners) -> None:
    assert version_of(listeners.open, certificates()) == "TLSv1.2"
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        version_of(listeners.mutual, listeners.other)


def test_each_listener_has_its_mechanism(listeners: Listeners) -> None:
    ca = {"ssl_ca_location": f"{certificates()}/ca.pem"}
    plain = {**SASL, **ca, "security_protocol": "SASL_SSL"}
    assert not works(listeners.plain, **plain, sasl_mechanism="PLAIN")
    refused = works(listeners.plain, **plain, sasl_mechanism="SCRAM-SHA-512")
    assert "Unsupported SASL mechanism" in refused
    scram = {**SASL, "security_protocol": "SASL_PLAINTEXT"}
    refused = works(listeners.scram, **scram, sasl_mechanism="PLAIN")
    assert "Unsupported SASL mechanism" in refused
    refused = works(listeners.scram, **scram, sasl_mechanism="SCRAM-SHA-512")
    assert "Authentication failed" in refused  # the user is in the file, for PLAIN only


def test_the_certificate_of_one_listener_is_replaced(listeners: Listeners) -> None:
    """The other listener keeps its own."""
    new = issue("localhost", authority(), 1, ["localhost"])
    other = listeners.other
    (other / "server.key").write_bytes(new.key_pem())
    (other / "server.pem").write_bytes(new.certificate_pem())
    ours = f"{certificates()}/ca.pem"
    wait_until(
        lambda: "loaded again" in listeners.process.output, "the certificate was loaded again"
    )
    bob = shown_by(other)
    assert not works(listeners.mutual, **SSL, ssl_ca_location=ours, **bob)
    assert not works(listeners.open, **SSL, ssl_ca_location=ours)
