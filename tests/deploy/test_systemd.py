"""The systemd unit and its files: systemd's own checks, the options of its TOML file, a broker with
this file and its clients, and READY=1 and STOPPING=1 of a broker.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path, PurePosixPath

import confluent_kafka
import pytest

from kafkawire.cli.app import app
from kafkawire.cli.serving.sources import collect
from kafkawire.cli.shared.options import parse_listeners
from kafkawire.server.service_manager import READY, STOPPING, SUPERSEDED_CODE, notify
from kafkawire.testing.process import BrokerProcess
from tests.deploy.dockerfile import ROOT
from tests.kit.cli import Typed, commands_of, run
from tests.kit.ports import free_ports
from tests.kit.tls import certificates
from tests.kit.waiting import wait_until

FOLDER = ROOT / "deploy" / "systemd"
UNIT = FOLDER / "kafkawire.service"
EXAMPLE = FOLDER / "kafkawire.toml"
EXPOSURE_LIMIT = 2.0
"""Of `systemd-analyze security`, 10 being a service without any limits; 1.3 when it was written."""


class Unit(configparser.ConfigParser):
    """A unit file. Of an option that is given several times the last one is kept."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr  # case counts


def unit() -> Unit:
    found = Unit(strict=False, interpolation=None)
    found.read_string(UNIT.read_text(encoding="utf-8"))
    return found


@pytest.fixture
def checked(tmp_path: Path) -> Path:
    """The unit with a program that exists on this machine."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    path = tmp_path / UNIT.name
    text = UNIT.read_text(encoding="utf-8")
    path.write_text(text.replace("/opt/kafkawire/bin/kafkawire", sys.executable), encoding="utf-8")
    return path


def _analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.real
def test_systemd_accepts_the_unit(checked: Path) -> None:
    done = _analyze("verify", checked)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    checked.write_text(checked.read_text().replace("Restart=on-failure", "Restart=sometimes"))
    assert "sometimes" in _analyze("verify", checked).stderr


@pytest.mark.real
def test_service_is_exposed_little(checked: Path) -> None:
    done = _analyze("security", "--offline=yes", checked)
    if "offline" in done.stderr:
        pytest.skip("this systemd-analyze cannot check a file")
    found = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= EXPOSURE_LIMIT


def test_unit_runs_the_broker_with_its_file() -> None:
    service = unit()["Service"]
    _, command, *options = service["ExecStart"].split()
    assert command in commands_of(app)
    assert options == ["--config", "/etc/kafkawire/kafkawire.toml"]
    assert service["Type"] == "notify"
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"].split() == ["2", str(SUPERSEDED_CODE)]
    assert int(service["LimitNOFILE"]) >= 65536
    assert int(service["TimeoutStopSec"]) >= 30


def test_file_of_the_unit_is_valid() -> None:
    found = collect({}, [], {}, str(EXAMPLE))
    (listener,) = parse_listeners(found.options["listen"].values)
    assert (listener.protocol.name, listener.port) == ("SASL_TLS", 9093)
    assert found.options["insecure"].text == "false"
    assert found.settings["authorizer"].text == "acl"
    assert found.settings["metrics.listener"].text == "127.0.0.1:9404"


def test_sandbox_permits_the_folders_of_the_file() -> None:
    """Of / the service may write to its own folders only, and it sees no home folders."""
    service, found = unit()["Service"], collect({}, [], {}, str(EXAMPLE))
    assert (service["ProtectSystem"], service["ProtectHome"]) == ("strict", "yes")
    assert found.options["data"].text == f"/var/lib/{service['StateDirectory']}"
    audit = PurePosixPath(found.settings["audit.log"].text)
    assert str(audit.parent) == f"/var/log/{service['LogsDirectory']}"
    for name in ("ssl.keystore.location", "ssl.key.location"):
        assert found.settings[name].text.startswith("/etc/kafkawire/tls/")


def test_users_of_unit_and_sysusers_agree() -> None:
    (line,) = re.findall(r"^u (\S+) ", (FOLDER / "kafkawire.sysusers").read_text(), re.MULTILINE)
    assert unit()["Service"]["User"] == unit()["Service"]["Group"] == line


@contextmanager
def _manager(path: Path) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(path))
        channel.settimeout(60)
        yield channel


def test_states_are_sent(tmp_path: Path) -> None:
    with _manager(tmp_path / "notify") as channel:
        notify(READY, {"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert channel.recv(100) == b"READY=1"


def test_abstract_socket(tmp_path: Path) -> None:
    name = f"kafkawire-test-{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(f"\0{name}")
        channel.settimeout(60)
        notify(STOPPING, {"NOTIFY_SOCKET": f"@{name}"})
        assert channel.recv(100) == b"STOPPING=1"


def test_missing_service_manager_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notify(READY, {})
    assert not caplog.records
    notify(READY, {"NOTIFY_SOCKET": str(tmp_path / "none")})
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "READY=1" in record.getMessage()


@pytest.mark.slow
def test_broker_reports_its_start_and_its_stop(tmp_path: Path) -> None:
    with _manager(tmp_path / "notify") as channel:
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        with BrokerProcess(tmp_path / "data", environ=environ) as broker:
            assert channel.recv(100) == b"READY=1"
            broker.stop()
            assert channel.recv(100) == b"STOPPING=1"


@contextmanager
def serving(folder: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """A broker with these variables, from READY=1 to its end."""
    address = folder / "notify"
    with _manager(address) as channel:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kafkawire", "serve"],
            env=os.environ | environ | {"NOTIFY_SOCKET": str(address)},
        )
        try:
            assert channel.recv(100) == b"READY=1"
            yield
        finally:
            process.terminate()
            assert process.wait(60) == 0
    address.unlink()


class Example:
    """The example configuration with files, ports and a host of a test."""

    def __init__(self, folder: Path) -> None:
        port, metrics = free_ports(2)
        self.server, self.folder, self.data = f"localhost:{port}", folder, folder / "data"
        (folder / "log").mkdir()
        self.audit = folder / "log" / "audit.jsonl"
        text = EXAMPLE.read_text(encoding="utf-8")
        for old, new in {
            "0.0.0.0:9093": f"127.0.0.1:{port}",
            "broker.example.org:9093": self.server,
            "/var/lib/kafkawire": str(self.data),
            "/etc/kafkawire/tls": str(certificates()),
            "/var/log/kafkawire": str(self.audit.parent),
            "127.0.0.1:9404": f"127.0.0.1:{metrics}",
        }.items():
            assert old in text
            text = text.replace(old, new)
        self.config = self.file("kafkawire.toml", text)

    def file(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text, encoding="utf-8")
        return str(self.folder / name)

    def serving(self) -> AbstractContextManager[None]:
        """Run the command of the unit."""
        return serving(self.folder, {"KAFKAWIRE_CONFIG": self.config})

    def command(self, user: str, *words: str) -> str:
        """Run a command of kafkawire as a user, and return its output."""
        properties = "".join(f"{name}={value}\n" for name, value in self.client(user).items())
        config = self.file("client.properties", properties)
        done = Typed(self.server, "--command-config", config, *words)
        assert done.code == 0, done.err
        return done.out

    def client(self, user: str, protocol: str = "SASL_SSL") -> dict[str, str]:
        """The settings of a client."""
        return {
            "security.protocol": protocol, "ssl.ca.location": f"{certificates()}/ca.pem",
            "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": user, "sasl.password": "secret",
        }  # fmt: skip

    def events(self) -> list[tuple[str, str]]:
        """Events and principals of the audit log."""
        rows = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return [(row["event"], row["principal"]) for row in rows]

    def refusal(self, **settings: str) -> str:
        """The error that a client with these settings gets instead of the topics."""
        client = confluent_kafka.Producer({"bootstrap.servers": self.server, **settings})
        with pytest.raises(confluent_kafka.KafkaException) as found:
            client.list_topics(timeout=3)
        return str(found.value.args[0].name())

    def produce(self, user: str) -> str:
        """Append a record to `orders`; return the name of the error, or nothing."""
        outcome: list[str] = []
        client = confluent_kafka.Producer(
            {"bootstrap.servers": self.server, "message.timeout.ms": 20_000, **self.client(user)}
        )
        client.produce(
            "orders", b"x", on_delivery=lambda e, _: outcome.append(e.name() if e else "")
        )
        assert client.flush(30) == 0
        return outcome[0]


@pytest.mark.real
@pytest.mark.slow
def test_example_serves_nothing_without_user_and_rule(tmp_path: Path) -> None:
    """The steps of docs/deployment.md: a first start makes the folder, the user admin is created in
    it, and makes users and rules; every other client gets nothing."""
    example = Example(tmp_path)
    with example.serving():
        pass
    password = ("--password-file", example.file("password", "secret\n"))
    made = run(app, ["users", "create", "admin", *password, "--data", str(example.data)])
    assert made.exit_code == 0, made.output
    with example.serving():
        example.command("admin", "topics", "create", "orders")
        example.command("admin", "users", "create", "app", *password)
        for protocol in ("PLAINTEXT", "SSL"):
            without = {"security.protocol": protocol, "ssl.ca.location": f"{certificates()}/ca.pem"}
            # librdkafka waits for an answer if a connection looked usable when it was asked.
            assert example.refusal(**without) in ("_TRANSPORT", "_TIMED_OUT")
        assert example.refusal(**example.client("admin") | {"sasl.password": "wrong"})
        assert example.produce("app") == "TOPIC_AUTHORIZATION_FAILED"
        example.command("admin", "acls", "add", "app", "write", "--topic", "orders")
        assert example.produce("app") == ""
        assert "orders" in example.command("admin", "topics", "list")
        wanted = {("authentication failed", "User:admin"), ("denied", "User:app")}
        wait_until(lambda: wanted <= set(example.events()), "the lines of the audit log")
