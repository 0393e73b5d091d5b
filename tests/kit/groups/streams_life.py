"""Whole lives of streams groups, decided by one number: members that crash, lose answers, come back
with old epochs and share processes, topics that grow and go, and a coordinator that is loaded
again.

The checker knows which tasks members have open: none is open in two members of the group.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from kafkawire.codec.errors import ErrorCode as E
from kafkawire.groups.model.decision import rebalance, session
from kafkawire.groups.streams.group import StreamsState
from kafkawire.groups.streams.member import StreamsMemberState, Task
from kafkawire.messages.streams_group_heartbeat import StreamsGroupHeartbeatResponse, Topology
from tests.kit.groups.log import FakeTopics
from tests.kit.groups.streams import StreamsDesk, stateful, streams_facts, word_count

STEPS = 120
FENCED = (E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID, E.GROUP_ID_NOT_FOUND)


@dataclass
class Thread:
    """A stream thread: the epoch that it knows, and the tasks that it has open, by role.
    `instance`: it is a static member."""

    process: str
    instance: str | None = None
    epoch: int = 0
    open: list[set[Task]] = field(default_factory=lambda: [set(), set(), set()])
    lists: bool = True  # the next heartbeat lists its tasks
    sent: list[tuple[int, list[set[Task]]]] = field(default_factory=list)  # epochs and tasks


class StreamsLife:
    """One seeded life of group "g"."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.topology: Topology = self.random.choice([word_count, stateful])()
        self.desk = StreamsDesk(FakeTopics({"t": self.random.randint(1, 5)}))
        self.desk.settings.group_streams_assignment_interval_ms = self.random.choice([0, 1_000])
        self.desk.settings.group_streams_initial_rebalance_delay_ms = self.random.choice([0, 3_000])
        self.desk.settings.group_streams_num_standby_replicas = self.random.randint(0, 2)
        self.threads: dict[str, Thread] = {}
        self.trace: list[str] = []
        self.created = 0
        self.fenced = 0
        self.lost_answers = 0
        self.moved = 0

    def run(self) -> None:
        actions = (
            [self.beat] * 14 + [self.pass_time] * 3 + [self.join] * 3
            + [self.leave, self.crash, self.restart, self.topic, self.reload, self.zombie]
            + [self.rejoin, self.replicas] + [self.compute] * 4
        )  # fmt: skip
        for _ in range(STEPS):
            action = self.random.choice(actions)
            self.trace.append(action.__name__)
            action()
            self.check()
        self.settle()

    # -- what happens -------------------------------------------------------------------

    def join(self) -> None:
        if len(self.threads) >= 5:
            return
        self.created += 1
        instance = f"i{self.created}" if self.random.random() < 0.3 else None
        process = f"p{self.random.randint(1, 3)}"
        self.threads[f"m{self.created}"] = Thread(process, instance)

    def beat(self) -> None:
        if self.threads:
            self.beat_of(self.random.choice(list(self.threads)))

    def beat_of(self, name: str, *, loses: bool | None = None) -> None:
        thread = self.threads[name]
        joins = thread.epoch == 0
        if joins:
            for tasks in thread.open:
                tasks.clear()
        lists = joins or thread.lists or self.random.random() < 0.5
        if lists and not joins:
            thread.sent.append((thread.epoch, [set(tasks) for tasks in thread.open]))
        answer = self.desk.beat(
            name,
            thread.epoch,
            topology=self.topology if joins else None,
            owned=[set(tasks) for tasks in thread.open] if lists else None,
            instance_id=thread.instance,
            process_id=thread.process if joins else None,
        )
        self.desk.create_missing() if self.random.random() < 0.7 else None
        if self.random.random() < 0.1 if loses is None else loses:
            self.lost_answers += 1
            thread.lists = True
            return
        self.take(name, thread, answer)

    def take(self, name: str, thread: Thread, answer: StreamsGroupHeartbeatResponse) -> None:
        code = answer.error_code
        if code:
            assert code in (*FENCED, E.INVALID_REQUEST, E.UNRELEASED_INSTANCE_ID), answer
            if code == E.UNRELEASED_INSTANCE_ID:
                return
            # Of tasks that a topic which was made again does not have.
            assert code != E.INVALID_REQUEST or "Number of tasks" in (answer.error_message or "")
            self.fenced += 1
            thread.epoch = 0
            for tasks in thread.open:
                tasks.clear()
            return
        assert answer.member_epoch >= thread.epoch, "an epoch went back"
        thread.epoch = answer.member_epoch
        thread.lists = False
        lists = (answer.active_tasks, answer.standby_tasks, answer.warmup_tasks)
        for at, given in enumerate(lists):
            if given is not None:
                tasks = {(each.subtopology_id, at_) for each in given for at_ in each.partitions}
                self.moved += len(tasks ^ thread.open[at])
                thread.open[at] = tasks
                thread.lists = True

    def leave(self) -> None:
        if not self.threads:
            return
        name = self.random.choice(list(self.threads))
        thread = self.threads[name]
        self.desk.beat(name, -1, instance_id=thread.instance)
        del self.threads[name]
        # It may be started again with its id.
        if self.random.random() < 0.5:
            self.threads[name] = Thread(thread.process, thread.instance)

    def crash(self) -> None:
        """A thread ends without leaving: its session expires."""
        if self.threads:
            self.threads.pop(self.random.choice(list(self.threads)))

    def restart(self) -> None:
        """A static member leaves for a while, and its next process has another member id."""
        static = [name for name, thread in self.threads.items() if thread.instance]
        if not static:
            return
        name = self.random.choice(static)
        thread = self.threads.pop(name)
        answer = self.desk.beat(name, -2, instance_id=thread.instance)
        self.created += 1
        if not answer.error_code:
            again = Thread(thread.process, thread.instance)
            self.threads[f"m{self.created}"] = again

    def rejoin(self) -> None:
        """A thread forgets what it has, and joins again."""
        if self.threads:
            thread = self.threads[self.random.choice(list(self.threads))]
            if thread.instance is None:
                thread.epoch = 0

    def zombie(self) -> None:
        """A heartbeat that a member sent in an older epoch arrives once more."""
        # One of the previous epoch whose tasks the member still has could be the repetition of one
        # whose answer was lost, and is accepted.
        group = self.desk.shard.streams_groups.get("g")
        for name, thread in self.threads.items():
            member = None if group is None else group.members.get(name)
            for epoch, tasks in thread.sent if member is not None else ():
                previous = member.previous_epoch if member is not None else 0
                known = () if member is None else map(set, member.assigned)
                has = all(mine <= theirs for mine, theirs in zip(tasks, known, strict=True))
                if member is None or epoch >= member.epoch or (epoch == previous and has):
                    continue
                answer = self.desk.beat(name, epoch, owned=tasks, instance_id=thread.instance)
                assert answer.error_code in (*FENCED, E.FENCED_INSTANCE_ID), "a zombie was served"
                self.fenced += 1
                return

    def topic(self) -> None:
        name = self.random.choice(["t", "r", "c"])
        topics = self.desk.topics
        if self.random.random() < 0.3:
            topics.pop(name, None)
        elif name == "t":
            # As an operator does: with the internal topics, which no broker changes.
            topics[name] = min(6, topics.get(name, 0) + 1)
            for internal in ("r", "c"):
                topics.pop(internal, None)

    def replicas(self) -> None:
        self.desk.settings.group_streams_num_standby_replicas = self.random.randint(0, 2)

    def pass_time(self) -> None:
        self.desk.now_ms += self.random.choice([10, 500, 1_000, 3_000, 20_000, 46_000])
        self.desk.fire_due()

    def compute(self) -> None:
        """Continue with the target of a large group, which is stored in parts."""
        for _ in range(self.random.randint(1, 3)):
            if self.desk.computing:
                self.desk.continue_computing()

    def reload(self) -> None:
        groups = self.desk.shard.streams_groups
        before = {name: streams_facts(group) for name, group in groups.items()}
        self.desk.reload(compacted=self.random.random() < 0.5, snapshot=self.random.random() < 0.3)
        groups = self.desk.shard.streams_groups
        assert {name: streams_facts(group) for name, group in groups.items()} == before

    # -- what must hold -----------------------------------------------------------------

    def check(self) -> None:
        group = self.desk.shard.streams_groups.get("g")
        if group is None:
            return
        owners: dict[Task, str] = {}
        near: dict[tuple[Task, str], set[str]] = {}
        for member in group.members.values():
            for held in (member.assigned, member.pending):
                for task in held.active:
                    other = owners.setdefault(task, member.id)
                    assert other == member.id, f"{task} is of {other} and of {member.id}"
                for task in (*held.active, *held.standby, *held.warmup):
                    near.setdefault((task, member.process_id), set()).add(member.id)
            assert member.epoch <= group.target_epoch <= group.epoch
            for since in member.assigned.active.values():
                assert since <= max(member.epoch, 0) or member.epoch == 0 or member.epoch == -2
            if member.state is StreamsMemberState.UNREVOKED and member.epoch != -2:
                assert ("g", rebalance(member.id)) in self.desk.timers
            assert ("g", session(member.id)) in self.desk.timers
        for (task, process), ids in near.items():
            assert len(ids) == 1, f"{task} is twice in {process}: {ids}"
        assert group.owners == owners
        self.check_open(owners)
        for target in group.target.values():
            assert not target.active & target.standby

    def check_open(self, owners: dict[Task, str]) -> None:
        """Check that no task is open in two members of the group."""
        group = self.desk.group
        opened: dict[Task, str] = {}
        for name, thread in self.threads.items():
            # Another, or none: its session has ended, and it does not know that yet.
            if name not in group.members or thread.epoch == 0:
                continue
            if group.members[name].epoch <= 0:
                continue
            for task in thread.open[0]:
                other = opened.setdefault(task, name)
                assert other == name, f"{task} is open in {other} and {name}"

    def settle(self) -> None:
        """Check that the group reaches its target once nothing happens any more."""
        self.desk.topics.setdefault("t", 2)
        for internal in ("r", "c"):
            self.desk.topics.pop(internal, None)
        for _ in range(40):
            self.desk.now_ms += 3_000
            self.desk.fire_due()
            while self.desk.computing:
                self.compute()
            for name in list(self.threads):
                self.beat_of(name, loses=False)
                self.desk.create_missing()
                self.check()
        if not self.threads:
            return
        group = self.desk.group
        assert group.members.keys() == self.threads.keys()
        assert group.state is StreamsState.STABLE
        assert group.configured is not None
        sizes = {name: each.tasks for name, each in group.configured.subtopologies.items()}
        wanted = {(name, at) for name, size in sizes.items() for at in range(size)}
        assert group.owners.keys() == wanted
        for name, member in group.members.items():
            target = group.target[name]
            assert set(member.assigned.active) == target.active
            assert member.assigned.standby == target.standby
            assert self.threads[name].open == [
                set(member.assigned.active), set(member.assigned.standby), set(),
            ]  # fmt: skip
