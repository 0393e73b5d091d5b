"""Whole lives of share groups, decided by one number: members that crash, lose answers and come
back with old epochs, topics that come, grow and go, share coordinators that fail and answer in any
order, operators that alter and delete, and a group coordinator that is loaded again."""

from __future__ import annotations

import random
from dataclasses import dataclass

from kafkawire.codec.errors import ErrorCode as E
from kafkawire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from kafkawire.messages.delete_groups import DeleteGroupsRequest
from kafkawire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from kafkawire.share.persister import SharePartitionKey
from kafkawire.share.state.records import StateSnapshot
from tests.kit.groups.log import FakeTopics, id_of
from tests.kit.groups.shares import Assigned, ShareDesk, assigned, share_facts

NAMES = ["t", "u", "v"]
STEPS = 150


@dataclass
class Sender:
    """A member process: the epoch and the assignment that it knows."""

    topics: list[str]
    epoch: int = 0
    assigned: Assigned | None = None


class ShareLife:
    """One seeded life of group "g"."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.desk = ShareDesk(FakeTopics({"t": 3, "u": 2}))
        self.desk.settings.group_share_assignment_interval_ms = self.random.choice([0, 1000])
        self.senders: dict[str, Sender] = {}
        self.trace: list[str] = []
        self.fenced = 0
        self.lost_answers = 0
        self.created = 0
        self.lost: set[SharePartitionKey] = set()

    def run(self) -> None:
        actions = (
            [self.beat] * 12 + [self.change] * 8 + [self.pass_time] * 4 + [self.join] * 3
            + [self.resubscribe, self.leave, self.crash, self.topic, self.reload, self.alter]
            + [self.delete_offsets, self.delete_group, self.zombie, self.lose_states]
        )  # fmt: skip
        for _ in range(STEPS):
            action = self.random.choice(actions)
            self.trace.append(action.__name__)
            epochs = self.epochs()
            action()
            self.check(epochs)
        self.calm()

    # -- actions --------------------------------------------------------------------------

    def join(self) -> None:
        name = f"m{self.random.randrange(5)}"
        topics = self.random.sample(NAMES, self.random.randint(1, 2))
        self.senders[name] = Sender(topics)
        self.beat(name)

    def beat(self, name: str | None = None) -> None:
        if name is None:
            if not self.senders:
                return
            name = self.random.choice(sorted(self.senders))
        sender = self.senders[name]
        sent = sender.topics if sender.epoch == 0 or self.random.random() < 0.1 else None
        answer = self.desk.beat(name, sender.epoch, sent)
        if answer.error_code in (E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID, E.GROUP_ID_NOT_FOUND):
            self.fenced += 1
            sender.epoch, sender.assigned = 0, None
            return
        assert not answer.error_code, answer
        if self.random.random() < 0.15:
            self.lost_answers += 1
            return
        sender.epoch = answer.member_epoch
        found = assigned(answer)
        if found is not None:
            sender.assigned = found

    def resubscribe(self) -> None:
        if self.senders:
            sender = self.senders[self.random.choice(sorted(self.senders))]
            sender.topics = self.random.sample(NAMES, self.random.randint(1, 3))
            sender.epoch = 0

    def leave(self) -> None:
        if self.senders:
            name = self.random.choice(sorted(self.senders))
            self.desk.beat(name, -1)
            del self.senders[name]

    def crash(self) -> None:
        if self.senders:
            del self.senders[self.random.choice(sorted(self.senders))]

    def zombie(self) -> None:
        """A heartbeat with an epoch that the member had long ago, or never."""
        group = self.desk.shard.share_groups.get("g")
        if group is None or not group.members:
            return
        member = group.members[self.random.choice(sorted(group.members))]
        epoch = self.random.randint(1, member.epoch + 3)
        answer = self.desk.beat(member.id, epoch)
        known = epoch in (member.epoch, member.previous_epoch)
        assert (answer.error_code == 0) == known, (answer, epoch, member)
        self.fenced += not known

    def change(self) -> None:
        if not self.desk.changing:
            return
        number = self.random.randrange(len(self.desk.changing))
        codes: tuple[E, ...] = ()
        if self.random.random() < 0.2:
            codes = (E.NONE, E.NOT_COORDINATOR)
        self.desk.change(*codes, number=number)

    def pass_time(self) -> None:
        self.desk.now_ms += self.random.choice([10, 500, 2_000, 20_000])
        self.desk.fire_due()

    def topic(self) -> None:
        name = self.random.choice(NAMES)
        topics = self.desk.topics
        if name not in topics:
            # Ids are made of names: a name is not used again here.
            if name == "v" and not self.created:
                self.created += 1
                topics[name] = self.random.randint(1, 3)
        elif self.random.random() < 0.7:
            topics[name] += 1
        else:
            del topics[name]
            self.desk.do(self.desk.shard.decide_topic_deleted([name]))
            for record in self.desk.states.decide_deletions([id_of(name)]):
                self.desk.states.apply(record)

    def reload(self) -> None:
        before = {k: share_facts(g) for k, g in self.desk.shard.share_groups.items()}
        self.desk.reload(compacted=self.random.random() < 0.5, snapshot=self.random.random() < 0.3)
        assert {k: share_facts(g) for k, g in self.desk.shard.share_groups.items()} == before

    def lose_states(self) -> None:
        """Lose states, and then the coordinator of the group, as by a restore."""
        for key in sorted(self.desk.states.partitions):
            if self.random.random() < 0.5:
                self.desk.states.apply(StateSnapshot(key, None))
                self.lost.add(key)
        self.reload()

    def alter(self) -> None:
        name = self.random.choice(NAMES)
        partitions = [AlterShareGroupOffsetsRequestPartition(0, self.random.randint(0, 9))]
        topics = [AlterShareGroupOffsetsRequestTopic(name, partitions)]
        self.desk.ask(AlterShareGroupOffsetsRequest("g", topics))

    def delete_offsets(self) -> None:
        topics = [DeleteShareGroupOffsetsRequestTopic(name) for name in NAMES]
        self.desk.ask(DeleteShareGroupOffsetsRequest("g", topics))

    def delete_group(self) -> None:
        if self.random.random() < 0.5 and not self.senders:
            self.desk.ask(DeleteGroupsRequest(["g"]), 2)

    # -- checks ---------------------------------------------------------------------------

    def epochs(self) -> dict[str, int]:
        group = self.desk.shard.share_groups.get("g")
        if group is None:
            return {}
        found = {member.id: member.epoch for member in group.members.values()}
        return {**found, "": group.epoch}

    def check(self, before: dict[str, int]) -> None:
        desk = self.desk
        self.lost -= desk.states.partitions.keys()
        group = desk.shard.share_groups.get("g")
        if group is None:
            return
        for name, epoch in self.epochs().items():
            assert epoch >= before.get(name, 0), f"epoch of {name!r} fell"
        assert group.target_epoch <= group.epoch
        names: dict[str, int] = {}
        for member in group.members.values():
            for topic in member.topics:
                names[topic] = names.get(topic, 0) + 1
        assert group.names == names
        for topic_id, named in group.initialized.items():
            if desk.topics.topic_name(topic_id) is None:
                continue
            for partition in named.partitions:
                key = SharePartitionKey("g", topic_id, partition)
                assert key in desk.states.partitions or key in self.lost, f"{key} has no state"
        for member in group.members.values() if not self.lost else ():
            for topic_id, partitions in member.assigned.items():
                if desk.topics.topic_name(topic_id) is None:
                    continue
                states = group.initialized.get(topic_id)
                assert states is not None, "assigned without a state"
                assert partitions <= states.partitions, "assigned without a state"

    def calm(self) -> None:
        """Let everything arrive: then every member has what it is to have."""
        desk = self.desk
        if self.lost:
            self.reload()  # the answers when they were looked up may have been errors
        for _ in range(8):
            while desk.changing:
                desk.change()
            desk.now_ms += 1000
            for name, sender in self.senders.items():
                answer = desk.beat(name, sender.epoch, None if sender.epoch else sender.topics)
                if answer.error_code:
                    sender.epoch = 0
                    continue
                sender.epoch = answer.member_epoch
                found = assigned(answer)
                if found is not None:
                    sender.assigned = found
            desk.fire_due()
        desk.now_ms += 44_000
        for name, sender in self.senders.items():
            assert not desk.beat(name, sender.epoch).error_code
        desk.now_ms += 2_000
        desk.fire_due()
        for _ in range(5):
            while desk.changing:
                desk.change()
            desk.now_ms += 1000
            for name, sender in self.senders.items():
                answer = desk.beat(name, sender.epoch)
                sender.epoch = answer.member_epoch
                found = assigned(answer)
                if found is not None:
                    sender.assigned = found
        for topic_id, named in desk.group.initialized.items() if self.senders else ():
            for partition in named.partitions:
                assert SharePartitionKey("g", topic_id, partition) in desk.states.partitions
        self.check_all_assigned()

    def check_all_assigned(self) -> None:
        desk = self.desk
        group = desk.shard.share_groups.get("g")
        if group is None or not self.senders:
            return
        assert set(group.members) == set(self.senders), "a dead member stays"
        wanted = {
            (name, partition)
            for sender in self.senders.values()
            for name in sender.topics
            for partition in range(desk.topics.get(name, 0))
        }
        given = {
            (name, partition)
            for sender in self.senders.values()
            for name, partitions in (sender.assigned or {}).items()
            for partition in partitions
        }
        assert given == wanted, f"lost: {sorted(wanted - given)}, gone: {sorted(given - wanted)}"
        for name, sender in self.senders.items():
            assert sender.epoch == group.epoch == group.target_epoch, name
        assert group.settled, "a heartbeat still checks everything"
        for name, sender in self.senders.items():
            desk.beat(name, sender.epoch)
            assert not desk.decision.steps
