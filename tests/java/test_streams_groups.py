"""Kafka Streams with group.protocol=streams (KIP-1071): processes that are killed and added, and a
broker that is killed.

To run it against another broker, set there what `SETTINGS` has.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kafkawire.groups.model.records import StreamsGroupRecord, decode_record
from kafkawire.groups.streams.member import read_tasks
from kafkawire.messages.stored import StreamsGroupCurrentMemberAssignmentValue
from tests.java.brokers import TRANSACTIONS, OwnBroker, create_topics, run_broker
from tests.java.children import JavaChild
from tests.java.committed import CommittedReader, partitions_of, read_all
from tests.java.conftest import STREAMS_SETTINGS, Program
from tests.java.streams_tasks import (
    MemberRow,
    Task,
    describe_members,
    owned_twice,
    run_streams_groups,
    set_topic_configs,
    standby_tasks,
    table,
)
from tests.java.test_streams import Writer, by_word, sequences, word
from tests.java.tools import ToolServer
from tests.kit.workers import Workers
from tests.real.conftest import OTHER_BROKER
from tests.real.members import wait_for

SETTINGS = {
    **STREAMS_SETTINGS,
    "group.streams.min.session.timeout.ms": "1000",
    "group.streams.session.timeout.ms": "5000",
}
"""A member that is killed holds its tasks for the session timeout."""
STABLE_S = 120.0
REPARTITION = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "CreateTime",
    "retention.ms": "-1",
    "segment.bytes": "52428800",
}
COUNTS = {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"}
PAIRS = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "CreateTime",
    "retention.ms": str((2 + 1 + 24) * 3_600_000),  # the window, its grace and a day
}


@pytest.fixture
def streams_broker(tmp_path: Path) -> Iterator[OwnBroker]:
    """A broker for this test alone whose streams groups miss dead members soon."""
    with run_broker(tmp_path / "broker", more=SETTINGS) as started:
        yield started


class Group:
    """A streams group, its member processes, and what the tool prints about it."""

    def __init__(
        self, tools: ToolServer, bootstrap: str, name: str, start: Callable[[], JavaChild]
    ) -> None:
        self.name = name
        self.bootstrap = bootstrap
        self.processes: list[JavaChild] = []
        self._tools = tools
        self._start = start

    def add(self) -> JavaChild:
        """Start one more process."""
        child = self._start()
        self.processes.append(child)
        child.start()
        return child

    def kill(self, child: JavaChild) -> None:
        self.processes.remove(child)
        child.kill()

    def members(self) -> list[MemberRow]:
        """Return the members. Fails when two of them own a task."""
        found = describe_members(self._tools, self.bootstrap, self.name)
        assert owned_twice(found) == [], found
        return found

    def wait_until_shared(self, tasks: set[Task], standbys: frozenset[Task] = frozenset()) -> None:
        """Wait until each process has a part of the tasks, all at the target, and the group is
        stable; some of the tasks with a standby in another process."""
        seen: list[MemberRow] = []

        def shared() -> bool:
            for process in self.processes:
                assert process.running, process.output[-4000:]
            seen[:] = self.members()
            owned = [member.tasks.get("ACTIVE", set()) for member in seen]
            return (
                len({member.process for member in seen}) == len(self.processes)
                and all(owned)
                and set[Task]().union(*owned) == tasks
                and all(is_at_target(member) for member in seen)
                and standby_tasks(seen) == standbys
                and self.state() == "Stable"
            )

        wait_for(shared, STABLE_S, lambda: f"{self.state()}: {seen}")

    def state(self) -> str:
        words = ("--describe", "--group", self.name, "--state")
        done = run_streams_groups(self._tools, self.bootstrap, *words)
        return next((row["STATE"] for row in table(done.stdout)), "")

    def lags(self) -> dict[tuple[str, int], str]:
        words = ("--describe", "--group", self.name, "--offsets")
        done = run_streams_groups(self._tools, self.bootstrap, *words)
        return {
            (row["TOPIC"], int(row["PARTITION"])): row["OFFSET-LAG"] for row in table(done.stdout)
        }

    def wait_until_read(self, partitions: set[tuple[str, int]]) -> None:
        """Wait until the tool prints these partitions, and no lag of any."""
        wait_for(
            lambda: self.lags() == dict.fromkeys(partitions, "0"),
            STABLE_S,
            lambda: str(self.lags()),
        )

    def stop(self) -> None:
        for process in self.processes:
            process.stop()
            assert "fatal" not in process.output, process.output[-4000:]
        wait_for(lambda: self.state() == "Empty", STABLE_S, self.state)


def is_at_target(member: MemberRow) -> bool:
    kinds = ("ACTIVE", "STANDBY", "WARMUP")
    tasks = member.tasks
    return all(tasks.get(kind, set()) == tasks.get(f"TARGET-{kind}", set()) for kind in kinds)


STATEFUL = frozenset(("1", partition) for partition in range(4))
"""Tasks of the counts: those of the lines have no state."""


def tasks(*counts: int) -> set[Task]:
    """The tasks of a topology by the numbers of partitions of its subtopologies."""
    return {(str(i), partition) for i, count in enumerate(counts) for partition in range(count)}


def set_group_config(tools: ToolServer, bootstrap: str, group: str, config: str) -> None:
    words = ["--alter", "--entity-type", "groups", "--entity-name", group, "--add-config", config]
    tool = "org.apache.kafka.tools.ConfigCommand"
    done = tools.run(tool, [*words, "--bootstrap-server", bootstrap], "", 90)
    assert done.code == 0, done.stdout + done.stderr


@dataclass
class WordCount:
    """An application that counts words with exactly_once_v2 and standby tasks. After a process is
    killed, others wait for `transaction_timeout_ms`."""

    name: str
    program: Program
    tools: ToolServer
    state: Path
    transaction_timeout_ms: int = 10_000  # as in Kafka Streams

    def run(self, bootstrap: str, *faults: Callable[[], None]) -> None:
        """Kill a process, and add two with the faults in between. Each word is counted once in the
        output and in the changelog."""
        name, lines, output = self.name, f"{self.name}-lines", f"{self.name}-counts"
        create_topics(bootstrap, {lines: 3, output: 2})
        set_group_config(self.tools, bootstrap, name, "streams.num.standby.replicas=1")
        words = (
            bootstrap, name, "exactly_once_v2", "1", "words", str(self.state), lines, output,
            str(self.transaction_timeout_ms),
        )  # fmt: skip
        group = Group(self.tools, bootstrap, name, lambda: self.program("StreamsMember", *words))
        first, _ = group.add(), group.add()
        writer = Writer(bootstrap, lines)
        counts = CommittedReader(bootstrap, output)
        group.wait_until_shared(tasks(3, 4), standbys=STATEFUL)
        counts.more(300)
        group.kill(first)
        counts.more(300)
        group.add()
        group.wait_until_shared(tasks(3, 4), standbys=STATEFUL)
        for fault in faults:
            fault()
            counts.more(300)
        group.add()
        group.wait_until_shared(tasks(3, 4), standbys=STATEFUL)
        expected = writer.finish()
        counts.count(expected.total())
        repartition, changelog = f"{name}-words-repartition", f"{name}-counts-changelog"
        admin = AdminClient({"bootstrap.servers": bootstrap})
        assert partitions_of(admin, repartition, changelog) == [
            (topic, partition) for topic in (repartition, changelog) for partition in range(4)
        ]
        assert set_topic_configs(bootstrap, repartition) == REPARTITION
        assert set_topic_configs(bootstrap, changelog) == COUNTS
        group.stop()
        assert by_word(counts.to_end()) == sequences(expected)
        assert by_word(read_all(bootstrap, changelog)) == sequences(expected)
        repartitioned = Counter(word(m) for m in read_all(bootstrap, repartition))
        assert repartitioned == expected


@pytest.fixture
def word_count(
    newer_program: Program, newer_tools: ToolServer, tmp_path: Path, name: str
) -> WordCount:
    return WordCount(name, newer_program, newer_tools, tmp_path / "state")


def test_word_count_is_exact(word_count: WordCount, streams_broker: OwnBroker) -> None:
    """The broker is killed."""
    word_count.run(streams_broker.bootstrap, streams_broker.crash)


@pytest.mark.skipif(bool(OTHER_BROKER), reason="kills workers of kafkawire")
def test_word_count_is_exact_with_workers(word_count: WordCount, tmp_path: Path) -> None:
    """The group moves: both workers of a broker are killed, one after the other."""
    with Workers(tmp_path / "broker", settings={**TRANSACTIONS, **SETTINGS}) as workers:

        def kill(node: int) -> None:
            workers.wait_for_worker(node, workers.kill_worker(node))

        word_count.run(workers.bootstrap, lambda: kill(1), lambda: kill(2))


@pytest.mark.skipif(bool(OTHER_BROKER), reason="Kafka 4.4 assigns no warm-up task")
def test_tasks_move_once_they_are_restored(
    newer_program: Program, newer_tools: ToolServer, tmp_path: Path, name: str
) -> None:
    """A second process restores each task with state before it runs it. Both are static members:
    the second one is started again, and has the same tasks. Each word is counted once."""
    lines, output = f"{name}-lines", f"{name}-counts"
    settings = {
        **STREAMS_SETTINGS,
        "group.streams.min.task.offset.interval.ms": "500",
        "group.streams.task.offset.interval.ms": "500",
    }
    instances = iter(("one", "two"))
    with run_broker(tmp_path / "broker", more=settings) as broker:
        create_topics(broker.bootstrap, {lines: 3, output: 2})

        def start() -> JavaChild:
            words = (
                broker.bootstrap,
                name,
                "exactly_once_v2",
                "1",
                "words",
                str(tmp_path / "state"),
            )
            return newer_program("StreamsMember", *words, lines, output, "10000", next(instances))

        group = Group(newer_tools, broker.bootstrap, name, start)
        group.add()
        writer = Writer(broker.bootstrap, lines)
        counts = CommittedReader(broker.bootstrap, output)
        group.wait_until_shared(tasks(3, 4))
        counts.more(600)
        (first,) = group.members()
        second = group.add()
        group.wait_until_shared(tasks(3, 4))
        check_restored(read_assignments(broker.bootstrap, name), but=first.member)
        before = active_tasks(group)
        second.stop()
        assert active_tasks(group) == before
        second.start()
        second.wait_for_line("state RUNNING", count=2)
        group.wait_until_shared(tasks(3, 4))
        assert active_tasks(group) == before
        counts.more(300)
        expected = writer.finish()
        counts.count(expected.total())
        for process in group.processes:
            process.stop()
            assert "fatal" not in process.output, process.output[-4000:]
        assert by_word(counts.to_end()) == sequences(expected)
        assert by_word(read_all(broker.bootstrap, f"{name}-counts-changelog")) == sequences(
            expected
        )


def active_tasks(group: Group) -> list[list[Task]]:
    """Return the active tasks of each member. A static one that is started again has a new id."""
    return sorted(sorted(member.tasks.get("ACTIVE", ())) for member in group.members())


def read_assignments(
    bootstrap: str, group: str
) -> list[tuple[str, StreamsGroupCurrentMemberAssignmentValue]]:
    """Return the tasks that members had, with their ids, in the order of the records."""
    found = []
    for message in read_all(bootstrap, "__consumer_offsets"):
        record = decode_record(message.key(), message.value())
        if not isinstance(record, StreamsGroupRecord) or record.group_id != group:
            continue
        if isinstance(record.value, StreamsGroupCurrentMemberAssignmentValue):
            found.append((record.name, record.value))
    return found


def check_restored(
    assignments: list[tuple[str, StreamsGroupCurrentMemberAssignmentValue]], but: str
) -> None:
    """Check that members, `but` one, had each task with state as a warm-up task before they ran
    it, and at most two at once."""
    restored: set[tuple[str, Task]] = set()
    moved = 0
    for member, value in assignments:
        warm = read_tasks(value.warmup_tasks)
        assert len(warm) <= 2
        restored |= {(member, task) for task in warm}
        for task in read_tasks(value.active_tasks) & STATEFUL if member != but else ():
            assert (member, task) in restored, f"{task} moved to {member} before it was restored"
            moved += 1
    assert moved, assignments


class PairWriter(threading.Thread):
    """Writes the two records of numbered pairs, a few hundred a second, until it is stopped."""

    def __init__(self, bootstrap: str, left: str, right: str) -> None:
        super().__init__(daemon=True)
        self.count = 0
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True}
        # Of Java's clients: keys of a join must be in the same partition of both topics.
        self._producer = Producer({**settings, "partitioner": "murmur2_random"})
        self._left, self._right = left, right
        self._stop_asked = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._stop_asked.is_set():
            key = b"%d" % self.count
            self._producer.produce(self._left, key + b",left")
            self._producer.produce(self._right, b"right", key)
            self.count += 1
            self._producer.poll(0)
            time.sleep(0.004)

    def finish(self) -> int:
        """Stop, and return the number of pairs."""
        self._stop_asked.set()
        self.join(30)
        assert self._producer.flush(60) == 0
        return self.count


def test_join_misses_nothing(
    streams_broker: OwnBroker, program: Program, tool_server: ToolServer, tmp_path: Path, name: str
) -> None:
    """at_least_once with a windowed join, client and tool of Kafka 4.3: each pair is found, also
    where a process with two threads is killed or added."""
    bootstrap = streams_broker.bootstrap
    left, right, joined = f"{name}-left", f"{name}-right", f"{name}-joined"
    create_topics(bootstrap, {left: 2, right: 4, joined: 2})

    def start() -> JavaChild:
        words = (bootstrap, name, "at_least_once", "2", "join", str(tmp_path / "state"))
        return program("StreamsMember", *words, left, right, joined)

    group = Group(tool_server, bootstrap, name, start)
    first = group.add()
    writer = PairWriter(bootstrap, left, right)
    pairs = CommittedReader(bootstrap, joined)
    group.wait_until_shared(tasks(2, 4))
    pairs.more(200)
    group.add()
    group.wait_until_shared(tasks(2, 4))
    pairs.more(200)
    group.kill(first)
    pairs.more(200)
    group.add()
    group.wait_until_shared(tasks(2, 4))
    expected = {(b"%d" % i, b"%d,left|right" % i) for i in range(writer.finish())}
    pairs.wait_for(lambda records: len({m.key() for m in records}) >= len(expected))
    assert {(m.key(), m.value()) for m in pairs.to_end()} == expected
    repartition = f"{name}-pairs-left-repartition"
    sources = {left: 2, right: 4, repartition: 4}
    group.wait_until_read({(topic, p) for topic, count in sources.items() for p in range(count)})
    stores = [f"{name}-pairs-{side}-join-store-changelog" for side in ("this", "other")]
    for topic, configs in zip([repartition, *stores], [REPARTITION, PAIRS, PAIRS], strict=True):
        assert len(partitions_of(AdminClient({"bootstrap.servers": bootstrap}), topic)) == 4
        assert set_topic_configs(bootstrap, topic) == configs
    group.stop()
