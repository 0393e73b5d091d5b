"""`kafka-streams-groups` of Kafka 4.4 against Kafka 4.4 and ours: its output is compared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.java.brokers import create_topics, run_broker
from tests.java.children import JavaChild
from tests.java.conftest import CLASSES, STREAMS_SETTINGS, TOOLS, Program
from tests.java.streams_tasks import (
    describe_members,
    run_streams_groups,
    table,
    tasks_of,
)
from tests.java.tools import ToolServer
from tests.real.conftest import OTHER_BROKER, START_MS
from tests.real.members import wait_for

DESCRIBE = (
    "",
    "--verbose",
    "--offsets",
    "--members",
    "--members --verbose",
    "--state",
    "--state --verbose",
    "--topology",
)
OTHER_TOOLS = {
    "groups": TOOLS + "GroupsCommand",
    "consumer-groups": CLASSES["ConsumerGroupCommand"],
    "share-groups": CLASSES["ShareGroupCommand"],
}
OF_OTHER_TOOLS = (
    "groups --list",
    "consumer-groups --list",
    *(
        f"{tool} --{action} --group GROUP"
        for tool in ("consumer-groups", "share-groups")
        for action in ("describe", "describe --state", "describe --members", "delete")
    ),
    "consumer-groups --reset-offsets --group GROUP --topic LINES --to-earliest --dry-run",
    "consumer-groups --delete-offsets --group GROUP --topic LINES",
    "share-groups --delete-offsets --group GROUP --topic LINES",
)
RUNNING = (
    *OF_OTHER_TOOLS,
    "--list",
    "--list --state",
    "--list --state Stable",
    "--list --state empty,DEAD",
    "--list --state odd",
    *(f"--describe --group GROUP {more}" for more in DESCRIBE),
    "--delete --group GROUP",
    "--delete --group GROUP --delete-all-internal-topics",
    "--delete-offsets --group GROUP --input-topic LINES",
    "--delete-offsets --group GROUP --all-input-topics",
    "--delete-offsets --group GROUP --input-topic no-such",
    "--reset-offsets --group GROUP --all-input-topics --to-earliest --dry-run",
    "--reset-offsets --group GROUP --input-topic LINES --to-latest --execute",
)
"""While a member has all tasks. GROUP and LINES are names of the group and of its topic."""

UNKNOWN = (
    *(f"--describe --group no-such {more}" for more in DESCRIBE[:-1]),
    "--delete --group no-such",
    "--delete-offsets --group no-such --input-topic LINES",
    "--delete-offsets --group no-such --all-input-topics",
    "--reset-offsets --group no-such --all-input-topics --to-earliest --dry-run",
    "--reset-offsets --group no-such --input-topic LINES --to-earliest --dry-run",
)
RESET = "--reset-offsets --group GROUP "
EMPTY = (
    *(call for call in OF_OTHER_TOOLS[:-3] if "--delete" not in call),
    "--list",
    "--list --state",
    "--list --state Empty,Dead",
    *(f"--describe --group GROUP {more}" for more in DESCRIBE),
    *(
        RESET + f"--all-input-topics --dry-run {more}"
        for more in (
            "--to-earliest",
            "--to-latest",
            "--to-current",
            "--to-offset 1",
            "--to-offset 99",
            "--shift-by -1",
            "--shift-by 99",
            "--to-datetime TIME",
            "--by-duration PT2H",
            "--to-earliest --export",
        )
    ),
    RESET + "--input-topic LINES:0,2 --to-offset 1 --dry-run",
    RESET + "--input-topic LINES:0 --to-offset 1 --execute",
    RESET + "--input-topic LINES:7 --to-offset 1 --dry-run",
    RESET + "--input-topic no-such --to-earliest --dry-run",
    RESET + "--all-input-topics --to-current --dry-run",
    RESET + "--from-file FILE --dry-run",
    RESET + "--from-file FILE --execute",
    RESET + "--all-input-topics --to-current --dry-run",
    RESET + "--all-input-topics --to-earliest --execute --delete-internal-topic no-such",
    RESET + "--all-input-topics --to-earliest --execute --delete-internal-topic GROUP-c",
    "topics",
    "--delete-offsets --group GROUP --input-topic no-such",
    "--delete-offsets --group GROUP --input-topic LINES:1",
    "--delete-offsets --group GROUP --input-topic LINES",
    RESET + "--all-input-topics --to-current --dry-run",
    RESET + "--all-input-topics --to-earliest --execute",
    RESET + "--input-topic LINES --to-latest --execute",
    "--delete-offsets --group GROUP --all-input-topics",
    RESET + "--input-topic LINES --to-latest --execute --delete-all-internal-topics",
    "topics",
    "--delete --group GROUP",
    "--delete --group GROUP",
    "--list",
)
"""After the member has left. "topics" lists those of the group."""

RESTARTED = (
    "topics",
    "--delete --group GROUP --delete-all-internal-topics",
    "topics",
    "--list",
    "consumer-groups --reset-offsets --group GROUP --topic LINES --to-earliest --execute",
    "--list",
    "--describe --group GROUP",
    "--describe --group GROUP --state",
    "--reset-offsets --group GROUP --all-input-topics --to-earliest --dry-run",
    "--delete --group GROUP",
    "groups --list",
)
"""After another one has been there for a moment. In the end there is a classic group instead."""


@dataclass
class Side:
    """A broker with a streams group."""

    address: str
    member: JavaChild
    tools: ToolServer
    group: str
    lines: str
    offsets: Path

    def answer(self, call: str) -> list[str]:
        """Return the lines of a tool's answer, sorted, without what differs in any two brokers."""
        if call == "topics":
            admin = AdminClient({"bootstrap.servers": self.address})
            found = admin.list_topics(timeout=60).topics
            return sorted(name for name in found if name.startswith(self.group + "-"))
        names = {"GROUP-c": f"{self.group}-counts-changelog"}
        moment = datetime.fromtimestamp(START_MS / 1000 + 2.5, UTC)
        names["TIME"] = moment.replace(tzinfo=None).isoformat(timespec="milliseconds")
        names |= {"GROUP": self.group, "LINES": self.lines, "FILE": str(self.offsets)}
        words = [re.sub(r"^LINES(?=:)", self.lines, names.get(w, w)) for w in call.split()]
        if words[0] in OTHER_TOOLS:
            words += ["--bootstrap-server", self.address]
            done = self.tools.run(OTHER_TOOLS[words[0]], words[1:], "", 90)
        else:
            done = run_streams_groups(self.tools, self.address, *words)
        lines = [f"code {done.code}", *done.stdout.splitlines(), *done.stderr.splitlines()]
        if "--list" in call and done.code == 0:  # there may be other groups
            lines = [line for line in lines if "GROUP" in line or self.group in line]
        return sorted(self.hide(line) for line in lines if not re.match(r"\s+(at |\.\.\.)", line))

    def hide(self, line: str) -> str:
        # Without a fetch session an answer without records makes clients forget the leader epoch
        # of their position, which they commit.
        line = re.sub(r"(\d+\s+[0-9-]+)\s+[0-9-]+(?=\s+\d+\s+\d+\s*$)", r"\1 EPOCH", line)
        line = re.sub(re.escape(self.address) + r" \(\d+\)", "ADDRESS", line)
        line = re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UUID", line)
        line = re.sub(r"(?<=\s)[A-Za-z0-9_-]{22}(?=\s)", "ID", line)
        return " ".join(line.split())

    def start(self) -> None:
        """Start the member, and wait until it has all tasks."""
        self.member.start()

        def has_all() -> bool:
            assert self.member.running, self.member.output[-4000:]
            members = describe_members(self.tools, self.address, self.group)
            return [m.tasks.get("ACTIVE") for m in members] == [tasks_of("0:[0,1,2] 1:[0,1,2,3]")]

        wait_for(has_all, what=lambda: self.member.output[-4000:])

    def wait_for_commits(self) -> None:
        """Wait until all records are read."""
        words = ("--describe", "--group", self.group)

        def lags() -> list[str]:
            rows = table(run_streams_groups(self.tools, self.address, *words).stdout)
            return [row["OFFSET-LAG"] for row in rows]

        wait_for(lambda: lags() == ["0"] * 7, what=lambda: str(lags()))

    def stop(self) -> None:
        """Stop the member, and wait until the group is empty."""
        self.member.stop()

        def empty() -> bool:
            done = run_streams_groups(self.tools, self.address, "--list", "--state", "Empty")
            return self.group in [row["GROUP"] for row in table(done.stdout)]

        wait_for(empty)


@pytest.fixture
def both(
    newer_kafka: str, newer_program: Program, newer_tools: ToolServer, tmp_path: Path, name: str
) -> Iterator[list[Side]]:
    """Apache Kafka and ours with the same group and the same records."""
    if OTHER_BROKER:
        pytest.skip("compares ours with Apache Kafka")
    lines, counts = f"{name}-lines", f"{name}-counts"
    offsets = tmp_path / "offsets.csv"
    offsets.write_text(f"{lines},0,1\n{lines},1,0\n")
    with run_broker(tmp_path / "broker", more=STREAMS_SETTINGS) as ours:
        sides = []
        for address in (newer_kafka, ours.bootstrap):
            create_topics(address, {lines: 3, counts: 2})
            producer = Producer({"bootstrap.servers": address})
            for i in range(12):
                at = START_MS + i * 1000
                producer.produce(lines, b"a b c", partition=i % 3, timestamp=at)
            assert producer.flush(60) == 0
            # Not exactly_once_v2: markers of transactions take offsets, as many as the clock says.
            words = (address, name, "at_least_once", "1", "words", str(tmp_path / "state"))
            member = newer_program("StreamsMember", *words, lines, counts, "10000")
            sides.append(Side(address, member, newer_tools, name, lines, offsets))
        yield sides


def differences(sides: list[Side], calls: tuple[str, ...]) -> dict[str, tuple[object, object]]:
    """Run the calls against both; return what only Apache Kafka, and what only ours printed."""
    found: dict[str, tuple[object, object]] = {}
    for number, call in enumerate(calls):
        kafka, ours = (side.answer(call) for side in sides)
        if kafka != ours:
            left = [line for line in kafka if line not in ours]
            found[f"{number}: {call}"] = left, [line for line in ours if line not in kafka]
    return found


def test_tool_prints_the_same(both: list[Side]) -> None:
    for side in both:
        side.start()
        side.wait_for_commits()
    found = differences(both, RUNNING + UNKNOWN)
    for side in both:
        side.stop()
    found |= differences(both, EMPTY)
    for side in both:
        side.start()
        side.stop()
    found |= differences(both, RESTARTED)
    assert not found, "\n".join(f"{call}: {lines}" for call, lines in found.items())
