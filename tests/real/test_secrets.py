"""No secret is in anything that the broker and its commands print, or that clients can read.

Every kind of secret is given a value that occurs nowhere else; then all output is searched for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)

from kafkawire.testing.process import BrokerProcess
from tests.kit.ports import free_ports
from tests.kit.tls import certificates
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.real

SECRETS = {
    name: f"hidden-{name}-value"
    for name in ("scram", "plain", "wrong", "monitor", "token-key", "new-key", "s3")
}


class Case:
    """A broker with every kind of secret, and all that it and its commands have printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[str] = []
        sasl, self.metrics = free_ports(2)
        self.sasl = f"127.0.0.1:{sasl}"
        self.users = self.file("users", f"bob:{SECRETS['plain']}\n")
        self.monitors = self.file("monitors", SECRETS["monitor"] + "\n")
        self.password = self.file("password", SECRETS["scram"] + "\n")
        self.environ = {
            "KAFKAWIRE_SET_DELEGATION_TOKEN_SECRET_KEY": SECRETS["token-key"],
            "AWS_SECRET_ACCESS_KEY": SECRETS["s3"],
        }
        self.settings = {
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256", "sasl.plain.users.file": self.users,
            "metrics.listener": f"127.0.0.1:{self.metrics}", "metrics.token.file": self.monitors,
            "audit.log": folder / "audit", "authorizer": "acl", "super.users": "User:ANONYMOUS",
            "ssl.keystore.location": certificates() / "server.pem",
            "ssl.key.location": certificates() / "server.key",
        }  # fmt: skip

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o600)
        return path

    def command(self, *words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "kafkawire", *words], capture_output=True, text=True,
            env=os.environ | self.environ, timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self.seen.append(f"{words} ended with {done.returncode}\n{done.stdout}{done.stderr}")

    def check(self) -> None:
        for name, value in SECRETS.items():
            for form in (value, b64encode(value.encode()).decode(), value.encode().hex()):
                found = [text for text in self.seen if form in text]
                assert not found, f"the secret {name} is printed: {found[0][:2000]}"


def log_ins(case: Case) -> None:
    """Log in with each mechanism, with right and with wrong passwords."""
    for mechanism, user, password in (
        ("SCRAM-SHA-256", "alice", SECRETS["scram"]),
        ("SCRAM-SHA-256", "alice", SECRETS["wrong"]),
        ("PLAIN", "bob", SECRETS["plain"]),
        ("PLAIN", "bob", SECRETS["wrong"]),
        ("PLAIN", "carol\n", SECRETS["wrong"]),
    ):
        errors: list[Any] = []
        client = confluent_kafka.Producer(
            {
                "bootstrap.servers": case.sasl, "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password,
                "error_cb": errors.append, "log_level": 0,
            }
        )  # fmt: skip
        ended: Callable[[], bool] = _ended(client, errors)
        wait_until(ended, f"the end of the log-in of {user!r}")


def _ended(client: Any, errors: list[Any]) -> Callable[[], bool]:
    def ended() -> bool:
        client.poll(0.05)
        if any(each.code() == confluent_kafka.KafkaError._AUTHENTICATION for each in errors):
            return True
        try:
            return bool(client.list_topics(timeout=0.5).brokers)
        except confluent_kafka.KafkaException:
            return False

    return ended


def configs(case: Case, server: str) -> None:
    """Describe all settings of the broker; try to change the secret one in each way."""
    admin = AdminClient({"bootstrap.servers": server})
    broker = ConfigResource(ConfigResource.Type.BROKER, "1")
    (described,) = admin.describe_configs([broker]).values()
    entries = described.result(30)
    case.seen.append(repr([(each.name, each.value) for each in entries.values()]))
    assert entries["delegation.token.secret.key"].value is None
    kinds = AlterConfigOpType
    for operation in (kinds.SET, kinds.APPEND, kinds.SUBTRACT):
        change = ConfigEntry(
            "delegation.token.secret.key", SECRETS["new-key"],
            source=ConfigSource.DYNAMIC_BROKER_CONFIG, incremental_operation=operation,
        )  # fmt: skip
        resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[change])
        (done,) = admin.incremental_alter_configs([resource]).values()
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            done.result(30)
        case.seen.append(str(refused.value))


def pages(case: Case) -> None:
    """Read the page of metrics with the token and with others."""
    for token in (SECRETS["monitor"], SECRETS["wrong"]):
        request = urllib.request.Request(
            f"http://127.0.0.1:{case.metrics}/metrics", headers={"Authorization": f"Bearer {token}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                code, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            code, text = refused.code, refused.read().decode()
        assert code == (200 if token == SECRETS["monitor"] else 401)
        case.seen.append(text)


def test_secrets_are_in_no_output(tmp_path: Path) -> None:
    case = Case(tmp_path)
    with BrokerProcess(
        tmp_path / "data", settings=case.settings, environ=case.environ,
        listeners=[f"SASL_PLAINTEXT://{case.sasl}"],
    ) as process:  # fmt: skip
        server = ("--server", process.bootstrap)
        case.command("users", "create", "alice", "--password-file", str(case.password), *server)
        assert "ended with 0" in case.seen[-1]
        case.command("users", "create", "alice", "--password-file", str(case.password), *server)
        log_ins(case)
        configs(case, process.bootstrap)
        pages(case)
        for words in (("users", "list"), ("acls", "list"), ("quotas", "list"), ("doctor",)):
            case.command(*words, *server)
            case.command(*words, "--json", *server)
        fixed = [f"{name}={value}" for name, value in case.settings.items()]
        options = [word for each in fixed for word in ("--set", each)]
        case.command("serve", "--show-config", "--data", str(tmp_path / "data"), *options)
        assert "delegation.token.secret.key" in case.seen[-1]
        case.users.write_text(f"{SECRETS['plain']}\n")  # a file with an error, which is reported
        case.command("serve", "--data", str(tmp_path / "other"), *options, "--listen",
                     f"SASL_PLAINTEXT://{case.sasl}")  # fmt: skip
        process.stop()
        case.seen.append(process.output)
        case.seen.append((tmp_path / "audit").read_text())
        assert "authentication" in case.seen[-1]
    case.check()
