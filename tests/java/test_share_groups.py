"""Share groups with Java's KafkaShareConsumer and kafka-share-groups (KIP-932)."""

from __future__ import annotations

from tests.java.conftest import Tool
from tests.java.test_tools import fill
from tests.real.conftest import MakeTopic


def rows(table: str) -> list[dict[str, str]]:
    """The rows of a tool's table by its header line."""
    lines = [line.split() for line in table.splitlines() if line.strip()]
    head = next(i for i, line in enumerate(lines) if line[0] == "GROUP")
    return [dict(zip(lines[head], line, strict=False)) for line in lines[head + 1 :]]


def test_share_consumer_and_tool(
    tool: Tool, make_topic: MakeTopic, bootstrap: str, name: str
) -> None:
    topic = make_topic(3)
    place = ("--entity-type", "groups", "--entity-name", name)
    tool("ConfigCommand", "--alter", *place, "--add-config", "share.auto.offset.reset=earliest")
    fill(bootstrap, topic, 30, 3)
    limits = ("--max-messages", "30", "--timeout-ms", "60000")
    found = tool("ConsoleShareConsumer", "--topic", topic, "--group", name, *limits)
    assert sorted(map(int, found.split())) == list(range(30))
    assert name in tool("ShareGroupCommand", "--list").split()
    described = rows(tool("ShareGroupCommand", "--describe", "--group", name))
    assert {(row["TOPIC"], row["START-OFFSET"], row["LAG"]) for row in described} == {
        (topic, "10", "0")
    }
    assert "Empty" in tool("ShareGroupCommand", "--describe", "--group", name, "--state")
    # Three of the records again, and then all of a group without offsets.
    reset = ("--reset-offsets", "--group", name, "--topic", topic, "--execute")
    tool("ShareGroupCommand", *reset, "--to-earliest")
    described = rows(tool("ShareGroupCommand", "--describe", "--group", name))
    assert {(row["START-OFFSET"], row["LAG"]) for row in described} == {("0", "10")}
    found = tool("ConsoleShareConsumer", "--topic", topic, "--group", name, *limits)
    assert sorted(map(int, found.split())) == list(range(30))
    offsets = ("--delete-offsets", "--group", name, "--topic", topic)
    assert "Successful" in tool("ShareGroupCommand", *offsets)
    assert "successful" in tool("ShareGroupCommand", "--delete", "--group", name)
    assert name not in tool("ShareGroupCommand", "--list").split()
