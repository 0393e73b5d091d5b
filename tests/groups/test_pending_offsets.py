"""Offsets committed in transactions: each rule of a coordinator partition, without a log."""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.codec.batches import build
from kafkawire.codec.control import COMMIT, pack_marker
from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.records import Offset, OffsetRecord, ended_producers
from kafkawire.groups.model.states import GroupState
from kafkawire.groups.model.transactional import PendingBatch
from kafkawire.messages.delete_groups import DeleteGroupsRequest
from tests.kit.groups.desk import commit_of, join, offset_delete
from tests.kit.groups.requests import group_request, records_of
from tests.kit.groups.transactions import PID, TxnDesk, codes, stable, verified

A, B = 4001, 4002
DAY_MS = 86_400_000

# -- who may commit ---------------------------------------------------------------------------


def test_unknown_group_without_generation_becomes_a_simple_group() -> None:
    desk = TxnDesk()
    assert desk.txn({("t", 0): 5}, generation=99, member="m") == [ErrorCode.ILLEGAL_GENERATION]
    assert not desk.shard.groups
    assert desk.txn({("t", 0): 5}) == [0]
    assert desk.group.state is GroupState.EMPTY
    assert desk.group.protocol_type is None


def test_empty_or_too_long_group_id_is_refused() -> None:
    desk = TxnDesk()
    assert desk.txn({("t", 0): 5}, group="") == [ErrorCode.INVALID_GROUP_ID]
    assert desk.txn({("t", 0): 5}, group="g" * 32_768) == [ErrorCode.INVALID_GROUP_ID]
    assert not desk.shard.groups


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({}, 0),  # versions before KIP-447, and producers that do not know their group
        ({"generation": 4, "member": "m"}, 0),
        ({"generation": 3, "member": "m"}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": 5, "member": "m"}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": -1, "member": "m"}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": 4, "member": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 4}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 3, "member": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 4, "member": "m", "instance": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
@pytest.mark.parametrize("rebalancing", [False, True])
def test_member_and_generation_are_checked_in_every_state(
    how: dict[str, Any], code: int, rebalancing: bool
) -> None:
    desk = TxnDesk()
    desk.members("t")
    if rebalancing:
        desk.ask(join(""), 3)
        assert desk.group.state is GroupState.PREPARING
    assert desk.txn({("t", 0): 1}, **how) == [code]
    assert bool(desk.decision.steps) == (code == 0)


def test_replaced_static_member_is_fenced() -> None:
    desk = TxnDesk()
    first = join("")
    first.group_instance_id = "i"
    desk.ask(first, 5)
    desk.do(desk.shard.decide_timer("g", "join", desk.now_ms))
    (member,) = desk.group.members
    how: dict[str, Any] = {"generation": 1, "instance": "i"}
    assert desk.txn({("t", 0): 1}, member=member, **how) == [0]  # CompletingRebalance: no 27
    assert desk.group.state is GroupState.COMPLETING
    assert desk.txn({("t", 0): 1}, member="old", **how) == [ErrorCode.FENCED_INSTANCE_ID]


def test_empty_group_accepts_any_member_without_generation() -> None:
    desk = TxnDesk()
    desk.members("t")
    desk.everybody_leaves()
    assert desk.txn({("t", 0): 1}, member="m") == [0]
    assert desk.txn({("t", 0): 1}, member="m", generation=5) == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_transactional_commit_does_not_extend_the_session() -> None:
    desk = TxnDesk()
    desk.members("t")
    desk.txn({("t", 0): 1}, generation=4, member="m")
    assert [type(effect).__name__ for effect in desk.decision.effects] == ["Reply"]


# -- what is written --------------------------------------------------------------------------


def test_metadata_limit_applies_per_partition() -> None:
    desk = TxnDesk()
    request = verified({("t", 0): 1, ("t", 1): 2}, metadata="x" * 4096)
    request.commit.topics[1].partitions[0].committed_metadata = "x" * 4097
    assert codes(desk.ask(request)) == [0, ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert desk.unstable(("t", 0), ("t", 1)) == [88, 0]  # no pending mark for ever: KAFKA-16371
    desk.end(commit=True)
    assert desk.all_of() == {("t", 0): 1}
    assert desk.txn({("t", 0): 9}, metadata="x" * 4097) == [12]
    assert not desk.decision.steps
    assert desk.unstable(("t", 0)) == [0]


def test_records_are_one_batch_of_the_producer() -> None:
    desk = TxnDesk()
    desk.txn({("t", 0): 1, ("u", 3): 2}, metadata=None, epoch=7)
    at = desk.now_ms
    records = (
        OffsetRecord("g", "t", 0, Offset(1, 3, "", at)),
        OffsetRecord("g", "u", 3, Offset(2, 3, "", at)),
    )
    assert desk.decision.steps == [PendingBatch(PID, 7, records)]
    assert records_of(desk.decision) == []


def test_deciding_changes_nothing() -> None:
    desk = TxnDesk()
    ask = group_request(1, 3, verified({("t", 0): 1}), None)  # type: ignore[arg-type]
    desk.shard.decide(ask, 1)
    assert not desk.shard.groups
    assert len(desk.shard.offsets.pending) == 0


# -- what readers see -------------------------------------------------------------------------


def test_pending_offset_is_unstable_and_invisible() -> None:
    desk = TxnDesk()
    desk.commit({("t", 0): 5, ("t", 1): 6})
    desk.txn({("t", 0): 50, ("t", 2): 51})
    assert desk.fetch(("t", 0), ("t", 1), ("t", 2)) == [(5, 3, ""), (6, 3, ""), (-1, -1, "")]
    answer = desk.ask(stable("g", ("t", 0), ("t", 1), ("t", 2)))
    assert [
        (e.error_code, e.committed_offset, e.committed_leader_epoch, e.metadata)
        for topic in answer.topics
        for e in topic.partitions
    ] == [(88, -1, -1, ""), (0, 6, 3, ""), (88, -1, -1, "")]
    assert desk.unstable(("t", 0), group="other") == [0]
    desk.end(commit=True)
    assert desk.fetch(("t", 0), ("t", 1), ("t", 2)) == [(50, 3, ""), (6, 3, ""), (51, 3, "")]
    assert desk.unstable(("t", 0), ("t", 1), ("t", 2)) == [0, 0, 0]


def test_abort_drops_pending_offsets() -> None:
    desk = TxnDesk()
    desk.commit({("t", 0): 5})
    desk.txn({("t", 0): 50})
    desk.end(commit=False)
    assert desk.all_of() == {("t", 0): 5}
    assert desk.unstable(("t", 0)) == [0]


def test_aborted_simple_group_is_forgotten() -> None:
    desk = TxnDesk()
    desk.txn({("t", 0): 50})
    desk.end(commit=False)
    assert not desk.shard.groups  # as a load of the log would leave it


def test_later_offset_of_the_same_transaction_wins() -> None:
    desk = TxnDesk()
    desk.txn({("t", 0): 50})
    desk.txn({("t", 0): 40})
    desk.end(commit=True)
    assert desk.all_of() == {("t", 0): 40}


def test_marker_ends_all_groups_of_its_producer_only() -> None:
    desk = TxnDesk()
    desk.txn({("t", 0): 1}, producer=A)
    desk.txn({("t", 0): 2}, producer=A, group="h", epoch=9)  # by producer, not by epoch
    desk.txn({("t", 1): 3}, producer=B)
    desk.end(commit=True, producer=A)
    assert (desk.all_of(), desk.all_of("h")) == ({("t", 0): 1}, {("t", 0): 2})
    assert desk.unstable(("t", 0), ("t", 1)) == [0, 88]
    desk.end(commit=True, producer=A)  # a marker that is sent again changes nothing
    desk.end(commit=False, producer=B)
    assert desk.all_of() == {("t", 0): 1}


# -- which commit wins ------------------------------------------------------------------------


def test_plain_commit_after_the_pending_one_wins() -> None:
    desk = TxnDesk()
    desk.txn({("t", 0): 40, ("t", 1): 41})
    desk.commit({("t", 0): 50})
    assert desk.unstable(("t", 0)) == [88]
    desk.end(commit=True)
    assert desk.all_of() == {("t", 0): 50, ("t", 1): 41}


def test_pending_commit_after_the_plain_one_wins() -> None:
    desk = TxnDesk()
    desk.txn({("t", 0): 40})
    desk.commit({("t", 0): 50})
    desk.txn({("t", 0): 45})  # replaces the superseded one
    desk.end(commit=True)
    assert desk.all_of() == {("t", 0): 45}


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_of_two_transactions_the_later_record_wins(order: tuple[int, int]) -> None:
    desk = TxnDesk()
    desk.txn({("t", 0): 10}, producer=A)
    desk.txn({("t", 0): 20}, producer=B)
    for producer in order:
        assert desk.unstable(("t", 0)) == [88]
        desk.end(commit=True, producer=producer)
    assert desk.all_of() == {("t", 0): 20}


def test_aborted_later_transaction_does_not_supersede() -> None:
    desk = TxnDesk()
    desk.txn({("t", 0): 10}, producer=A)
    desk.txn({("t", 0): 20}, producer=B)
    desk.end(commit=False, producer=B)
    desk.end(commit=True, producer=A)
    assert desk.all_of() == {("t", 0): 10}


# -- deletion and expiry ----------------------------------------------------------------------


def test_offset_delete_removes_pending_offsets_of_all_producers() -> None:
    desk = TxnDesk()
    desk.commit({("t", 0): 1})
    desk.txn({("t", 0): 2, ("t", 1): 3}, producer=A)
    desk.txn({("t", 1): 4, ("t", 2): 5}, producer=B)
    answer = desk.ask(offset_delete(("t", 0), ("t", 1), ("t", 9)))
    assert codes(answer) == [0, 0, 0]
    assert records_of(desk.decision) == [
        OffsetRecord("g", "t", 0, None),
        OffsetRecord("g", "t", 1, None),
    ]
    desk.end(commit=True, producer=A)
    assert desk.all_of() == {}
    desk.end(commit=True, producer=B)
    assert desk.all_of() == {("t", 2): 5}


def test_deleted_group_gets_no_offsets_from_a_later_commit() -> None:
    desk = TxnDesk()
    desk.commit({("t", 0): 1})
    desk.txn({("t", 0): 2, ("u", 1): 3})
    answer = desk.ask(DeleteGroupsRequest(groups_names=["g"]))
    assert [result.error_code for result in answer.results] == [0]
    ended = [r for r in records_of(desk.decision) if isinstance(r, OffsetRecord)]
    assert {(r.topic, r.partition) for r in ended} == {("t", 0), ("u", 1)}
    assert not desk.shard.groups
    desk.end(commit=True)
    assert not desk.shard.groups
    assert desk.all_of() == {}


def test_topic_deletion_removes_pending_offsets() -> None:
    desk = TxnDesk()
    desk.txn({("t", 0): 2, ("u", 1): 3})
    desk.txn({("t", 0): 2}, group="h")
    assert desk.shard.topics() == {"t", "u"}
    desk.do(desk.shard.decide_topic_deleted(["t"]))
    assert "h" not in desk.shard.groups
    desk.end(commit=True)
    assert (desk.all_of(), desk.all_of("h")) == ({("u", 1): 3}, {})


def test_partition_with_pending_offset_does_not_expire() -> None:
    desk = TxnDesk()
    desk.commit({("t", 0): 1, ("t", 1): 2})
    desk.txn({("t", 0): 3})
    desk.now_ms += 30 * DAY_MS
    desk.expire()
    assert desk.all_of() == {("t", 0): 1}
    assert desk.unstable(("t", 0)) == [88]
    desk.end(commit=False)
    desk.expire()
    assert not desk.shard.groups


def test_group_with_only_pending_offsets_is_not_removed() -> None:
    desk = TxnDesk()
    desk.members("t")
    desk.everybody_leaves()
    desk.txn({("t", 0): 3})
    desk.now_ms += 30 * DAY_MS
    desk.expire()
    assert "g" in desk.shard.groups
    desk.end(commit=False)
    desk.expire()
    assert not desk.shard.groups


def test_fetch_of_all_lists_committed_partitions() -> None:
    desk = TxnDesk()
    desk.ask(commit_of({("t", 0): 5}))
    desk.txn({("t", 0): 50, ("t", 2): 51})
    assert desk.all_of() == {("t", 0): 5}
    everything = stable("g")
    everything.group.topics = None
    answer = desk.ask(everything)
    assert [(e.partition_index, e.error_code) for t in answer.topics for e in t.partitions] == [
        (0, 88)
    ]


# -- damaged markers --------------------------------------------------------------------------


def test_pending_offsets_of_a_damaged_marker_are_lost() -> None:
    desk = TxnDesk()
    desk.commit({("t", 0): 5})
    desk.txn({("t", 0): 50, ("t", 1): 51}, producer=A)
    desk.txn({("t", 2): 52}, producer=B)
    desk.txn({("u", 0): 1}, producer=A, group="h")
    desk.shard.lose_transactions({A, 9})
    lost = ErrorCode.KAFKA_STORAGE_ERROR
    assert desk.unstable(("t", 0), ("t", 1), ("t", 2)) == [0, lost, 88]
    assert desk.all_of()["t", 0] == 5
    assert desk.unstable(("u", 0), group="h") == [lost]
    desk.txn({("t", 1): 60}, producer=B)
    desk.end(commit=True, producer=B)
    assert desk.unstable(("t", 1), ("t", 2)) == [0, 0]


def test_producers_of_control_batches_in_damaged_bytes() -> None:
    marker = pack_marker(A, 0, 0, COMMIT, 1)
    data = bytes(marker) + bytes(build([(b"k", b"v")], timestamp_ms=1, producer_id=B))
    assert ended_producers(data + bytes(marker[:40])) == {A}
    assert ended_producers(bytes(marker[:60])) == set()
    assert ended_producers(b"\0" * 200) == set()
