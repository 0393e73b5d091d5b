"""Whole lives of streams groups, decided by one number: members that crash, lose answers, come back
with old epochs and share processes, restore the state of tasks at their own pace, topics that grow
and go, and a coordinator that is loaded again.

The checker knows which tasks members have open: none is open in two members of the group. A task
with state is not taken from its owner while the next one lacks its state.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from kafkawire.codec.errors import ErrorCode as E
from kafkawire.groups.model.changes import AssignmentRefined
from kafkawire.groups.model.decision import rebalance, session
from kafkawire.groups.streams.group import StreamsState
from kafkawire.groups.streams.member import StreamsMemberState, TargetTasks, Task
from kafkawire.messages.streams_group_describe import TaskOffset
from kafkawire.messages.streams_group_heartbeat import StreamsGroupHeartbeatResponse, Topology
from tests.kit.groups.log import FakeTopics
from tests.kit.groups.streams import StreamsDesk, stateful, streams_facts, word_count

STEPS = 120
LAG = 10
FENCED = (E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID, E.GROUP_ID_NOT_FOUND)


@dataclass
class Thread:
    """A stream thread: the epoch that it knows, and the tasks that it has open, by role.
    `instance`: it is a static member. `reports`: its client is so new that it reports offsets."""

    process: str
    instance: str | None = None
    epoch: int = 0
    open: list[set[Task]] = field(default_factory=lambda: [set(), set(), set()])
    reports: bool = True
    state: dict[Task, int] = field(default_factory=dict)  # offsets of copies
    reported: tuple[dict[Task, int], dict[Task, int]] | None = None
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
        self.desk.settings.group_streams_num_warmup_replicas = self.random.choice([0, 1, 2, 2])
        self.desk.settings.group_streams_acceptable_recovery_lag = LAG
        self.ends: dict[Task, int] = {}  # of changelogs
        self.refined: AssignmentRefined | None = None
        self.warmed = 0
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
            + [self.rejoin, self.replicas] + [self.compute] * 4 + [self.restore] * 4
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
        reports = self.random.random() < 0.9
        self.threads[f"m{self.created}"] = Thread(process, instance, reports=reports)

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
            version=int(thread.reports),
            instance_id=thread.instance,
            process_id=thread.process if joins else None,
            **self.report(thread, always=joins),
        )
        self.desk.create_missing() if self.random.random() < 0.7 else None
        if self.random.random() < 0.1 if loses is None else loses:
            self.lost_answers += 1
            thread.lists = True
            return
        self.take(name, thread, answer)

    def report(self, thread: Thread, *, always: bool) -> dict[str, Any]:
        """Return the offsets in a heartbeat: as Java's client, only if they have changed."""
        copies = thread.open[1] | thread.open[2]
        found = (
            {task: thread.state.setdefault(task, 0) for task in copies},
            {task: self.ends.setdefault(task, 100) for task in copies},
        )
        due = always or (found != thread.reported and self.random.random() < 0.7)
        if not thread.reports or not due:
            return {}
        thread.reported = found
        lists = [[TaskOffset(*task, at) for task, at in each.items()] for each in found]
        return {"task_offsets": lists[0], "task_end_offsets": lists[1]}

    def restore(self) -> None:
        """A thread reads records of changelogs, which become longer."""
        for task in self.ends:
            self.ends[task] += self.random.choice([0, 1, 20])
        if self.threads:
            self.restore_of(self.random.choice(list(self.threads.values())))

    def restore_of(self, thread: Thread) -> None:
        for task in thread.open[1] | thread.open[2]:
            end = self.ends.setdefault(task, 100)
            thread.state[task] = min(end, thread.state.get(task, 0) + self.random.randint(20, 60))

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
        # What it runs it has, and what it closes is gone: stores are in memory.
        copies = thread.open[1] | thread.open[2]
        thread.state = {task: at for task, at in thread.state.items() if task in copies}

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
            again = Thread(thread.process, thread.instance, reports=thread.reports)
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
        self.desk.settings.group_streams_num_warmup_replicas = self.random.choice([0, 1, 2, 2])

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
        known, self.refined = self.refined, group.refined
        # Not of a target that is stored in parts.
        if (
            self.refined is not None
            and group.epoch == group.target_epoch == self.refined.epoch
            and (known is None or known.epoch != self.refined.epoch)
        ):
            self.check_refined(self.refined)
        for target in group.target.values():
            assert not target.active & target.standby

    def check_refined(self, refined: AssignmentRefined) -> None:
        """Check an assignment that was refined a moment ago. One member has moved since."""
        group, limit = self.desk.group, self.desk.settings.group_streams_num_warmup_replicas
        tasks = {id_: group.target[id_] for id_ in group.members if id_ in group.target}
        wanted = sorted(task for each in tasks.values() for task in each.active)
        owner_of = {task: id_ for id_, each in tasks.items() for task in each.active}
        tasks.update({id_: TargetTasks(*t) for id_, t in refined.tasks.items()})
        assert sorted(task for each in tasks.values() for task in each.active) == wanted
        assert sum(len(each.warmup) for each in tasks.values()) <= limit, "too many warm-up tasks"
        self.warmed += sum(len(each.warmup) for each in tasks.values())
        near: set[tuple[Task, str]] = set()
        for id_, each in tasks.items():
            for task in (*each.active, *each.standby, *each.warmup):
                at = (task, group.members[id_].process_id)
                assert at not in near, f"{task} is to be twice in a process"
                near.add(at)
        for member in group.members.values():
            for task in member.assigned.active:
                new = group.members.get(owner_of.get(task, member.id))
                if new is None or task in tasks[member.id].active or not limit:
                    continue
                assert (
                    new.process_id == member.process_id
                    or new.id not in group.offsets
                    or task[0] != self.topology.subtopologies[-1].subtopology_id
                    or any(self.is_restored(id_, task) for id_ in group.members
                           if group.members[id_].process_id == new.process_id)
                ), f"{task} is taken from {member.id} too early"  # fmt: skip

    def is_restored(self, name: str, task: Task) -> bool:
        """Return whether a member has reported little lag of a task."""
        offsets, ends = self.desk.group.offsets.get(name, ({}, {}))
        return task in offsets and task in ends and ends[task] - offsets[task] <= LAG

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
        quiet, reload_at = 0, self.random.randint(2, 12)
        for at in range(200):
            records = len(self.desk.log)
            self.desk.now_ms += 3_000
            self.desk.fire_due()
            while self.desk.computing:
                self.compute()
            # Records are written: a client repeats no report after a load if nothing changes.
            self.ends = {task: end + 1 for task, end in self.ends.items()}
            for index, name in enumerate(list(self.threads)):
                if at == reload_at and index == 1:
                    self.reload()
                self.restore_of(self.threads[name])
                self.beat_of(name, loses=False)
                self.desk.create_missing()
                self.check()
            quiet = quiet + 1 if at > reload_at and records == len(self.desk.log) else 0
            if quiet == 20:  # a session ends after 15
                break
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
