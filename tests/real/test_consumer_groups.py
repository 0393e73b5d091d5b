"""librdkafka's members of the consumer group protocol (KIP-848): group.protocol=consumer.

Covers: kafkawire.groups.consumer.heartbeat, kafkawire.handlers.consumer_group_heartbeat,
kafkawire.handlers.consumer_group_describe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.kit.cli import Typed
from tests.real.conftest import MakeTopic
from tests.real.librdkafka import consumers as classic_consumers  # noqa: F401  (a fixture)
from tests.real.librdkafka import poll, produce, read
from tests.real.members import Member, wait_for, wait_for_shares

MakeMember = Callable[..., Consumer]


@pytest.fixture
def make_member(bootstrap: str) -> Iterator[MakeMember]:
    """make_member(group, *topics, **settings with dots as underscores)."""
    made: list[Consumer] = []

    def make(group: str, *topics: str, **config: Any) -> Consumer:
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **{key.replace("_", "."): value for key, value in config.items()},
        }
        made.append(Consumer(settings))
        if topics:
            made[-1].subscribe(list(topics))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_join_and_leave(
    bootstrap: str, make_topic: MakeTopic, make_member: MakeMember, name: str, assignor: str
) -> None:
    topic = make_topic(6)
    config = {"group_remote_assignor": assignor}
    members = [Member(make_member(name, topic, **config), poll) for _ in range(2)]
    wait_for_shares(members, [3, 3])
    members.append(Member(make_member(name, topic, **config), poll))
    wait_for_shares(members, [2, 2, 2])
    for _ in range(2):
        members.pop().leave()
    wait_for_shares(members, [6])
    produce(bootstrap, topic, [{"value": b"x", "partition": p} for p in range(6)])
    wait_for(lambda: len(members[0].records) == 6)
    members.pop().leave()


def test_committed_offsets_are_continued(
    bootstrap: str, make_topic: MakeTopic, make_member: MakeMember, name: str
) -> None:
    topic = make_topic()
    produce(bootstrap, topic, [{"value": b"%d" % i} for i in range(10)])
    first = make_member(name, topic)
    assert [message.value() for message in read(first, 4)][:4] == [b"0", b"1", b"2", b"3"]
    first.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    first.close()
    second = make_member(name, topic)
    assert read(second, 1)[0].offset() == 4
    (found,) = second.committed([TopicPartition(topic, 0)], timeout=30)
    assert found.offset == 4


def test_commit_of_a_member_that_is_gone_is_refused(
    bootstrap: str, make_topic: MakeTopic, make_member: MakeMember, name: str
) -> None:
    topic = make_topic()
    produce(bootstrap, topic, [{"value": b"x"}])
    member = make_member(name, topic)
    read(member, 1)
    other = Consumer({"bootstrap.servers": bootstrap, "group.id": name})
    try:
        with pytest.raises(KafkaException) as refused:  # a simple consumer, while there are members
            other.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        assert refused.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
    finally:
        other.close()


def test_static_member_restarts_without_rebalance(
    admin: AdminClient, make_topic: MakeTopic, make_member: MakeMember, name: str
) -> None:
    topic = make_topic(4)
    statics = [
        Member(make_member(name, topic, group_instance_id=f"i{at}"), poll) for at in range(2)
    ]
    wait_for_shares(statics, [2, 2])
    held, kept = statics[0].assigned, statics[1].assigned
    statics[0].leave()  # for a while: its partitions stay its own
    again = Member(make_member(name, topic, group_instance_id="i0"), poll)
    wait_for(lambda: again.assigned == held)
    assert statics[1].assigned == kept
    described = admin.describe_consumer_groups([name])[name].result(60)
    assert {member.group_instance_id for member in described.members} == {"i0", "i1"}
    for member in (again, statics[1]):
        member.leave()


def test_second_static_member_with_same_id_is_refused(
    make_topic: MakeTopic, make_member: MakeMember, name: str
) -> None:
    topic = make_topic()
    first = Member(make_member(name, topic, group_instance_id="one"), poll)
    wait_for_shares([first], [1])
    second = Member(make_member(name, topic, group_instance_id="one"), poll)
    wait_for(lambda: second.error is not None)
    assert isinstance(second.error, KafkaException)
    code = second.error.args[0].code()
    assert code in (KafkaError._FATAL, KafkaError.UNRELEASED_INSTANCE_ID)
    assert first.error is None
    first.leave()


def test_pattern_is_matched_by_the_broker(
    make_topic: MakeTopic, make_member: MakeMember, name: str
) -> None:
    topics = {make_topic(1, "-a"), make_topic(1, "-b")}
    make_topic(1, "-other")
    member = Member(make_member(name, f"^{name}-[a-z]$"), poll)
    wait_for(lambda: {topic for topic, _ in member.assigned} == topics)
    topics.add(make_topic(1, "-c"))
    wait_for(lambda: {topic for topic, _ in member.assigned} == topics)
    member.leave()


def test_bad_pattern_and_unknown_assignor_are_errors(
    make_topic: MakeTopic, make_member: MakeMember, name: str
) -> None:
    for consumer, code in (
        # RE2 repeats at most 1,000 times.
        (make_member(name, "^a{1,1001}$"), KafkaError.INVALID_REGULAR_EXPRESSION),
        (
            make_member(f"{name}-2", make_topic(), group_remote_assignor="none"),
            KafkaError.UNSUPPORTED_ASSIGNOR,
        ),
    ):
        found: list[int] = []

        def is_refused(consumer: Any = consumer, found: list[int] = found) -> bool:
            message = consumer.poll(0.1)
            if message is not None and message.error() is not None:
                found.append(message.error().code())
            return bool(found)

        wait_for(is_refused, 60)
        assert found[0] in (code, KafkaError._FATAL), found


def test_group_is_described_and_listed(
    admin: AdminClient, make_topic: MakeTopic, make_member: MakeMember, name: str
) -> None:
    topic = make_topic(2)
    member = Member(make_member(name, topic, client_id="c"), poll)
    wait_for_shares([member], [2])
    described = admin.describe_consumer_groups([name])[name].result(60)
    assert (described.state.name, described.type) == ("STABLE", ConsumerGroupType.CONSUMER)
    (one,) = described.members
    assert one.client_id == "c"
    for assignment in (one.assignment, one.target_assignment):
        assert sorted(at.partition for at in assignment.topic_partitions) == [0, 1]
    listed = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(60)
    assert name in {group.group_id for group in listed.valid}
    listed = admin.list_consumer_groups(types={ConsumerGroupType.CLASSIC}).result(60)
    assert name not in {group.group_id for group in listed.valid}
    member.leave()
    admin.delete_consumer_groups([name])[name].result(60)


def test_empty_groups_change_their_protocol(
    bootstrap: str, make_topic: MakeTopic, make_member: MakeMember, make_consumer: Any, name: str
) -> None:
    """Offsets are kept from classic to consumer and back."""
    topic = make_topic()
    produce(bootstrap, topic, [{"value": b"%d" % i} for i in range(3)])
    for made in (make_consumer, make_member, make_consumer):
        consumer = made(name, topic)
        (message,) = read(consumer, 1)
        consumer.commit(message=message, asynchronous=False)
        consumer.close()
    assert message.offset() == 2


def test_operators_see_members_epochs_and_targets(
    bootstrap: str, make_topic: MakeTopic, make_member: MakeMember, name: str
) -> None:
    topic = make_topic(2)
    produce(bootstrap, topic, [{"value": b"x", "partition": p} for p in range(2)])
    member = Member(make_member(name, topic, client_id="c"), poll)
    wait_for(lambda: len(member.records) == 2)
    (shown,) = Typed(bootstrap, "groups", "describe", name, "--json").json
    assert (shown["state"], shown["type"], shown["protocol"]) == ("Stable", "consumer", "uniform")
    assert shown["epoch"] == shown["assignment_epoch"] > 0
    (one,) = shown["members"]
    assert one["assigned"] == one["target"] == [f"{topic}:0,1"]
    assert one["epoch"] == shown["epoch"]
    table = Typed(bootstrap, "groups", "describe", name).out
    assert f"consumer group in epoch {shown['epoch']}" in table
    listed = {row["group"]: row for row in Typed(bootstrap, "groups", "list", "--json").json}
    assert (listed[name]["type"], listed[name]["state"]) == ("consumer", "Stable")
    assert [row["lag"] for row in shown["offsets"]] == [None, None]  # nothing is committed
    why = Typed(bootstrap, "groups", "why", name)
    assert "2 partitions" in why.out, why.out
    member.leave()
