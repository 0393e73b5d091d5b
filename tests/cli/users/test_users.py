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
    assert Run("users", "list", *server, "--json").out.strip() == "[]"
    made = Run("users", "create", "alice", *server, given=f"{PASSWORD}\n")
    assert (made.code, made.out) == (0, "created user alice for SCRAM-SHA-256 and SCRAM-SHA-512\n")
    again = Run("users", "create", "alice", *server, given="x\n")
    assert (again.code, "adds a mechanism with --mechanism" in again.err) == (1, True)
    rows = json.loads(Run("users", "list", *server, "--json").out)
    assert [(row["user"], row["iterations"]) for row in rows] == [("alice", 4096)] * 2
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
    assert Run("users", "delete", "alice", "bob", *server).code == 1
    assert Run("users", "delete", "alice", *server).out == "deleted user alice\n"
    assert Run("users", "password", "alice", *server, given="x").code == 1


@pytest.mark.real
def test_a_second_mechanism_can_be_added(broker: tuple[BrokerProcess, str]) -> None:
    process, _ = broker
    server = ("--server", process.bootstrap)

    def changed(command: str, mechanism: str) -> str:
        words = ("users", command, "carol", "--mechanism", mechanism, *server)
        done = Run(*words, given=f"{PASSWORD}\n")
        assert not done.code
        return done.out

    assert changed("create", "SCRAM-SHA-256") == "created user carol for SCRAM-SHA-256\n"
    added = changed("password", "SCRAM-SHA-512")
    assert added == "changed the password of user carol for SCRAM-SHA-512\n"
    rows = json.loads(Run("users", "list", *server, "--json").out)
    mechanisms = [row["mechanism"] for row in rows if row["user"] == "carol"]
    assert mechanisms == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert not Run("users", "delete", "carol", *server).code


@pytest.mark.real
def test_users_of_stopped_broker(tmp_path: Path) -> None:
    data = tmp_path / "data"
    folder = ("--data", str(data))
    none = Run("users", "list", *folder)
    assert (none.code, "is not a data folder" in none.err) == (1, True)
    with BrokerProcess(data):
        busy = Run("users", "create", "alice", *folder, given=f"{PASSWORD}\n")
        assert busy.code == 1
    made = Run("users", "create", "alice", *folder, "--mechanism", "SCRAM-SHA-256",
               given=f"{PASSWORD}\n")  # fmt: skip
    assert (made.code, made.err) == (0, "")
    assert json.loads(Run("users", "list", *folder, "--json").out) == [
        {"user": "alice", "mechanism": "SCRAM-SHA-256", "iterations": 4096}
    ]
    with BrokerProcess(data) as process:
        rows = json.loads(Run("users", "list", "--server", process.bootstrap, "--json").out)
        assert [row["user"] for row in rows] == ["alice"]
    assert Run("users", "delete", "alice", *folder).code == 0


@pytest.mark.parametrize(
    ("words", "given", "sentence"),
    [
        (("create", "*"), "x", "means every user"),
        (("create", "a\tb"), "x", "control characters"),
        (("create", "a", "--mechanism", "GSSAPI"), "x", "--mechanism=GSSAPI"),
        (("create", "a", "--iterations", "4095"), "x", "--iterations=4095"),
        (("create", ""), "x", "empty"),
    ],
)
def test_wrong_arguments(words: tuple[str, ...], given: str, sentence: str) -> None:
    found = Run("users", *words, given=given)
    assert (found.code, found.out) == (2, "")
    assert sentence in found.err
    assert found.err.count("\n") == 1


def test_empty_passwords_are_refused(tmp_path: Path, broker: tuple[BrokerProcess, str]) -> None:
    server = ("--server", broker[0].bootstrap)
    (tmp_path / "empty").write_text("\nsecret\n")
    for words in ((), ("--password-file", str(tmp_path / "empty")), ("--password-file", "/none")):
        found = Run("users", "create", "carol", *server, *words)
        assert (found.code, found.err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("security.protocol=KERBEROS", "security.protocol must be one of"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI", "sasl.mechanism must be one of"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=a", "must be set"),
        ("hello", "NAME=VALUE"),
    ],
)
def test_wrong_file_of_settings(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(text)
    found = Run("--command-config", str(file), "users", "list", "--server", "127.0.0.1:1")
    assert found.code == 2
    assert sentence in found.err
