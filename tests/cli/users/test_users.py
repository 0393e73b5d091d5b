"""`kafkawire users`, with and without a broker, and commands that log in.

Covers: kafkawire.cli.shared.command_config, kafkawire.cli.users,
kafkawire.cli.users, kafkawire.client.security.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import no_environment  # noqa: F401  (a fixture)
from tests.kit.ports import free_port

PASSWORD = "pass,=word"


class Run:
    """A command with its result."""

    def __init__(self, *words: str, given: str = "") -> None:
        result = CliRunner().invoke(app, list(words), input=given)
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr
        assert PASSWORD not in self.out + self.err


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, str]]:
    address = f"127.0.0.1:{free_port()}"
    with BrokerProcess(
        tmp_path_factory.mktemp("users") / "data",
        settings={"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"},
        listeners=[f"SASL_PLAINTEXT://{address}"],
    ) as process:
        yield process, address
        assert PASSWORD not in process.output


def config(folder: Path, mechanism: str, password: str, jaas: bool = False) -> str:
    file = folder / "client.properties"
    lines = ["security.protocol=SASL_PLAINTEXT", f"sasl.mechanism={mechanism}"]
    if jaas:
        lines += [
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\",
            f'    username="alice" password="{password}";',
        ]
    else:
        lines += ["sasl.username=alice", f"sasl.password={password}"]
    file.write_text("\n".join(lines))
    return str(file)


@pytest.mark.real
def test_users_of_running_broker(broker: tuple[BrokerProcess, str], tmp_path: Path) -> None:
    process, address = broker
    server = ("--server", process.bootstrap)
    assert Run("users", "create", "alice", *server, given=f"{PASSWORD}\n").code == 0
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        for jaas in (False, True):
            file = config(tmp_path, mechanism, PASSWORD, jaas)
            found = Run("--command-config", file, "topics", "list", "--server", address)
            assert (found.code, found.err) == (0, "")
        file = config(tmp_path, mechanism, "wrong")
        refused = Run("--command-config", file, "topics", "list", "--server", address)
        assert refused.code == 1
        assert "refused user alice: Authentication failed" in refused.err
    without = Run("topics", "list", "--server", address)
    assert without.code == 1
    secret = tmp_path / "secret"
    secret.write_text("other\n")
    assert not Run("users", "password", "alice", *server, "--password-file", str(secret)).code
    file = config(tmp_path, "SCRAM-SHA-256", "other")
    assert not Run("--command-config", file, "users", "list", "--server", address).code
    assert Run("users", "delete", "alice", *server).code == 0


@pytest.mark.real
def test_users_of_stopped_broker(tmp_path: Path) -> None:
    data = tmp_path / "data"
    folder = ("--data", str(data))
    with BrokerProcess(data):
        pass
    made = Run("users", "create", "alice", *folder, "--mechanism", "SCRAM-SHA-256",
               given=f"{PASSWORD}\n")  # fmt: skip
    assert (made.code, made.err) == (0, "")
    assert json.loads(Run("users", "list", *folder, "--json").out) == [
        {"user": "alice", "mechanism": "SCRAM-SHA-256", "iterations": 4096}
    ]
    with BrokerProcess(data) as process:
        rows = json.loads(Run("users", "list", "--server", process.bootstrap, "--json").out)
        assert [row["user"] for row in rows] == ["alice"]
