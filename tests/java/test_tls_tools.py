"""Kafka's own tools over TLS: with a certificate of their own, with log-ins, and refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.testing.process import BrokerProcess
from tests.java.conftest import run_tool as run
from tests.java.tools import ToolServer
from tests.kit.ports import free_ports
from tests.kit.tls import certificates

PASSWORD = "bob-secret"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


class Addresses:
    """A broker that anybody may connect to, and only a certificate of alice may administer."""

    def __init__(self, tls: int, sasl: int) -> None:
        self.tls = f"localhost:{tls}"
        self.sasl = f"localhost:{sasl}"


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    found = Addresses(*free_ports(2))
    made = certificates()
    settings = {
        "ssl.keystore.location": made / "server.pem", "ssl.key.location": made / "server.key",
        "ssl.truststore.location": made / "ca.pem", "ssl.client.auth": "requested",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/", "authorizer": "acl",
        "super.users": "User:alice", "group.initial.rebalance.delay.ms": 0,
    }  # fmt: skip
    with BrokerProcess(
        tmp_path_factory.mktemp("tls") / "data", settings=settings,
        listeners=[f"TLS://{found.tls}", f"SASL_TLS://{found.sasl}"],
    ) as process:  # fmt: skip
        yield found
        assert PASSWORD not in process.output


def properties(path: Path, *lines: str, trusting: bool = True) -> str:
    made = certificates()
    trust = ("ssl.truststore.type=PEM", f"ssl.truststore.location={made}/ca.pem")
    path.write_text("\n".join((*lines, *(trust if trusting else ()))) + "\n")
    return str(path)


def certified(folder: Path) -> str:
    """Settings of a client with the certificate of alice."""
    store = folder / "alice.pem"
    store.write_bytes(
        b"".join((certificates() / f"client.{e}").read_bytes() for e in ("key", "pem"))
    )
    return properties(
        folder / "alice.properties", "security.protocol=SSL", "ssl.keystore.type=PEM",
        f"ssl.keystore.location={store}",
    )  # fmt: skip


def logged_in(folder: Path, password: str = PASSWORD) -> str:
    """Settings of a client that logs in as bob."""
    return properties(
        folder / f"bob-{len(password)}.properties", "security.protocol=SASL_SSL",
        "sasl.mechanism=SCRAM-SHA-512",
        f'sasl.jaas.config={SCRAM} required username="bob" password="{password}";',
    )  # fmt: skip


def test_tools_with_certificate_and_with_log_in(
    tool_server: ToolServer, addresses: Addresses, tmp_path: Path
) -> None:
    alice = ("--command-config", certified(tmp_path))
    bob = logged_in(tmp_path)
    user = ("--entity-type", "users", "--entity-name", "bob")
    add = f"SCRAM-SHA-512=[iterations=4096,password={PASSWORD}]"
    run(tool_server, addresses.tls, "ConfigCommand", *alice, "--alter", *user, "--add-config", add)
    run(tool_server, addresses.tls, "TopicCommand", *alice, "--create", "--topic", "t")
    for role in (["--producer"], ["--consumer", "--group", "*"]):
        allow = ("--add", "--allow-principal", "User:bob", *role, "--topic", "t")
        run(tool_server, addresses.tls, "AclCommand", *alice, *allow)
    run(tool_server, addresses.sasl, "ConsoleProducer", "--topic", "t",
        "--command-config", bob, data="one\n")  # fmt: skip
    read = ("--topic", "t", "--from-beginning", "--max-messages", "1", "--timeout-ms", "60000")
    for address, config in ((addresses.sasl, bob), (addresses.tls, alice[1])):
        found = run(tool_server, address, "ConsoleConsumer", *read, "--command-config", config)
        assert "one" in found
    as_bob = ("--command-config", bob)
    refused = run(tool_server, addresses.sasl, "TopicCommand", *as_bob, "--delete", "--topic", "t",
                  code=1)  # fmt: skip
    assert "TopicAuthorizationException" in refused
    refused = run(tool_server, addresses.sasl, "AclCommand", *as_bob, "--list", code=1)
    assert "ClusterAuthorizationException" in refused


def test_tools_are_refused(tool_server: ToolServer, addresses: Addresses, tmp_path: Path) -> None:
    stranger = properties(tmp_path / "no-ca", "security.protocol=SSL", trusting=False)
    anonymous = properties(tmp_path / "anonymous", "security.protocol=SSL")
    plain = properties(tmp_path / "plain", "request.timeout.ms=3000", "default.api.timeout.ms=3000")
    for address, config, what in (
        (addresses.tls, stranger, "SSLHandshakeException"),
        (addresses.tls, anonymous, "ClusterAuthorizationException"),
        (addresses.sasl, logged_in(tmp_path, "wrong"), "SaslAuthenticationException"),
        (addresses.tls, plain, "TimeoutException"),
    ):
        words = ("--command-config", config, "--list")
        assert what in run(tool_server, address, "AclCommand", *words, code=1)
