"""Settings of clients in a file of Kafka's form."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kafkawire.client.connection import ClientConnection
from kafkawire.client.errors import ClientError
from kafkawire.client.security import ClientSecurity, security_of
from tests.kit.server import port_of, running


def test_settings_of_both_kinds_of_clients() -> None:
    jaas = 'x.ScramLoginModule required username="al\\"ice" serviceName="k" password="a;b=c" ;'
    java = {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": jaas, "ssl.truststore.location": "ca.pem",
        "ssl.endpoint.identification.algorithm": "",
    }  # fmt: skip
    assert security_of(java) == ClientSecurity(
        True, "ca.pem", "", "", False, "SCRAM-SHA-512", 'al"ice', "a;b=c"
    )
    librdkafka = {
        "security.protocol": "ssl", "ssl.ca.location": "ca.pem",
        "ssl.certificate.location": "c.pem", "ssl.key.location": "k.pem", "acks": "all",
    }  # fmt: skip
    assert security_of(librdkafka) == ClientSecurity(True, "ca.pem", "c.pem", "k.pem")
    assert security_of({}) == ClientSecurity()


def test_password_is_not_shown() -> None:
    assert "secret" not in repr(ClientSecurity(user="a", password="secret"))


def test_incomplete_settings_are_refused() -> None:
    for wrong in ({"security.protocol": "SASL"}, {"security.protocol": "SASL_TLS"}):
        with pytest.raises(ValueError, match="must be"):
            security_of(wrong)


async def test_sentence_for_a_listener_without_tls(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        with pytest.raises(ClientError, match=r"speak TLS: set security\.protocol=PLAINTEXT in"):
            await asyncio.to_thread(
                ClientConnection, "127.0.0.1", port_of(server), security=ClientSecurity(tls=True)
            )
