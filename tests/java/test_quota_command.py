"""kafka-configs sets, shows and removes quotas of a broker of ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkawire.testing.process import BrokerProcess
from tests.java.conftest import CLASSES
from tests.java.tools import ToolServer

BYTES, PERCENT = "producer_byte_rate=1000000", "request_percentage=12.5"
ENTITIES = [
    (("users", "alice"), BYTES, "user-principal 'alice'"),
    (("clients", "etl"), PERCENT, "client-id 'etl'"),
    (("users", "alice", "clients", "etl"), BYTES, "user-principal 'alice', client-id 'etl'"),
    (("users", ""), PERCENT, "the default user-principal"),
    (("clients", ""), BYTES, "the default client-id"),
    (("users", "", "clients", ""), BYTES, "the default user-principal, the default client-id"),
    (("ips", "10.0.0.7"), "connection_creation_rate=7", "ip '10.0.0.7'"),
    (("ips", ""), "connection_creation_rate=9", "the default ip"),
]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("quotas") / "data") as process:
        yield process.bootstrap


def options(entity: tuple[str, ...]) -> list[str]:
    words: list[str] = []
    for kind, name in zip(entity[::2], entity[1::2], strict=True):
        words += ["--entity-type", kind]
        words += ["--entity-name", name] if name else ["--entity-default"]
    return words


def configs(tools: ToolServer, broker: str, *words: str, code: int = 0) -> str:
    given = ["--bootstrap-server", broker, *words]
    done = tools.run(CLASSES["ConfigCommand"], given, "", 90)
    assert done.code == code, f"{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def test_quotas_are_set_shown_and_removed(tool_server: ToolServer, running: str) -> None:
    for entity, quota, shown in ENTITIES:
        named = options(entity)
        configs(tool_server, running, "--alter", *named, "--add-config", quota)
        found = configs(tool_server, running, "--describe", *named)
        assert f"Quota configs for {shown} are {quota.partition('=')[0]}=" in found
        assert quota.split("=")[1].rstrip("0") in found.replace("1000000.0", "1000000")
    users = configs(tool_server, running, "--describe", "--entity-type", "users")
    assert "user-principal 'alice'" in users
    assert "the default user-principal" in users
    for entity, quota, _ in ENTITIES:
        named = options(entity)
        gone = quota.partition("=")[0]
        configs(tool_server, running, "--alter", *named, "--delete-config", gone)
        assert "Quota configs" not in configs(tool_server, running, "--describe", *named)


def test_invalid_quotas_are_refused(tool_server: ToolServer, running: str) -> None:
    named = options(("users", "alice"))
    refused = configs(
        tool_server, running, "--alter", *named, "--add-config", "producer_byte_rate=-1", code=1
    )
    assert "Quota producer_byte_rate must be greater than 0" in refused
