"""Groups of kcat and each Python client over SASL_TLS, with SCRAM-SHA-512 and with tokens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed
from tests.kit.issuer import Issuer
from tests.kit.ports import free_port
from tests.kit.tls import certificates
from tests.kit.waiting import wait_until
from tests.real.round_trips import (
    CLIENTS,
    Access,
    Kcat,
    RealClient,
    audited,
    client_of,
    refusal,
    send_and_read_in_a_group,
)
from tests.real.test_kcat import kcat  # noqa: F401  (a fixture)

PASSWORD, WRONG = "alice-secret", "alice-wrong"


class LogIns:
    """A broker with log-ins over TLS, and an issuer of tokens."""

    def __init__(self, address: str, issuer: Issuer, audit: Path) -> None:
        self.audit = audit
        self.scram = Access(address, mechanism="SCRAM-SHA-512", password=PASSWORD)
        self.bearer = Access(
            address, mechanism="OAUTHBEARER", token=lambda: issuer.token(time.time())
        )


@pytest.fixture(scope="module")
def log_ins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogIns]:
    folder, address = tmp_path_factory.mktemp("log-ins"), f"localhost:{free_port()}"
    audit = folder / "audit.jsonl"
    issuer, keys, secret = Issuer("groups"), folder / "keys.json", folder / "password"
    keys.write_bytes(issuer.key_set())
    secret.write_text(PASSWORD)
    settings = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{keys}",
        "sasl.oauthbearer.expected.audience": "kafka",
        "ssl.keystore.location": certificates() / "server.pem",
        "ssl.key.location": certificates() / "server.key",
        "audit.log": audit,
        "authorizer": "acl",
        "super.users": "User:alice;User:ANONYMOUS",
        "group.initial.rebalance.delay.ms": 0,
    }
    with BrokerProcess(
        folder / "data", settings=settings, listeners=[f"SASL_TLS://{address}"]
    ) as process:
        words = ("users", "create", "alice", "--password-file", str(secret))
        made = Typed(process.bootstrap, *words)
        assert made.code == 0, made.err
        yield LogIns(address, issuer, audit)
        assert not [each for each in (PASSWORD, WRONG, "eyJ") if each in process.output]
        assert "Traceback" not in process.output


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> RealClient:
    return client_of(request)


def test_group_with_scram(log_ins: LogIns, client: RealClient, name: str) -> None:
    send_and_read_in_a_group(client, log_ins.scram, name)


def test_group_with_tokens(log_ins: LogIns, client: RealClient, name: str) -> None:
    if isinstance(client, Kcat):
        pytest.skip("kcat takes tokens from an issuer with HTTP only, if it was built with that")
    send_and_read_in_a_group(client, log_ins.bearer, name)


def test_wrong_password_is_refused(log_ins: LogIns, client: RealClient, name: str) -> None:
    def failures() -> int:
        return len(audited(log_ins.audit, "authentication failed"))

    before = failures()
    refusal(client, log_ins.scram._replace(password=WRONG, patience_ms=3_000), name)
    wait_until(lambda: failures() > before, "the line of the audit log")


def test_unsigned_token_of_kcat_is_refused(log_ins: LogIns, kcat: str) -> None:  # noqa: F811
    unsigned = ("-X", "enable.sasl.oauthbearer.unsecure.jwt=true")
    claims = ("-X", "sasl.oauthbearer.config=principal=alice scope=kafka")
    code, _, said = Kcat(kcat).run(log_ins.bearer, *unsigned, *claims, "-L", "-m", "3")
    assert code != 0
    assert "invalid_token" in said
