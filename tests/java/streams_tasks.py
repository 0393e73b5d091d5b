"""Tasks of streams groups as `kafka-streams-groups` prints them, and topics that groups make."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tests.java.tools import Done, ToolServer

STREAMS_GROUPS = "org.apache.kafka.tools.streams.StreamsGroupCommand"
KIND = re.compile(r"(TARGET-ACTIVE|TARGET-STANDBY|TARGET-WARMUP|ACTIVE|STANDBY|WARMUP): ([^A-Z]*)")
SUBTOPOLOGY = re.compile(r"(\S+):\[([0-9,]*)\]")

Task = tuple[str, int]
"""A subtopology and a partition."""


@dataclass
class MemberRow:
    """A row of `--describe --members --verbose`."""

    member: str
    process: str
    epoch: int
    tasks: dict[str, set[Task]]
    """Tasks by their kind: ACTIVE, STANDBY, WARMUP, and the same of the target."""


def run_streams_groups(tools: ToolServer, bootstrap: str, *words: str) -> Done:
    return tools.run(STREAMS_GROUPS, [*words, "--bootstrap-server", bootstrap], "", 90)


def table(output: str) -> list[dict[str, str]]:
    """Return the rows of a table by its header. The last column has all further words."""
    lines = [line.replace(" (", "(") for line in output.splitlines() if line.strip()]
    head = next((i for i, line in enumerate(lines) if line.startswith("GROUP ")), None)
    if head is None:
        return []
    names = lines[head].split()
    rows = [line.split(None, len(names) - 1) for line in lines[head + 1 :]]
    return [dict(zip(names, row, strict=False)) for row in rows]


def tasks_of(text: str) -> set[Task]:
    """Return the tasks of a text like "0:[0,1]; 1:[2]; "."""
    return {
        (subtopology, int(partition))
        for subtopology, partitions in SUBTOPOLOGY.findall(text)
        for partition in partitions.split(",")
        if partition
    }


def describe_members(tools: ToolServer, bootstrap: str, group: str) -> list[MemberRow]:
    """Return the members of a group, none while it does not exist."""
    words = ("--describe", "--group", group, "--members", "--verbose")
    done = run_streams_groups(tools, bootstrap, *words)
    return [
        MemberRow(
            row["MEMBER"],
            row["PROCESS"],
            int(row["MEMBER-EPOCH"]),
            {kind: tasks_of(text) for kind, text in KIND.findall(row.get("ASSIGNMENTS", ""))},
        )
        for row in table(done.stdout)
    ]


def owned_twice(members: list[MemberRow]) -> list[Task]:
    """Return active tasks with several owners."""
    owners = Counter(task for member in members for task in member.tasks.get("ACTIVE", ()))
    return [task for task, count in owners.items() if count > 1]


def standby_tasks(members: list[MemberRow]) -> set[Task]:
    """Return active tasks that have a standby in another process."""
    standbys = {(m.process, task) for m in members for task in m.tasks.get("STANDBY", ())}
    return {
        task
        for member in members
        for task in member.tasks.get("ACTIVE", ())
        if any(process != member.process for process, other in standbys if other == task)
    }


def set_topic_configs(bootstrap: str, topic: str) -> dict[str, str]:
    """Return the settings that a topic has of its own, without those that the cluster gives each
    topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (answer,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    of_topic = 1
    return {
        entry.name: entry.value
        for entry in answer.result(60).values()
        if entry.source == of_topic and entry.name not in ("min.insync.replicas", "durability")
    }
