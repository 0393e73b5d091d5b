"""kafka-acls against a broker of ours that enforces rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.testing.process import BrokerProcess
from tests.java.tools import ToolServer

SETTINGS = {"authorizer": "acl", "super.users": "User:ANONYMOUS"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("acls") / "data", settings=SETTINGS) as process:
        yield process.bootstrap


def test_rules_are_added_listed_and_removed(
    tool_server: ToolServer, guarded: str, tmp_path: Path
) -> None:
    def acls(*words: str) -> str:
        given = ["--bootstrap-server", guarded, *words]
        done = tool_server.run("org.apache.kafka.tools.AclCommand", given, "", 90)
        assert done.code == 0, f"{done.stdout}{done.stderr}"
        return done.stdout

    assert acls("--list").strip() == ""
    acls("--add", "--allow-principal", "User:alice", "--producer", "--topic", "orders")
    acls("--add", "--allow-principal", "User:alice", "--consumer", "--topic", "orders",
         "--group", "g")  # fmt: skip
    acls("--add", "--deny-principal", "User:*", "--deny-host", "10.0.0.1", "--operation", "All",
         "--topic", "sec", "--resource-pattern-type", "prefixed")  # fmt: skip
    listed = acls("--list")
    assert "resourceType=TOPIC, name=orders, patternType=LITERAL" in listed
    assert "(principal=User:alice, host=*, operation=WRITE, permissionType=ALLOW)" in listed
    assert "(principal=User:*, host=10.0.0.1, operation=ALL, permissionType=DENY)" in listed
    assert "name=sec, patternType=PREFIXED" in acls(
        "--list", "--topic", "secret", "--resource-pattern-type", "match"
    )
    acls("--remove", "--force", "--topic", "orders")
    assert "orders" not in acls("--list")
    assert "name=g, patternType=LITERAL" in acls("--list")
