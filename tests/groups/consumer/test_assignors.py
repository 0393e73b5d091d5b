"""The assignors: complete, one owner each, balanced, and sticky as far as balance allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.groups.consumer import assignors
from kafkawire.groups.consumer.assignors import Assignor, MemberSubscription, Sizes
from kafkawire.groups.consumer.member import Target
from kafkawire.log.io.slices import run_at_once

Run = Callable[[Sequence[MemberSubscription], Sizes, Mapping[str, Target]], dict[str, Target]]


def at_once(assignor: Assignor) -> Run:
    """The assignor as a function."""
    return lambda members, sizes, previous: run_at_once(assignor(members, sizes, previous))


assign_ranges = at_once(assignors.assign_ranges)
assign_uniform = at_once(assignors.assign_uniform)
ASSIGNORS = {name: at_once(assignor) for name, assignor in assignors.ASSIGNORS.items()}
TOPICS = [bytes([n]) * 16 for n in range(4)]
SIZES = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9), min_size=1)
NAMES = [f"m{n}" for n in range(7)]


def subscriber(
    name: str, topics: frozenset[bytes], instance_id: str | None = None
) -> MemberSubscription:
    return MemberSubscription(name, instance_id, topics)


@st.composite
def groups(draw: st.DrawFn, *, same: bool = False) -> tuple[list[MemberSubscription], Sizes]:
    sizes = draw(SIZES)
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
    every = frozenset(sizes)
    members = []
    for name in names:
        topics = every if same else frozenset(draw(st.sets(st.sampled_from(sorted(every)))))
        instance_id = draw(st.sampled_from([None, f"i-{name}"]))
        members.append(subscriber(name, topics, instance_id))
    return members, sizes


PREVIOUS = st.dictionaries(
    st.sampled_from(NAMES),
    st.dictionaries(st.sampled_from(TOPICS), st.frozensets(st.integers(0, 12), min_size=1)),
)


def owners(targets: dict[str, Target]) -> Counter[tuple[bytes, int]]:
    return Counter(
        (topic_id, partition)
        for target in targets.values()
        for topic_id, partitions in target.items()
        for partition in partitions
    )


def loads(targets: dict[str, Target]) -> list[int]:
    return [sum(map(len, target.values())) for target in targets.values()]


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS)
@given(group=groups(), previous=PREVIOUS)
def test_each_partition_has_one_owner_that_subscribes_to_it(
    assignor: Run, group: tuple[list[MemberSubscription], Sizes], previous: dict[str, Target]
) -> None:
    members, sizes = group
    targets = assignor(members, sizes, previous)
    subscribed = {topic_id for member in members for topic_id in member.topics}
    assert owners(targets) == Counter(
        (topic_id, partition) for topic_id in subscribed for partition in range(sizes[topic_id])
    )
    assert targets.keys() == {member.id for member in members}
    for member in members:
        assert targets[member.id].keys() <= member.topics
        assert all(targets[member.id].values()), "no topic without partitions"


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS)
@given(group=groups(), previous=PREVIOUS, seed=st.randoms(use_true_random=False))
def test_the_order_of_members_does_not_matter(
    assignor: Run,
    group: tuple[list[MemberSubscription], Sizes],
    previous: dict[str, Target],
    seed: object,
) -> None:
    members, sizes = group
    shuffled = list(members)
    seed.shuffle(shuffled)  # type: ignore[attr-defined]
    first = assignor(members, sizes, previous)
    assert assignor(shuffled, sizes, previous) == first


@given(group=groups(same=True), previous=PREVIOUS)
def test_uniform_is_balanced_within_one(
    group: tuple[list[MemberSubscription], Sizes], previous: dict[str, Target]
) -> None:
    members, sizes = group
    found = loads(assign_uniform(members, sizes, previous))
    assert max(found) - min(found) <= 1


@given(group=groups(same=True), previous=groups(same=True))
def test_uniform_moves_no_more_than_balance_needs(
    group: tuple[list[MemberSubscription], Sizes], previous: tuple[list[MemberSubscription], Sizes]
) -> None:
    members, sizes = group
    before = assign_uniform(previous[0], {**sizes, **previous[1]}, {})
    after = assign_uniform(members, sizes, before)
    total = sum(sizes.values())
    least, more = divmod(total, len(members))
    had = sorted(
        (
            sum(
                partition < sizes[topic_id]
                for topic_id, partitions in before.get(member.id, {}).items()
                if topic_id in sizes
                for partition in partitions
            )
            for member in members
        ),
        reverse=True,
    )
    # The most that any balanced assignment can keep.
    possible = sum(min(count, least + (n < more)) for n, count in enumerate(had))
    kept = sum(
        len(after[member.id].get(topic_id, frozenset()) & partitions)
        for member in members
        for topic_id, partitions in before.get(member.id, {}).items()
    )
    assert kept == possible
    assert assign_uniform(members, sizes, after) == after


@given(group=groups(), previous=PREVIOUS)
def test_uniform_leaves_no_useful_move_with_different_subscriptions(
    group: tuple[list[MemberSubscription], Sizes], previous: dict[str, Target]
) -> None:
    members, sizes = group
    targets = assign_uniform(members, sizes, previous)
    for taker in members:
        for giver in members:
            # Few members and topics: the limit of passes is not reached.
            if targets[giver.id].keys() & taker.topics:
                moved = dict(targets)
                load = {m.id: sum(map(len, moved[m.id].values())) for m in members}
                assert load[giver.id] - load[taker.id] <= 1
    assert assign_uniform(members, sizes, targets) == targets


def test_a_member_that_joins_takes_only_its_share() -> None:
    topics = frozenset(TOPICS[:1])
    two = [subscriber(name, topics) for name in ("a", "b")]
    before = assign_uniform(two, {TOPICS[0]: 6}, {})
    after = assign_uniform([*two, subscriber("c", topics)], {TOPICS[0]: 6}, before)
    for name in ("a", "b"):
        assert after[name][TOPICS[0]] < before[name][TOPICS[0]]
    assert loads(after) == [2, 2, 2]


def test_ranges_are_contiguous_and_the_same_in_topics_of_equal_size() -> None:
    topics = frozenset(TOPICS[:2])
    members = [subscriber(name, topics) for name in ("b", "a")]
    targets = assign_ranges(members, dict.fromkeys(topics, 3), {})
    assert targets["a"] == dict.fromkeys(topics, frozenset({0, 1}))
    assert targets["b"] == dict.fromkeys(topics, frozenset({2}))


def test_ranges_of_static_members_survive_a_restart() -> None:
    topics = frozenset(TOPICS[:1])
    sizes = {TOPICS[0]: 5}
    before = [subscriber("x", topics, "i1"), subscriber("y", topics, "i2")]
    after = [subscriber("z", topics, "i1"), subscriber("a", topics, "i2")]
    first, again = assign_ranges(before, sizes, {}), assign_ranges(after, sizes, {})
    assert (first["x"], first["y"]) == (again["z"], again["a"])


def test_thousands_of_members_are_balanced() -> None:
    topics = frozenset(TOPICS)
    members = [subscriber(f"m{n}", topics) for n in range(2000)]
    targets = assign_uniform(members, dict.fromkeys(TOPICS, 1000), {})
    assert set(loads(targets)) == {2}
