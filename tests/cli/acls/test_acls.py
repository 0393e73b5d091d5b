"""`kafkawire acls` with a broker that enforces rules.

Covers: kafkawire.cli.acls, kafkawire.client.acls.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed, no_environment  # noqa: F401  (a fixture)
from tests.kit.json_schema import check_document

SETTINGS = {"authorizer": "acl", "super.users": "User:ANONYMOUS;User:root"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("acls") / "data", settings=SETTINGS) as process:
        yield process.bootstrap


@pytest.mark.real
def test_rules_are_added_listed_explained_and_removed(server: str) -> None:
    def typed(*words: str) -> Typed:
        return Typed(server, "acls", *words)

    assert typed("list", "--json").json == []
    assert typed("add", "alice", "read", "Describe", "--topic", "orders").out == (
        "added 2 access rules\n"
    )
    assert not typed("add", "*", "all", "--topic", "sec", "--prefixed", "--deny").code
    assert not typed("add", "Group:ops", "alter-configs", "--cluster", "--host", "10.0.0.7").code
    assert not typed("add", "bob", "all", "--group", "*").code
    rows = check_document(typed("list", "--json").out)
    assert len(rows) == 5
    assert rows[-1] == {
        "principal": "Group:ops", "permission": "allow", "operation": "alter_configs",
        "resource": "cluster", "name": "kafka-cluster", "pattern": "literal", "host": "10.0.0.7",
    }  # fmt: skip
    assert len(typed("list", "--user", "alice", "--json").json) == 2
    assert len(typed("list", "--topic", "secret", "--json").json) == 1
    assert "orders" in typed("list", "--topic", "orders").out

    explained = typed("explain", "alice", "orders", "read")
    assert explained.out == (
        "User:alice may read topic orders from 127.0.0.1: User:alice may read topic orders "
        "(literal)\n"
    )
    assert "may not write topic orders from 127.0.0.1: no rule allows it" in (
        typed("explain", "alice", "orders", "write").out
    )
    assert "User:* may not all topic sec (prefixed)" in (
        typed("explain", "alice", "secret", "describe").out
    )
    assert "super.users" in typed("explain", "root", "secret", "describe").out
    found = check_document(typed("explain", "bob", "g", "read", "--type", "group", "--json").out)
    assert (found["allowed"], found["rule"]["name"], found["reason"]) == (True, "*", None)

    assert typed("remove", "alice", "read", "--topic", "orders").out == "removed 1 access rule\n"
    again = typed("remove", "alice", "read", "--topic", "orders")
    assert (again.code, "no such access rule" in again.err) == (1, True)


@pytest.mark.real
def test_partitions_of_a_created_topic_are_unknown_without_a_right(tmp_path: Path) -> None:
    rules = [("alice", "Create", "topic:orders")]
    with BrokerProcess(tmp_path / "data", users={"alice": "secret"}, acls=rules) as broker:
        settings = broker.client_settings("alice")
        file = tmp_path / "client.properties"
        file.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
        to = ("--command-config", str(file), "topics", "create", "orders", "--partitions", "3")
        (created,) = Typed(settings["bootstrap.servers"], *to, "--json").json
    assert created["partitions"] is None


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("add", "alice", "fly", "--topic", "t"), "OPERATION=fly"),
        (("add", "alice", "read"), "exactly one of --topic"),
        (("add", "alice", "read", "--topic", "t", "--cluster"), "exactly one of --topic"),
        (("add", "alice", "write", "--group", "g"), "one of all, read, delete"),
        (("explain", "alice", "t", "read", "--type", "table"), "--type=table"),
    ],
)
def test_wrong_words_are_refused(words: tuple[str, ...], text: str) -> None:
    done = Typed("127.0.0.1:1", "acls", *words)
    assert done.code == 2
    assert text in done.err.replace("\n", " ")
