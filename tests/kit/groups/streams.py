"""Streams groups, called directly: a shard, and topics that tests create if a group lacks them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kafkawire.groups.model.decision import ComputeTarget, Effect
from kafkawire.groups.model.records import KindRecord
from kafkawire.groups.model.request import Client, StreamsHeartbeatResult
from kafkawire.groups.streams.group import StreamsGroup
from kafkawire.groups.streams.member import Task, list_tasks
from kafkawire.log.io.slices import run_at_once
from kafkawire.messages.create_topics import CreatableTopic
from kafkawire.messages.streams_group_describe import KeyValue, TopicInfo
from kafkawire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    Topology,
)
from tests.kit.groups.log import FakeTopics
from tests.kit.groups.script import GroupSettings
from tests.kit.groups.shard_desk import ShardDesk

VOLATILE = {
    "compared", "computing", "configured", "delayed", "endpoint_epoch", "offsets", "refined",
    "shutdown_by",
}  # fmt: skip


def topic(name: str, partitions: int = 0) -> TopicInfo:
    configs = [KeyValue("cleanup.policy", "compact")] if name.startswith("c") else []
    return TopicInfo(name, partitions, 0, configs)


def word_count(epoch: int = 0) -> Topology:
    """Subtopology 0 reads `t` and writes `r`; 1 reads `r` and keeps state in `c`."""
    return Topology(
        epoch,
        [
            Subtopology("0", ["t"], repartition_sink_topics=["r"]),
            Subtopology(
                "1",
                state_changelog_topics=[topic("c")],
                repartition_source_topics=[topic("r")],
            ),
        ],
    )


def stateful(epoch: int = 0) -> Topology:
    """One subtopology that reads `t` and keeps state in `c`."""
    return Topology(epoch, [Subtopology("0", ["t"], state_changelog_topics=[topic("c")])])


@dataclass
class Known:
    """The epoch and the tasks, by role, that a member knows."""

    epoch: int = 0
    tasks: list[set[Task]] = field(default_factory=lambda: [set(), set(), set()])


@dataclass
class StreamsDesk(ShardDesk):
    """One shard with topic `t` (4 partitions) and the internal topics of `word_count`. `missing`:
    topics that the last heartbeat would have created."""

    topics: FakeTopics = field(default_factory=lambda: FakeTopics({"t": 4, "r": 4, "c": 4}))
    settings: GroupSettings = field(
        default_factory=lambda: GroupSettings(
            group_streams_assignment_interval_ms=0, group_streams_initial_rebalance_delay_ms=0
        )
    )
    computing: list[Iterator[None]] = field(default_factory=list)
    clients: dict[str, Known] = field(default_factory=dict)
    missing: tuple[CreatableTopic, ...] = ()

    @property
    def group(self) -> StreamsGroup:
        return self.shard.streams_groups["g"]

    def begin(self, group_id: str, effect: Effect) -> None:
        assert isinstance(effect, ComputeTarget)
        self.computing.append(self.compute(group_id))

    def forget_effects(self) -> None:
        self.computing.clear()

    def compute(self, group_id: str) -> Iterator[None]:
        """Compute the target of a large group, and store it in parts of two members."""
        given = self.shard.gather_target_input(group_id)
        assert given is not None
        found: dict[str, Any] = run_at_once(given.compute())
        targets = list(found.items())
        yield
        for at in range(0, len(targets), 2):
            self.do(self.shard.decide_targets(group_id, given, targets[at : at + 2]))
            yield
        self.do(self.shard.decide_computed(group_id, given, self.now_ms, stored=True))

    def continue_computing(self) -> None:
        """Store another part of the target that is being computed."""
        try:
            next(self.computing[0])
        except StopIteration:
            self.computing.pop(0)

    def create_missing(self) -> None:
        for each in self.missing:
            self.topics[each.name] = each.num_partitions
        self.missing = ()

    def beat(
        self,
        member: str = "a",
        epoch: int = 0,
        topology: Topology | None = None,
        owned: list[set[Task]] | None = None,
        group: str = "g",
        version: int = 1,
        client: Client | None = None,
        **more: Any,
    ) -> StreamsGroupHeartbeatResponse:
        """Send a heartbeat; with epoch 0 a complete one of a process of its own."""
        if epoch == 0:
            topology = topology or word_count()
            owned = owned or [set(), set(), set()]
            more.setdefault("rebalance_timeout_ms", 30_000)
            more.setdefault("process_id", f"process-{member}")
        lists = [None] * 3 if owned is None else [list_tasks(tasks) for tasks in owned]
        active, standby, warmup = lists
        request = StreamsGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=epoch,
            topology=topology,
            active_tasks=active,
            standby_tasks=standby,
            warmup_tasks=warmup,
            **more,
        )
        result = self.ask(request, version, client=client)
        assert isinstance(result, StreamsHeartbeatResult)
        self.missing = tuple(result.missing)
        return result.response

    def turn(self, member: str, **more: Any) -> StreamsGroupHeartbeatResponse:
        """Have a member send a heartbeat that lists its tasks, and take what the answer says."""
        known = self.clients.setdefault(member, Known())
        answer = self.beat(member, known.epoch, owned=known.tasks, **more)
        if not answer.error_code:
            known.epoch = answer.member_epoch
            lists = (answer.active_tasks, answer.standby_tasks, answer.warmup_tasks)
            for at, tasks in enumerate(lists):
                if tasks is not None:
                    known.tasks[at] = {(e.subtopology_id, p) for e in tasks for p in e.partitions}
        return answer

    def settle(self, *members: str, **more: Any) -> None:
        """Have members send heartbeats until nothing changes."""
        for _ in range(20):
            before = len(self.log)
            for member in members:
                answer = self.turn(member, **more)
                assert not answer.error_code, answer
                self.create_missing()
            while self.computing:
                self.continue_computing()
            if len(self.log) == before:
                return
        raise AssertionError("the group does not settle")

    def active(self) -> dict[str, list[Task]]:
        """Return the active tasks of each member, as the coordinator has them."""
        return {each.id: sorted(each.assigned.active) for each in self.group.members.values()}


def kinds(desk: ShardDesk) -> list[int]:
    """Return the kinds of the records of the last decision."""
    return [int(step.kind) for step in desk.decision.steps if isinstance(step, KindRecord)]


def streams_facts(group: StreamsGroup) -> dict[str, Any]:
    """Return everything durable that a group knows."""
    facts = {name: getattr(group, name) for name in StreamsGroup.__slots__ if name not in VOLATILE}
    # The order of members is that of their records.
    facts["copies"] = {task: sorted(ids) for task, ids in group.copies.items()}
    return facts
