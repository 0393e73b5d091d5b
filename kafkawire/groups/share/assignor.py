"""The assignor `simple` (KIP-932): who reads which partition. Pure.

Every partition has at least one member, and every member reads a partition if it can. Where members
subscribe to the same topics, their numbers of partitions differ by one at most, and few partitions
move. Racks are not considered, as in Kafka.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from kafkawire.groups.consumer.assignors import MemberSubscription
from kafkawire.groups.consumer.member import NO_TARGET, Target

_Place = tuple[bytes, int]


def assign_simple(
    members: Sequence[MemberSubscription],
    assignable: Mapping[bytes, frozenset[int]],
    previous: Mapping[str, Target],
) -> dict[str, Target]:
    """Return the target of each member. `assignable`: the partitions of each topic that may be
    assigned. Depends on the arguments only, not on the order of members."""
    order = sorted(members, key=lambda member: member.id)
    targets: dict[str, dict[bytes, set[int]]] = {member.id: {} for member in order}
    topics = sorted(frozenset[bytes]().union(*(member.topics for member in order)))
    # Topics are shared out together if all members have the same ones, else one by one.
    alike = len({member.topics for member in order}) <= 1
    for part in [topics] if alike else [[topic_id] for topic_id in topics]:
        subscribers = [member.id for member in order if member.topics.issuperset(part)]
        partitions = [(each, at) for each in part for at in sorted(assignable.get(each, ()))]
        kept = {id_: _list_places(previous.get(id_, NO_TARGET), part) for id_ in subscribers}
        for member_id, given in _share_out(subscribers, partitions, kept).items():
            for topic_id, partition in given:
                targets[member_id].setdefault(topic_id, set()).add(partition)
    return {
        member_id: {topic_id: frozenset(found) for topic_id, found in target.items()}
        for member_id, target in targets.items()
    }


def _list_places(target: Target, topics: Iterable[bytes]) -> list[_Place]:
    return [(topic_id, at) for topic_id in topics for at in sorted(target.get(topic_id, ()))]


def _share_out(
    members: Sequence[str], partitions: Sequence[_Place], kept: Mapping[str, Sequence[_Place]]
) -> dict[str, set[_Place]]:
    """Give each partition to as many members as all others, and each member as many partitions."""
    given: dict[str, set[_Place]] = {member_id: set() for member_id in members}
    if not partitions or not members:
        return given
    readers = -(-len(members) // len(partitions))
    missing = dict.fromkeys(partitions, readers)
    least, more = divmod(readers * len(partitions), len(members))
    # Those that have the most already get one more than the others.
    order = sorted(members, key=lambda id_: (-len(kept[id_]), id_))
    quota = {id_: least + (number < more) for number, id_ in enumerate(order)}
    for member_id in order:
        for place in kept[member_id]:
            if len(given[member_id]) < quota[member_id] and missing.get(place, 0):
                given[member_id].add(place)
                missing[place] -= 1
    waiting = deque(id_ for id_ in order if len(given[id_]) < quota[id_])
    for place in partitions:
        passed: list[str] = []  # they have it
        while missing[place] and waiting:
            member_id = waiting.popleft()
            if place in given[member_id]:
                passed.append(member_id)
                continue
            given[member_id].add(place)
            missing[place] -= 1
            if len(given[member_id]) < quota[member_id]:
                waiting.append(member_id)
        waiting.extendleft(reversed(passed))
    # A member may be left that lacks only a partition that it has: with one fewer, as in Kafka.
    return given
