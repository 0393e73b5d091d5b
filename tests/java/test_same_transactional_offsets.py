"""Offsets that groups commit in transactions, as in Apache Kafka."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kafkawire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.java.calls.wire import Owner
from tests.java.transactional import Side, on_both
from tests.kit.waiting import wait_until

UNSTABLE, OLD_FENCED, INVALID_STATE, ABORTABLE, MISMATCH = 88, 47, 48, 120, 49
BAD_MEMBER, BAD_GENERATION = 25, 22


@pytest.mark.parametrize("version", range(6))
def test_offsets_become_visible_with_the_commit(sides: list[tuple[str, str]], version: int) -> None:
    @on_both
    def conversation(side: Side) -> None:
        topic, group = side.topic(), side.new("g")
        part = topic, 0
        assert side.commit_plainly(group, part, 10) == 0
        owner = side.owner()
        offset = 10
        for number, commit in enumerate((True, False, True)):
            side.add_offsets(owner, group)
            rows = {part: 20 + number, (topic, 1): 30 + number}
            assert side.txn_commit(owner, group, rows, version) == [0, 0]
            for fetched in range(1, 8):
                assert side.committed(group, part, version=fetched) == (0, offset)
            assert side.committed(group, part, stable=True) == (UNSTABLE, -1)
            assert side.end_old(owner, commit) == 0
            side.settle(owner)
            offset = 20 + number if commit else offset
            assert side.committed(group, part, stable=True) == (0, offset)
        assert side.committed(group, (topic, 1)) == (0, 32)

    conversation(sides)


@pytest.mark.parametrize(
    ("version", "code"),
    [*((version, INVALID_STATE) for version in range(4)), (4, ABORTABLE), (5, 0)],
)
def test_offsets_of_a_group_not_added(
    sides: list[tuple[str, str]], version: int, code: int
) -> None:
    @on_both
    def conversation(side: Side) -> None:
        topic, group = side.topic(), side.new("g")
        owner = side.owner()
        assert side.txn_commit(owner, group, {(topic, 0): 1}, version) == [code]
        _, _, _, _, parts = side.describe_quietly(owner.id or "")
        assert {name for name, _ in parts} == (set() if code else {"__consumer_offsets"})
        assert side.committed(group, (topic, 0), stable=True) == (0 if code else UNSTABLE, -1)
        for wrong, expected in (
            (owner._replace(id=side.new("unknown")), MISMATCH),
            (owner._replace(pid=1 << 40), MISMATCH),
            (owner.at(1), OLD_FENCED),
        ):
            assert side.txn_commit(wrong, side.new("h"), {(topic, 0): 1}, version) == [expected]
        if not code:
            owner = side.end_new(owner, True)
            assert side.settle(owner) == "CompleteCommit"
            assert side.committed(group, (topic, 0), stable=True) == (0, 1)

    conversation(sides)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_checks_of_group_and_metadata(sides: list[tuple[str, str]], version: int) -> None:
    @on_both
    def conversation(side: Side) -> None:
        topic, group = side.topic(), side.new("g")
        part = topic, 0
        owner = side.owner()
        side.add_offsets(owner, group)

        def commit(**fields: object) -> int:
            return side.txn_commit(owner, group, {part: 1}, version, **fields)[0]

        assert commit(generation_id=99) == BAD_GENERATION
        assert commit(generation_id=-1) == 0
        rows = {part: 1, (side.new("nosuch"), 0): 1, (topic, 99): 1}
        assert side.txn_commit(owner, group, rows, version) == [0, 3, 3]
        assert commit(note="n" * 4097) == 12
        assert commit(note="n" * 4096) == 0
        assert side.txn_commit(owner, "", {part: 1}, version) == [24]
        assert side.end_old(owner, True) == 0
        side.settle(owner)
        assert side.committed(group, part, stable=True) == (0, 1)

    conversation(sides)


@pytest.mark.parametrize("version", [3, 5])
def test_checks_of_the_member(sides: list[tuple[str, str]], version: int) -> None:
    @on_both
    def conversation(side: Side) -> None:
        topic, group = side.topic(), side.new("g")
        owner = side.owner()
        side.add_offsets(owner, group)
        member = side.join(group, "i")

        def commit(member: str = member, generation: int = 1, instance: str | None = "i") -> int:
            return side.txn_commit(
                owner,
                group,
                {(topic, 0): 1},
                version,
                member_id=member,
                generation_id=generation,
                group_instance_id=instance,
            )[0]

        for _ in range(2):  # while its leader has not assigned partitions yet, and after that
            assert commit() == 0
            assert commit("", -1, None) == 0
            assert commit("stranger", 1, None) == BAD_MEMBER
            assert commit(generation=7) == BAD_GENERATION
            assert commit("stranger", 1, "i") == 82
            assert commit("", 1, None) == BAD_MEMBER
            assert commit(instance="other") == BAD_MEMBER
            side.sync(group, member, 1)
        assert side.end_old(owner, True) == 0

    conversation(sides)


@on_both
def test_members_commit_while_others_join(side: Side) -> None:
    """Unlike OffsetCommit, which is answered REBALANCE_IN_PROGRESS."""
    topic, group = side.topic(), side.new("g")
    owner = side.owner()
    side.add_offsets(owner, group)
    member = side.join(group)
    side.sync(group, member, 1)
    with ThreadPoolExecutor(1) as pool, side.another() as second:
        joining = pool.submit(second.join, group)
        wait_until(lambda: side.group_state(group) == "PreparingRebalance", "the second member")
        for version in (3, 5):
            ids: dict[str, Any] = {"member_id": member, "generation_id": 1}
            assert side.txn_commit(owner, group, {(topic, 0): 1}, version, **ids) == [0]
            assert side.txn_commit(owner, group, {(topic, 0): 2}, version) == [0]
            ids["generation_id"] = 2
            codes = side.txn_commit(owner, group, {(topic, 0): 3}, version, **ids)
            assert codes == [BAD_GENERATION]
        side.join(group, member=member)
        joining.result(60)
    assert side.end_old(owner, True) == 0
    side.settle(owner)
    assert side.committed(group, (topic, 0), stable=True) == (0, 2)


@on_both
def test_stable_offsets_in_each_version(side: Side) -> None:
    topic, group = side.topic(), side.new("g")
    assert side.commit_plainly(group, (topic, 0), 10) == 0
    owner = side.owner()
    side.add_offsets(owner, group)
    assert side.txn_commit(owner, group, {(topic, 1): 20}) == [0]
    names = [OffsetFetchRequestTopics(topic, partition_indexes=[0, 1, 99])]
    for version in (8, 9):
        for topics in (names, None):
            for stable in (True, False):
                rows = [OffsetFetchRequestGroup(group, topics=topics)]
                request = OffsetFetchRequest(groups=rows, require_stable=stable)
                answer = side.send("OffsetFetch", request, version)
                for found in answer.groups[0].topics:
                    found.partitions.sort(key=lambda row: row.partition_index)
                side.note(f"OffsetFetch v{version}", answer)
    assert side.end_old(owner, False) == 0


@on_both
def test_plain_commit_after_a_pending_one_wins(side: Side) -> None:
    part, group = (side.topic(), 0), side.new("g")
    owner = side.owner()
    side.add_offsets(owner, group)
    assert side.txn_commit(owner, group, {part: 40}) == [0]
    assert side.commit_plainly(group, part, 50) == 0
    assert side.committed(group, part) == (0, 50)
    assert side.committed(group, part, stable=True) == (UNSTABLE, -1)
    assert side.end_old(owner, True) == 0
    side.settle(owner)
    assert side.committed(group, part, stable=True) == (0, 50)


@pytest.mark.parametrize("what", ["offsets", "group"])
def test_pending_offsets_of_what_is_deleted(sides: list[tuple[str, str]], what: str) -> None:
    @on_both
    def conversation(side: Side) -> None:
        part, group = (side.topic(), 0), side.new("g")
        owner = side.owner()
        side.add_offsets(owner, group)
        assert side.commit_plainly(group, part, 30) == 0
        assert side.txn_commit(owner, group, {part: 40}) == [0]
        if what == "offsets":
            assert side.delete_offsets(group, part) == 0
        else:
            assert side.delete_group(group) == 0
        assert side.end_old(owner, True) == 0
        side.settle(owner)
        assert side.committed(group, part, stable=True) == (0, -1)

    conversation(sides)


@on_both
def test_two_transactions_of_one_group(side: Side) -> None:
    part, group = (side.topic(), 0), side.new("g")
    first, second = side.owner("A"), side.owner("B")
    for owner, offset in ((first, 5), (second, 6)):
        side.add_offsets(owner, group)
        assert side.txn_commit(owner, group, {part: offset}) == [0]
    assert side.end_old(second, True) == 0
    side.settle(second)
    assert side.committed(group, part) == (0, 6)
    assert side.committed(group, part, stable=True) == (UNSTABLE, -1)
    assert side.end_old(first, True) == 0  # was committed earlier: the newer offset stays
    side.settle(first)
    assert side.committed(group, part, stable=True) == (0, 6)


@on_both
def test_transaction_with_offsets_and_records(side: Side) -> None:
    part, group = (side.topic(), 0), side.new("g")
    owner: Owner = side.owner()
    for number in range(3):
        assert side.produce(part, owner, 0, version=12)[0] == 0
        assert side.txn_commit(owner, group, {part: number}, 5) == [0]
        owner = side.end_new(owner, number != 1)
        side.settle(owner)
        assert side.committed(group, part, stable=True) == (0, number if number != 1 else 0)
    assert side.fetch(part).stable == 6
