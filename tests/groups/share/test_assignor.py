"""The assignor `simple`: every partition read, balanced, few moves."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from kafkawire.groups.consumer.assignors import MemberSubscription
from kafkawire.groups.consumer.member import Target
from kafkawire.groups.share.assignor import assign_simple

TOPICS = [bytes([n]) * 16 for n in range(1, 4)]
SIZES = st.fixed_dictionaries(
    {topic: st.frozensets(st.integers(0, 8), max_size=8) for topic in TOPICS}
)
SUBSCRIPTIONS = st.frozensets(st.sampled_from(TOPICS), min_size=1)
GROUPS = st.lists(SUBSCRIPTIONS, min_size=1, max_size=9)


def members(subscriptions: list[frozenset[bytes]], first: int = 0) -> list[MemberSubscription]:
    return [
        MemberSubscription(f"m{first + n}", None, topics) for n, topics in enumerate(subscriptions)
    ]


def flat(target: Target) -> set[tuple[bytes, int]]:
    return {(topic_id, at) for topic_id, found in target.items() for at in found}


def check(
    group: list[MemberSubscription],
    assignable: dict[bytes, frozenset[int]],
    targets: dict[str, Target],
) -> None:
    assert targets.keys() == {member.id for member in group}
    assert all(found for target in targets.values() for found in target.values())
    given = {member_id: flat(target) for member_id, target in targets.items()}
    for member in group:
        assert {topic_id for topic_id, _ in given[member.id]} <= member.topics
        assert given[member.id] <= flat(assignable)
    for topic_id, partitions in assignable.items():
        readers = [member.id for member in group if topic_id in member.topics]
        for at in partitions if readers else ():
            assert any((topic_id, at) in given[member_id] for member_id in readers)
        # Every subscriber reads something, if there is anything.
        for member_id in readers if partitions else ():
            assert given[member_id]


@given(GROUPS, SIZES, st.data())
def test_every_partition_is_read(
    subscriptions: list[frozenset[bytes]],
    assignable: dict[bytes, frozenset[int]],
    data: st.DataObject,
) -> None:
    group = members(subscriptions)
    targets = assign_simple(group, assignable, {})
    check(group, assignable, targets)
    # It depends on the arguments only, and keeps what it has given.
    shuffled = data.draw(st.permutations(group))
    assert assign_simple(shuffled, assignable, {}) == targets
    # After a change it is as good.
    changed = members(data.draw(GROUPS), data.draw(st.integers(0, 4)))
    sizes = data.draw(SIZES)
    check(changed, sizes, assign_simple(changed, sizes, targets))


@given(st.integers(1, 12), st.lists(st.integers(0, 9), min_size=1, max_size=3), st.integers(0, 99))
def test_members_with_the_same_topics_are_within_one(
    count: int, sizes: list[int], seed: int
) -> None:
    topics = TOPICS[: len(sizes)]
    assignable = {topic: frozenset(range(n)) for topic, n in zip(topics, sizes, strict=True)}
    source = random.Random(seed)
    targets: dict[str, Target] = {}
    for number in (count, source.randint(1, 12), count):
        group = members([frozenset(topics)] * number)
        targets = assign_simple(group, assignable, targets)
        loads = [len(flat(target)) for target in targets.values()]
        assert max(loads) - min(loads) <= 1
        readers = [
            sum(place in flat(target) for target in targets.values()) for place in flat(assignable)
        ]
        assert not readers or max(readers) - min(readers) <= 1
        assert assign_simple(group, assignable, targets) == targets


def test_few_partitions_move() -> None:
    topics = frozenset(TOPICS[:1])
    assignable = {TOPICS[0]: frozenset(range(12))}
    before = assign_simple(members([topics] * 3), assignable, {})
    after = assign_simple(members([topics] * 4), assignable, before)
    kept = sum(len(flat(before[m]) & flat(after[m])) for m in before)
    assert kept == 9
