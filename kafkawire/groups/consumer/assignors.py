"""The assignors `uniform` and `range` (KIP-848): who is to have which partition. Pure.

They are generators: for a group of thousands of members the caller runs them in slices. Every
partition of a topic with a subscriber gets exactly one owner, which subscribes to it. The results
depend on the arguments only, not on the order of members.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple

from kafkawire.groups.consumer.member import NO_TARGET, Target

MAX_PASSES = 16
"""Passes over all topics that move partitions while members subscribe to different topics. Each
pass takes time with members and partitions, and few are ever needed; then the result is less
balanced than it could be (Kafka has such a limit, too)."""


class MemberSubscription(NamedTuple):
    """A member of the group as assignors see it. `topics`: ids of existing topics."""

    id: str
    instance_id: str | None
    topics: frozenset[bytes]


Sizes = Mapping[bytes, int]
"""Topic id -> number of partitions."""
Targets = Generator[None, None, dict[str, Target]]
"""The steps of an assignor, some microseconds each; returns the target of each member."""
Assignor = Callable[[Sequence[MemberSubscription], Sizes, Mapping[str, Target]], Targets]
"""The last argument is the previous target."""

_Steps = Generator[None, None, None]
_Loads = dict[bytes, set[int]]


def assign_uniform(
    members: Sequence[MemberSubscription], sizes: Sizes, previous: Mapping[str, Target]
) -> Targets:
    """Give all members the same number of partitions, moving as few as possible.

    Within one of each other if all subscribe to the same topics. Otherwise partitions go to the
    subscriber with the fewest, as far as MAX_PASSES reach.
    """
    if len({member.topics for member in members}) <= 1:
        return (yield from _assign_same(members, sizes, previous))
    return (yield from _assign_different(members, sizes, previous))


def _assign_same(
    members: Sequence[MemberSubscription], sizes: Sizes, previous: Mapping[str, Target]
) -> Targets:
    if not members:
        return {}
    owned, free = yield from _keep(members, sizes, previous)
    # Of the members some have one more than the others: those that have the most already.
    order = sorted(members, key=lambda member: (-len(owned[member.id]), member.id))
    total = sum(sizes[topic_id] for topic_id in members[0].topics)
    least, more = divmod(total, len(members))
    given: list[tuple[str, int]] = []
    for number, member in enumerate(order):
        quota = least + (number < more)
        kept = owned[member.id]
        free += kept[quota:]
        del kept[quota:]
        given.append((member.id, quota - len(kept)))
        yield
    free.sort()
    at = 0
    for member_id, count in given:
        owned[member_id] += free[at : at + count]
        at += count
        yield
    targets: dict[str, Target] = {}
    for member in members:
        targets[member.id] = _target(owned[member.id])
        yield
    return targets


def _assign_different(
    members: Sequence[MemberSubscription], sizes: Sizes, previous: Mapping[str, Target]
) -> Targets:
    owned, free = yield from _keep(members, sizes, previous)
    subscribers: dict[bytes, list[str]] = {}
    for member in sorted(members, key=lambda member: member.id):
        for topic_id in member.topics:
            subscribers.setdefault(topic_id, []).append(member.id)
        yield
    loads = {member_id: len(partitions) for member_id, partitions in owned.items()}
    sets: dict[str, _Loads] = {member_id: {} for member_id in owned}
    for member_id, partitions in owned.items():
        for topic_id, partition in partitions:
            sets[member_id].setdefault(topic_id, set()).add(partition)
        yield
    unassigned: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(free):
        unassigned.setdefault(topic_id, []).append(partition)
    # Topics with few subscribers first: the others have more choice.
    order = sorted(subscribers, key=lambda topic_id: (len(subscribers[topic_id]), topic_id))
    for topic_id in order:
        given = unassigned.get(topic_id, [])
        yield from _give(given, topic_id, subscribers[topic_id], loads, sets)
    for _ in range(MAX_PASSES):
        moved = 0
        for topic_id in order:
            moved += yield from _balance(topic_id, subscribers[topic_id], loads, sets)
        if not moved:
            break
    return (yield from _freeze(sets))


def _freeze(sets: Mapping[str, _Loads]) -> Targets:
    targets: dict[str, Target] = {}
    for member_id, found in sets.items():
        targets[member_id] = {topic_id: frozenset(indexes) for topic_id, indexes in found.items()}
        yield
    return targets


def _give(
    partitions: Iterable[int],
    topic_id: bytes,
    candidates: Sequence[str],
    loads: dict[str, int],
    sets: dict[str, _Loads],
) -> _Steps:
    """Give each partition to the candidate with the fewest."""
    heap = [(loads[member_id], member_id) for member_id in candidates]
    heapify(heap)
    for partition in partitions:
        load, member_id = heap[0]
        sets[member_id].setdefault(topic_id, set()).add(partition)
        loads[member_id] = load + 1
        heapreplace(heap, (load + 1, member_id))
        yield


def _balance(
    topic_id: bytes, candidates: Sequence[str], loads: dict[str, int], sets: dict[str, _Loads]
) -> Generator[None, None, int]:
    """Move partitions of a topic from members with many to members with few; return how many."""
    moved = 0
    givers = [(-loads[id_], id_) for id_ in candidates if sets[id_].get(topic_id)]
    takers = [(loads[id_], id_) for id_ in candidates]
    heapify(givers)
    heapify(takers)
    while givers:
        yield
        # An entry is out of date if its member was in the other heap, too.
        if -givers[0][0] != loads[givers[0][1]]:
            _refresh(givers, -loads[givers[0][1]])
            continue
        if takers[0][0] != loads[takers[0][1]]:
            _refresh(takers, loads[takers[0][1]])
            continue
        giver, taker = givers[0][1], takers[0][1]
        if loads[giver] - loads[taker] < 2:
            break
        found = sets[giver][topic_id]
        partition = max(found)
        found.remove(partition)
        sets[taker].setdefault(topic_id, set()).add(partition)
        loads[giver] -= 1
        loads[taker] += 1
        moved += 1
        _refresh(takers, loads[taker])
        if found:
            _refresh(givers, -loads[giver])
        else:
            del sets[giver][topic_id]
            givers[0] = givers[-1]
            givers.pop()
            heapify(givers)
    return moved


def _refresh(heap: list[tuple[int, str]], load: int) -> None:
    heapreplace(heap, (load, heap[0][1]))


def _keep(
    members: Sequence[MemberSubscription], sizes: Sizes, previous: Mapping[str, Target]
) -> Generator[None, None, tuple[dict[str, list[tuple[bytes, int]]], list[tuple[bytes, int]]]]:
    """Return what each member may keep of the previous target, in order, and what no member has."""
    taken: dict[bytes, set[int]] = {}
    owned: dict[str, list[tuple[bytes, int]]] = {}
    for member in sorted(members, key=lambda member: member.id):
        kept = owned[member.id] = []
        target = previous.get(member.id, NO_TARGET)
        for topic_id in sorted(target.keys() & member.topics):
            others = taken.setdefault(topic_id, set())
            for partition in sorted(target[topic_id] - others):
                # The topic may have been deleted and created again with fewer.
                if partition < sizes[topic_id]:
                    kept.append((topic_id, partition))
                    others.add(partition)
        yield
    topics = frozenset[bytes]().union(*{member.topics for member in members})
    free: list[tuple[bytes, int]] = []
    for topic_id in sorted(topics):
        others = taken.get(topic_id, set())
        free += [(topic_id, at) for at in range(sizes[topic_id]) if at not in others]
        yield
    return owned, free


def _target(partitions: Iterable[tuple[bytes, int]]) -> Target:
    found: dict[bytes, list[int]] = {}
    for topic_id, partition in partitions:
        found.setdefault(topic_id, []).append(partition)
    return {topic_id: frozenset(indexes) for topic_id, indexes in found.items()}


def assign_ranges(
    members: Sequence[MemberSubscription], sizes: Sizes, previous: Mapping[str, Target]
) -> Targets:
    """Give each subscriber of a topic a range of its partitions, in the order of members.

    With the same subscriptions and sizes a member gets the same partitions of each topic. The order
    is that of instance ids, then of member ids, so that a restart of static members moves nothing.
    """
    order = sorted(
        members, key=lambda member: (member.instance_id is None, member.instance_id or member.id)
    )
    counts: dict[bytes, int] = {}
    for member in order:
        for topic_id in member.topics:
            counts[topic_id] = counts.get(topic_id, 0) + 1
        yield
    given = dict.fromkeys(counts, 0)  # members that have their range
    targets: dict[str, Target] = {}
    for member in order:
        target: dict[bytes, frozenset[int]] = {}
        for topic_id in sorted(member.topics):
            least, more = divmod(sizes[topic_id], counts[topic_id])
            number = given[topic_id]
            given[topic_id] = number + 1
            # The first `more` ranges are one longer.
            start = number * least + min(number, more)
            end = start + least + (number < more)
            if start < end:
                target[topic_id] = frozenset(range(start, end))
        targets[member.id] = target
        yield
    return targets


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_ranges}
