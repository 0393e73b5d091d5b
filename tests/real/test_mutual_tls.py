"""Clients whose certificate is their identity: with kcat and each Python client."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.cli.certs import issue
from kafkawire.testing.process import BrokerProcess
from tests.kit.ports import free_port
from tests.kit.tls import COMMON_NAME, certificates, client_named, save
from tests.kit.waiting import wait_until
from tests.real.round_trips import (
    CLIENTS,
    Access,
    RealClient,
    audited,
    client_of,
    refusal,
    send_and_read_in_a_group,
)
from tests.real.test_kcat import kcat  # noqa: F401  (a fixture)


class Mutual:
    """A broker that lets in clients with certificates: alice may do everything, bob nothing."""

    def __init__(self, process: BrokerProcess, port: int, folder: Path) -> None:
        self.process = process
        self.address = f"localhost:{port}"
        self.audit = folder / "audit.jsonl"
        (folder / "alice").mkdir()
        (folder / "bob").mkdir()
        self.alice = client_named(folder / "alice", (COMMON_NAME, "Alice"))
        self.bob = client_named(folder / "bob", (COMMON_NAME, "Bob"))

    def access(self, certificate: Path | None) -> Access:
        return Access(self.address, certificate)


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mutual]:
    folder, port = tmp_path_factory.mktemp("mutual"), free_port()
    settings = {
        "ssl.keystore.location": certificates() / "server.pem",
        "ssl.key.location": certificates() / "server.key",
        "ssl.truststore.location": certificates() / "ca.pem",
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/L,DEFAULT",
        "authorizer": "acl",
        "super.users": "User:alice",
        "audit.log": folder / "audit.jsonl",
        "group.initial.rebalance.delay.ms": 0,
    }
    with BrokerProcess(
        folder / "data", settings=settings, listeners=[f"TLS://127.0.0.1:{port}"],
        arguments=["--advertise", f"TLS://localhost:{port}"],
    ) as process:  # fmt: skip
        yield Mutual(process, port, folder)
        assert "Traceback" not in process.output


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> RealClient:
    return client_of(request)


def test_certificate_is_the_log_in(mutual: Mutual, client: RealClient, name: str) -> None:
    send_and_read_in_a_group(client, mutual.access(mutual.alice), name)


def test_other_certificate_is_another_principal(
    mutual: Mutual, client: RealClient, name: str
) -> None:
    said = refusal(client, mutual.access(mutual.bob), name)
    assert re.search("topic.?authorization.?failed", said, re.IGNORECASE), said

    denied = wait_until(
        lambda: [row for row in audited(mutual.audit, "denied") if name in str(row)],
        "the line of the audit log",
    )
    assert {row["principal"] for row in denied} == {"User:bob"}


def test_client_without_certificate_is_refused(
    mutual: Mutual, client: RealClient, name: str
) -> None:
    check_refused(mutual, client, None, name, "peer did not return a certificate")


def test_certificate_of_another_authority_is_refused(
    mutual: Mutual, client: RealClient, name: str, tmp_path: Path
) -> None:
    stranger = save(tmp_path, issue("Alice", None, 1))
    check_refused(mutual, client, stranger, name, "the client's certificate is refused")


def check_refused(
    mutual: Mutual, client: RealClient, certificate: Path | None, name: str, why: str
) -> None:
    def failures() -> int:
        return sum(why in str(row) for row in audited(mutual.audit, "authentication failed"))

    before = failures()
    refusal(client, mutual.access(certificate)._replace(patience_ms=3_000), name)
    wait_until(lambda: failures() > before, "the line of the audit log")
