"""A seeded simulation of consumer groups: members that join, leave, die and come back with old
epochs, coordinators that are reloaded in every state, topics that change, and a checker.

One number decides everything. The clients follow KIP-848: they release what is not in their
assignment, report what they own, and join again when they are fenced.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.patterns import compile_pattern
from kafkawire.groups.consumer.group import ConsumerGroup, ConsumerState
from kafkawire.groups.consumer.member import STATIC_LEAVE
from kafkawire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from tests.kit.groups.consumers import ConsumerDesk, Owned, facts
from tests.kit.groups.log import FakeTopics
from tests.kit.groups.script import GroupSettings

STEPS = 150
REJOINS = {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}
SUBSCRIPTIONS = (["t"], ["t"], ["t", "u"], ["u", "v"], ["missing"])
PATTERNS = ("t", "[uv]", "w.*", ".*")
QUIET_BEATS = 30
"""Heartbeats of each member after which everything must be assigned: each moves a member by one
step, and patterns and assignments have intervals."""


@dataclass
class Client:
    """One consumer process. `using`: partitions that it reads, `epoch` 0 before it has joined;
    `sent`: those of its last request with partitions."""

    name: str
    instance: str | None
    topics: list[str] | None
    pattern: str | None
    assignor: str | None
    epoch: int = 0
    using: set[tuple[str, int]] = field(default_factory=set)
    slow: bool = False
    alive: bool = True
    lost: bool = False
    sent: Owned = field(default_factory=dict)

    @property
    def owned(self) -> Owned:
        found: Owned = {}
        for topic, partition in sorted(self.using):
            found.setdefault(topic, []).append(partition)
        return found


class Checker:
    """The invariants of a group, checked after each step. `large`: its target is computed in
    slices."""

    def __init__(self, large: bool) -> None:
        self.large = large
        self.epochs: dict[str, int] = {}
        self.group_epoch = 0

    def check(self, group: ConsumerGroup | None) -> None:
        if group is None:
            self.epochs.clear()
            self.group_epoch = 0
            return
        self.check_owners(group)
        self.check_epochs(group)

    def check_owners(self, group: ConsumerGroup) -> None:
        owners: dict[tuple[bytes, int], str] = {}
        for member in group.members.values():
            for partitions in (member.assigned, member.pending):
                for topic_id, found in partitions.items():
                    for partition in found:
                        other = owners.setdefault((topic_id, partition), member.id)
                        assert other == member.id, f"{partition} belongs to {other}, {member.id}"
        kept = {
            (topic_id, partition): owner
            for topic_id, found in group.owners.items()
            for partition, owner in found.items()
        }
        assert kept == owners, "the index of owners differs from the members"

    def check_epochs(self, group: ConsumerGroup) -> None:
        assert group.epoch >= self.group_epoch, "the epoch of the group went back"
        assert group.target_epoch <= group.epoch
        self.group_epoch = group.epoch
        for member in group.members.values():
            assert member.epoch <= group.target_epoch
            if member.epoch == STATIC_LEAVE:
                continue
            assert member.epoch >= self.epochs.get(member.id, 0), f"epoch of {member.id} went back"
            self.epochs[member.id] = member.epoch
            target = group.target.get(member.id, {})
            # At the epoch of the target it has nothing else, unless a part of the next target of a
            # large group is stored already.
            partial = self.large and group.epoch > group.target_epoch
            if member.epoch == group.target_epoch and not (member.pending or partial):
                for topic_id, found in member.assigned.items():
                    assert found.keys() <= target.get(topic_id, frozenset()), "not in the target"
            for found in (*member.assigned.values(), *member.pending.values()):
                assert all(0 <= epoch <= max(member.epoch, 0) for epoch in found.values())
        self.epochs = {name: at for name, at in self.epochs.items() if name in group.members}

    def check_quiet(self, group: ConsumerGroup, topics: FakeTopics) -> None:
        """Everything that a member subscribes to is assigned, and all have reached it."""
        assert group.state is ConsumerState.STABLE, group.state
        subscribed = set(group.names)
        for pattern in group.patterns:
            subscribed |= set(filter(compile_pattern(pattern), topics))
        wanted = {
            (topics.topic_id(name), partition)
            for name in subscribed & topics.keys()
            for partition in range(topics[name])
        }
        found = {
            (topic_id, partition)
            for member in group.members.values()
            for topic_id, partitions in member.assigned.items()
            for partition in partitions
        }
        assert found == wanted


class ConsumerLife:
    """The clients of a group and its coordinator."""

    def __init__(self, seed: int, large: bool = False) -> None:
        self.rng = Random(seed)
        interval_ms = self.rng.choice((0, 1000, 5000))
        self.desk = ConsumerDesk(
            topics=FakeTopics({"t": 5, "u": 3, "v": 1}),
            settings=GroupSettings(
                group_consumer_assignment_interval_ms=interval_ms, group_consumer_max_size=6
            ),
        )
        self.checker = Checker(large)
        self.clients: list[Client] = []
        self.names = 0
        self.lost_answers = self.fenced = 0
        self.trace: list[object] = []

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
            self.check()
        self.settle()

    def check(self) -> None:
        group = self.desk.shard.consumer_groups.get("g")
        self.checker.check(group)
        self.check_use()
        self.trace.append(None if group is None else (group.epoch, group.target_epoch))

    def check_use(self) -> None:
        """No two processes read a partition, but for one that has lost its session."""
        using: dict[tuple[str, int], str] = {}
        group = self.desk.shard.consumer_groups.get("g")
        members = {} if group is None else group.members
        for client in self.clients:
            member = members.get(client.name)
            if member is None or not client.alive:
                continue
            for key in client.using:
                other = using.setdefault(key, client.name)
                assert other == client.name, f"{key} is read by {other} and {client.name}"

    def step(self) -> None:
        rng, desk = self.rng, self.desk
        desk.now_ms += rng.choice((0, 10, 100, 1000, 3000))
        match rng.randrange(20):
            case 0 | 1:
                self.start()
            case 2 if self.clients:
                self.leave(rng.choice(self.clients))
            case 3 if self.clients:
                rng.choice(self.clients).alive = False
            case 4:
                # Longer than a session: the silent ones are removed.
                desk.now_ms += rng.choice((15_000, 46_000))
            case 5:
                self.reload()
            case 6:
                self.change_topics()
            case 7 if self.clients:
                self.resubscribe(rng.choice(self.clients))
            case 8 if self.clients:
                client = rng.choice(self.clients)
                client.slow = not client.slow
            case 9 if self.clients:
                self.send_old(rng.choice(self.clients))
            case 10:
                desk.match()
            case _:
                for client in rng.sample(self.clients, len(self.clients)):
                    self.beat(client, lossy=True)
        if rng.random() < 0.7:
            desk.go_on()
        desk.fire_due()

    def start(self) -> None:
        rng = self.rng
        # A static one comes back under another member id.
        instance = rng.choice((None, None, "i1", "i2"))
        if instance in {client.instance for client in self.clients if client.alive}:
            instance = None
        self.names += 1
        topics = rng.choice(SUBSCRIPTIONS)
        pattern = rng.choice((None, None, None, *PATTERNS))
        client = Client(
            f"m{self.names}", instance, topics, pattern, rng.choice((None, None, "range"))
        )
        self.clients = [*[known for known in self.clients if known.alive][-8:], client]
        self.beat(client)

    def beat(self, client: Client, *, lossy: bool = False) -> None:
        if not client.alive:
            return
        if client.epoch == 0:
            client.using.clear()
        # A client whose last answer was lost sends everything, and gets its assignment.
        full = client.epoch == 0 or client.lost
        # As librdkafka and Java: the partitions only when they have changed.
        same = not full and client.owned == client.sent
        if full or not (same or client.slow):
            client.sent = client.owned
        answer = self.desk.beat(
            client.name,
            client.epoch,
            topics=client.topics if full else None,
            owned=None if not full and (same or client.slow) else client.owned,
            instance_id=client.instance,
            **(self.describe(client) if full else {}),
        )
        client.lost = False
        if lossy and self.rng.random() < 0.1:
            self.lost_answers += 1
            client.lost = True
            return
        self.take(client, answer)

    def describe(self, client: Client) -> dict[str, Any]:
        described = {"rebalance_timeout_ms": 30_000, "server_assignor": client.assignor}
        return described | ({"subscribed_topic_regex": client.pattern} if client.pattern else {})

    def take(self, client: Client, answer: ConsumerGroupHeartbeatResponse) -> None:
        code = answer.error_code
        if code in REJOINS:
            self.fenced += 1
            client.epoch = 0
            client.using.clear()
        elif code in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.GROUP_ID_NOT_FOUND):
            client.epoch = 0
            client.using.clear()
            client.alive = code == ErrorCode.GROUP_ID_NOT_FOUND
        elif code in (ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.GROUP_MAX_SIZE_REACHED):
            client.using.clear()
        else:
            assert code == 0, (code, answer.error_message)
            client.epoch = answer.member_epoch
            if answer.assignment is not None:
                client.using = {
                    (topic.topic_id.lstrip(b".").decode(), partition)
                    for topic in answer.assignment.topic_partitions
                    for partition in topic.partitions
                }

    def leave(self, client: Client) -> None:
        if not client.epoch or not client.alive:
            return
        epoch = -2 if client.instance is not None and self.rng.random() < 0.7 else -1
        client.using.clear()
        self.desk.beat(client.name, epoch, instance_id=client.instance)
        client.alive = False

    def send_old(self, client: Client) -> None:
        """A heartbeat of the past arrives, of this process or of one that has ended."""
        epoch = max(1, client.epoch - self.rng.randrange(1, 4))
        owned = self.rng.choice((None, {}, client.owned))
        known = self.desk.shard.consumer_groups.get("g")
        before = None if known is None else facts(known)
        answer = self.desk.beat(client.name, epoch, owned=owned, instance_id=client.instance)
        if answer.error_code and known is not None:
            assert facts(known) == before, "a refused heartbeat changed the group"
        if answer.error_code:
            return
        # It was sent by this process, which had given up waiting: the answer is lost. What it
        # reported as released it has released.
        client.lost = True
        if owned is not None:
            client.using = {key for key in client.using if key[1] in owned.get(key[0], [])}

    def reload(self) -> None:
        group = self.desk.shard.consumer_groups.get("g")
        before = None if group is None else facts(group)
        how = self.rng.choice(({}, {"compacted": True}, {"snapshot": True}))
        self.desk.reload(**how)
        group = self.desk.shard.consumer_groups.get("g")
        assert (None if group is None else facts(group)) == before, "a load gives another state"

    def change_topics(self) -> None:
        topics, rng = self.desk.topics, self.rng
        match rng.randrange(3):
            case 0:
                name = rng.choice(("v", "w1", "w2", "t"))
                topics[name] = topics.get(name, 0) + rng.randrange(1, 3)
            case 1:
                topics.pop(rng.choice(("v", "w1", "w2")), None)
            case _:
                topics.setdefault("w1", 2)

    def resubscribe(self, client: Client) -> None:
        if not client.alive or not client.epoch:
            return
        client.topics = self.rng.choice(SUBSCRIPTIONS)
        client.pattern = self.rng.choice(("", *PATTERNS))
        answer = self.desk.beat(
            client.name,
            client.epoch,
            topics=client.topics,
            subscribed_topic_regex=client.pattern,
            instance_id=client.instance,
        )
        self.take(client, answer)

    def settle(self) -> None:
        """Let all clients heartbeat in peace; then everything must be assigned, and what a topic
        gets after that, too."""
        if not any(client.alive for client in self.clients):
            self.start()
        for client in self.clients:
            client.slow = False
        self.beat_in_peace()
        self.desk.topics["t"] += 1
        self.beat_in_peace()

    def beat_in_peace(self) -> None:
        desk = self.desk
        for _ in range(QUIET_BEATS):
            desk.now_ms += 3000
            desk.fire_due()
            for client in self.clients:
                self.beat(client)
                desk.match()
                desk.go_on()
                self.check()
        group = desk.shard.consumer_groups.get("g")
        assert group is not None
        self.checker.check_quiet(group, desk.topics)
        using = {
            client.name: client.using
            for client in self.clients
            if client.alive and client.name in group.members
        }
        for member in group.members.values():
            assert using.get(member.id) == {
                (topic_id.lstrip(b".").decode(), partition)
                for topic_id, found in member.assigned.items()
                for partition in found
            }, "a client reads something else than its assignment"
