"""Why a group makes no progress: each rule on groups built by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kafkawire.client.group_causes import Cause, Observation, OpenTransaction, causes, join_names
from kafkawire.client.groups import GroupDescription, GroupMember
from kafkawire.client.lag import GroupLag, PartitionLag
from kafkawire.messages.group_activity import (
    ActiveMember,
    GroupActivityResponse,
    PendingProducer,
)

NOW = 1_000_000_000
HOUR = 3_600_000


def row(index: int = 0, committed: int | None = 10, **changed: Any) -> PartitionLag:
    fields = {"owner": "m1", "log_start": 0, "log_end": 10, "stable": 10, "leader": 1}
    return PartitionLag(("t", index), committed, **{**fields, **changed})


def group(*rows: PartitionLag, state: str = "Stable", members: int = 1, **active: Any) -> GroupLag:
    names = [f"m{n + 1}" for n in range(members)]
    owned = {name: [each.partition for each in rows if each.owner == name] for name in names}
    described = [
        GroupMember(name, None, f"client{name}", "/h", owned[name], ["t"]) for name in names
    ]
    description = GroupDescription("g", state, "consumer", "range", 1, described)
    response = GroupActivityResponse(group_state=state, **active) if active else None
    return GroupLag(description, list(rows), response)


def found(group: GroupLag, **more: Any) -> dict[str, Cause]:
    return {cause.kind: cause for cause in causes(Observation(group, NOW, **more))}


def test_healthy_group() -> None:
    assert list(found(group(row()))) == ["healthy"]
    assert "1 member, lag 0 over 1 partition." in found(group(row()))["healthy"].sentence


def test_no_members() -> None:
    cause = found(group(row(committed=4), state="Empty", members=0, since_timestamp=NOW - HOUR))
    assert list(cause) == ["no-members"]
    assert cause["no-members"].stuck
    assert "no members for 1 h:" in cause["no-members"].sentence
    assert "left to read: 6." in cause["no-members"].sentence


def test_rebalance_names_the_member_that_has_not_rejoined() -> None:
    members = [
        ActiveMember("m1", None, "c1", "/h1", rebalance_timeout_ms=60_000, rejoined=True),
        ActiveMember("m2", "static-2", "c2", "/h2", rebalance_timeout_ms=300_000),
    ]
    stuck = group(row(), state="PreparingRebalance", since_timestamp=NOW - 42_000, members=2)
    assert stuck.active is not None
    stuck.active.members = members
    sentence = found(stuck)["rebalancing"].sentence
    assert "rebalancing for 42 s" in sentence
    assert "for 1 of 2 members to join again, for at most 5 min" in sentence
    assert "c2 at /h2 (static-2)" in sentence
    assert "c1" not in sentence


def test_rebalance_waits_for_leader_or_new_member() -> None:
    waiting = group(row(), state="CompletingRebalance", leader="m1", since_timestamp=NOW - 1)
    assert waiting.active is not None
    waiting.active.members = [ActiveMember("m1", None, "c1", "/h1")]
    assert "c1 at /h1 (m1), the leader." in found(waiting)["rebalancing"].sentence
    new = group(row(), state="PreparingRebalance", joining_members=2)
    assert "2 new members to join" in found(new)["rebalancing"].sentence
    other = group(row(), state="PreparingRebalance")
    assert "kafkawire brokers only" in found(other)["rebalancing"].sentence


def test_partition_without_owner_or_subscription() -> None:
    cause = found(group(row(), row(1, owner=None)))["no-owner"]
    assert cause.stuck
    assert cause.partitions == [("t", 1)]
    other = replace(row(owner=None), partition=("old", 0))
    assert found(group(row(), other))["not-subscribed"].partitions == [("old", 0)]


def test_committed_offset_outside_log() -> None:
    below = found(group(row(committed=2, log_start=5)))["below-log-start"]
    assert "3 records were deleted unread" in below.sentence
    assert found(group(row(committed=11)))["above-log-end"].stuck


def test_deleted_topic() -> None:
    gone = found(group(row(log_end=None, log_start=None)))
    assert gone["unknown-partition"].partitions == [("t", 0)]


def test_open_transaction_is_named() -> None:
    held = group(row(committed=7, stable=7))
    opened = OpenTransaction(17, "pay-1", NOW - 180_000, 7)
    cause = found(held, transactions={("t", 0): opened})["open-transaction"]
    assert cause.stuck
    assert "stop at offset 7 of t:0, 3 offsets before the end" in cause.sentence
    assert "producer 17 (transactional id pay-1), last active 3 min ago" in cause.sentence
    early = found(group(row(committed=3, stable=7)), transactions={("t", 0): None})
    assert not early["open-transaction"].stuck


def test_pending_offsets_of_a_transaction() -> None:
    pending = group(row(), since_timestamp=1)
    assert pending.active is not None
    pending.active.pending_producers = [PendingProducer(5, 2)]
    cause = found(pending, transactional_ids={5: "pay-2"})["pending-offsets"]
    assert "2 offsets of the group" in cause.sentence
    assert "5 (pay-2)" in cause.sentence


def test_no_commits_for_a_long_time() -> None:
    late = group(row(committed=4, committed_ms=NOW - 2 * HOUR))
    cause = found(late)["no-commits"]
    assert cause.stuck
    assert "a lag of 6, and the last commit was 2 h ago" in cause.sentence
    assert list(found(group(row(committed_ms=NOW - 2 * HOUR)))) == ["healthy"]
    never = found(group(row(committed=None)))
    assert list(never) == ["healthy", "never-committed"]


def test_lag_grows_between_two_observations() -> None:
    before = group(row(committed=4))
    cause = found(group(row(committed=5, log_end=21)), before=before, seconds=2.0)["lag-grows"]
    assert "from 6 to 16 in 2 s" in cause.sentence
    assert "6 records/s arrived" in cause.sentence
    assert "no-progress" in found(before, before=before, seconds=2.0)


def test_more_members_than_partitions() -> None:
    assert "1 of 2 members" in found(group(row(), members=2))["idle-members"].sentence


def test_names_in_a_sentence_are_bounded() -> None:
    assert join_names([str(n) for n in range(7)]) == "0, 1, 2, 3, 4, 2 more"


def consumer_group(state: str, *members: GroupMember) -> GroupLag:
    description = GroupDescription(
        "g", state, "consumer", "uniform", 1, list(members), "consumer", 5, 4
    )
    return GroupLag(description, [row()], None)


def test_consumer_group_names_the_member_that_has_not_released() -> None:
    slow = GroupMember("m1", None, "c1", "/h1", [("t", 0), ("t", 1)], ["t"], 3, [("t", 0)])
    waiting = GroupMember("m2", "i2", "c2", "/h2", [], ["t"], 4, [("t", 1)])
    cause = found(consumer_group("Reconciling", slow, waiting))["reconciling"]
    assert (cause.stuck, cause.partitions) == (True, [("t", 1)])
    assert "assignment of epoch 4. It waits for 1 member to release" in cause.sentence
    assert "c1 at /h1 (m1): t:1." in cause.sentence
    assert "c2" not in cause.sentence
    moved = slow._replace(assigned=[("t", 0)])
    assert not found(consumer_group("Reconciling", moved, waiting))["reconciling"].stuck


def test_consumer_group_with_a_due_assignment_is_not_stuck() -> None:
    member = GroupMember("m1", None, "c1", "/h1", [("t", 0)], ["t"], 4, [("t", 0)])
    cause = found(consumer_group("Assigning", member))
    assert not cause["assigning"].stuck
    assert "rebalancing" not in cause
