"""Kafka's tool for delegation tokens, and Java clients that log in with a token."""

from __future__ import annotations

from pathlib import Path

from kafkawire.testing.process import BrokerProcess
from tests.java.conftest import CLASSES, TOOLS
from tests.java.tools import ToolServer
from tests.kit.cli import Typed
from tests.kit.ports import free_ports

KEY, PASSWORD = "a-key-of-the-cluster", "alice-secret"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def properties(path: Path, name: str, password: str, more: str = "") -> str:
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={SCRAM} required username="{name}" password="{password}"{more};\n'
    )
    return str(path)


def fields(shown: str) -> dict[str, str]:
    """Return the columns of the tool's only row by their names."""
    lines = [line for line in shown.splitlines() if line.strip()]
    head = next(at for at, line in enumerate(lines) if line.startswith("TOKENID"))
    return dict(zip(lines[head].split(), lines[head + 1].split(), strict=False))


def test_tokens_are_created_used_renewed_and_expired(
    tool_server: ToolServer, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    sasl = f"127.0.0.1:{port}"
    alice = properties(tmp_path / "alice", "alice", PASSWORD)

    def run(name: str, *arguments: str, config: str = alice, data: str = "", code: int = 0) -> str:
        words = [*arguments, "--bootstrap-server", sasl, "--command-config", config]
        done = tool_server.run(CLASSES.get(name, TOOLS + name), words, data, 90)
        assert done.code == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def tokens(*arguments: str, config: str = alice, code: int = 0) -> str:
        return run("DelegationTokenCommand", *arguments, config=config, code=code)

    settings = {"authorizer": "acl", "super.users": "User:ANONYMOUS;User:alice"}
    secret_file = tmp_path / "password"
    secret_file.write_text(PASSWORD)
    with BrokerProcess(
        tmp_path / "data", settings=settings,
        environ={"KAFKAWIRE_SET_DELEGATION_TOKEN_SECRET_KEY": KEY},
        listeners=[f"SASL_PLAINTEXT://{sasl}"],
    ) as process:  # fmt: skip
        made_user = Typed(
            process.bootstrap, "users", "create", "alice", "--password-file", str(secret_file)
        )
        assert made_user.code == 0, made_user.err
        made = fields(
            tokens("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
        )
        assert made["OWNER"] == made["REQUESTER"] == "User:alice"
        worker = properties(tmp_path / "worker", made["TOKENID"], made["HMAC"], ' tokenauth="true"')
        run("TopicCommand", "--create", "--topic", "t", config=worker)
        run("ConsoleProducer", "--topic", "t", config=worker, data="one\n")
        read = ("--topic", "t", "--from-beginning", "--max-messages", "1", "--timeout-ms", "60000")
        assert "one" in run("ConsoleConsumer", *read, config=worker)
        refused = tokens("--create", "--max-life-time-period", "-1", config=worker, code=1)
        assert "DelegationTokenDisabledException" in refused or "UnsupportedByAuth" in refused
        tokens("--renew", "--renew-time-period", "-1", "--hmac", made["HMAC"])
        shown = fields(tokens("--describe", "--owner-principal", "User:alice"))
        assert (shown["TOKENID"], shown["HMAC"]) == (made["TOKENID"], made["HMAC"])
        tokens("--expire", "--expiry-time-period", "-1", "--hmac", made["HMAC"])
        refused = run("TopicCommand", "--list", config=worker, code=1)
        assert "SaslAuthenticationException" in refused
        process.stop()
        assert KEY not in process.output
        assert made["HMAC"] not in process.output
