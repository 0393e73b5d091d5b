"""Kafka's own tools with log-ins: users of kafka-configs, topics and records after a log-in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.testing.process import BrokerProcess
from tests.java.conftest import run_tool as run
from tests.java.tools import ToolServer
from tests.kit.ports import free_port

PASSWORD = "alice-secret"


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, str]]:
    address = f"127.0.0.1:{free_port()}"
    settings = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "group.initial.rebalance.delay.ms": 0, "connections.max.reauth.ms": 5000,
    }  # fmt: skip
    with BrokerProcess(
        tmp_path_factory.mktemp("sasl") / "data", settings=settings,
        listeners=[f"SASL_PLAINTEXT://{address}"],
    ) as process:  # fmt: skip
        yield process, address
        assert PASSWORD not in process.output


def client(folder: Path, mechanism: str, password: str = PASSWORD) -> str:
    kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    module = f"org.apache.kafka.common.security.{kind}LoginModule"
    file = folder / f"{mechanism}.properties"
    file.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f'sasl.jaas.config={module} required username="alice" password="{password}";\n'
    )
    return str(file)


def test_tools_log_in(
    tool_server: ToolServer, brokers: tuple[BrokerProcess, str], tmp_path: Path
) -> None:
    process, address = brokers
    user = ("--entity-type", "users", "--entity-name", "alice")
    for kind in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        add = f"{kind}=[iterations=8192,password={PASSWORD}]"
        run(tool_server, process.bootstrap, "ConfigCommand", "--alter", *user, "--add-config", add)
    shown = run(tool_server, process.bootstrap, "ConfigCommand", "--describe", *user)
    assert "SCRAM-SHA-512=iterations=8192" in shown
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        config = ("--command-config", client(tmp_path, mechanism))
        topic = f"t-{mechanism}"
        run(tool_server, address, "TopicCommand", "--create", "--topic", topic, *config)
        assert topic in run(tool_server, address, "TopicCommand", "--list", *config)
        sent = ("--topic", topic, "--producer.config", config[1])
        run(tool_server, address, "ConsoleProducer", *sent, data="one\n")
        read = ["--topic", topic, "--from-beginning", "--max-messages", "1"]
        read += ["--timeout-ms", "60000", "--consumer.config", config[1]]
        assert "one" in run(tool_server, address, "ConsoleConsumer", *read)
    for kind in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        remove = ("--alter", *user, "--delete-config", kind)
        run(tool_server, process.bootstrap, "ConfigCommand", *remove)
    shown = run(tool_server, process.bootstrap, "ConfigCommand", "--describe", *user)
    assert "SCRAM" not in shown


def test_wrong_password_is_said(
    tool_server: ToolServer, brokers: tuple[BrokerProcess, str], tmp_path: Path
) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        config = ("--command-config", client(tmp_path, mechanism, "wrong"))
        refused = run(tool_server, brokers[1], "TopicCommand", "--list", *config, code=1)
        assert "SaslAuthenticationException" in refused
