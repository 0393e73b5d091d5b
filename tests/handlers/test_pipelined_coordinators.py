"""Pipelined requests to coordinators: each is decided before those before it are answered, so that
they share commits.

Covers: kafkawire.handlers.init_producer_id, kafkawire.handlers.add_offsets_to_txn,
kafkawire.handlers.add_partitions_to_txn, kafkawire.handlers.leave_group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode as E
from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.partition.state import Sink
from kafkawire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kafkawire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.init_producer_id import InitProducerIdRequest
from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kafkawire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kafkawire.messages.sync_group import SyncGroupRequest
from tests.kit.client import Client
from tests.kit.produce_fetch import make
from tests.kit.waiting import until

COUNT = 5
Callback = Callable[[BaseException | None], None]


class HeldCommits:
    """Callbacks of coordinators that wait for a commit, which does not end before `release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._waiting: list[tuple[CommitLog, tuple[Sink, ...], Callback]] = []
        self._patch = monkeypatch

    def hold(self) -> None:
        self._patch.setattr(
            CommitLog, "call_when_durable", lambda *asked: self._waiting.append(asked)
        )

    def __len__(self) -> int:
        return len(self._waiting)

    def release(self) -> None:
        self._patch.undo()
        for log, sinks, fn in self._waiting:
            log.call_when_durable(sinks, fn)
        self._waiting.clear()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> HeldCommits:
    return HeldCommits(monkeypatch)


async def together(client: Client, held: HeldCommits, requests: list[tuple[Any, int]]) -> list[Any]:
    """Send all requests at once; return the answers, which leave after all are decided."""
    held.hold()
    for request, version in requests:
        client.send(request, version)
    await until(lambda: len(held) == len(requests))
    held.release()
    return [await client.receive() for _ in requests]


async def coordinators(client: Client) -> None:
    for kind in (0, 1):
        find = FindCoordinatorRequest(key_type=kind, coordinator_keys=["any"])
        while (await client.call(find, 4)).coordinators[0].error_code:
            pass
    await make(client, "t", COUNT)


async def owner(client: Client, name: str) -> Any:
    return await client.call(InitProducerIdRequest(name, 60_000), 5)


@pytest.mark.parametrize("known", [False, True])
async def test_producers_are_initialized_together(
    client: Client, held: HeldCommits, known: bool
) -> None:
    await coordinators(client)
    names = [f"id-{n % 4}" for n in range(COUNT)]  # the first one twice
    if known:
        for name in names:
            await owner(client, name)
    requests = [(InitProducerIdRequest(name, 60_000), 5) for name in names]
    answers = await together(client, held, requests)
    assert [answer.error_code for answer in answers] == [E.NONE] * COUNT
    first, last = answers[0], answers[-1]
    assert (last.producer_id, last.producer_epoch) == (first.producer_id, first.producer_epoch + 1)
    assert len({answer.producer_id for answer in answers}) == 4


async def test_partitions_and_groups_are_added_together(client: Client, held: HeldCommits) -> None:
    await coordinators(client)
    found = await owner(client, "tx")
    who = "tx", found.producer_id, found.producer_epoch
    requests: list[tuple[Any, int]] = [
        (AddPartitionsToTxnRequest([], *who, [AddPartitionsToTxnTopic("t", [n])]), 3)
        for n in range(COUNT)
    ]
    requests.append((AddOffsetsToTxnRequest(*who, "g"), 3))
    *added, offsets = await together(client, held, requests)
    codes = [
        row.partition_error_code
        for answer in added
        for topic in answer.results_by_topic_v3_and_below
        for row in topic.results_by_partition
    ]
    assert (codes, offsets.error_code) == ([E.NONE] * COUNT, E.NONE)


async def test_transactions_of_one_request_share_a_commit(
    client: Client, held: HeldCommits
) -> None:
    await coordinators(client)
    rows = []
    for n in range(COUNT):
        found = await owner(client, f"id-{n}")
        topics = [AddPartitionsToTxnTopic("t", [n])]
        row = f"id-{n}", found.producer_id, found.producer_epoch, False, topics
        rows.append(AddPartitionsToTxnTransaction(*row))
    held.hold()
    client.send(AddPartitionsToTxnRequest(rows), 5)
    await until(lambda: len(held) == COUNT)
    held.release()
    answer = await client.receive()
    assert [row.transactional_id for row in answer.results_by_transaction] == [
        f"id-{n}" for n in range(COUNT)
    ]
    assert {
        row.partition_error_code
        for one in answer.results_by_transaction
        for topic in one.topic_results
        for row in topic.results_by_partition
    } == {E.NONE}


async def test_members_leave_together(client: Client, held: HeldCommits) -> None:
    await coordinators(client)
    requests: list[tuple[Any, int]] = []
    for n in range(COUNT):
        join = JoinGroupRequest(
            group_id=f"g-{n}",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol("range", b"")],
        )
        join.member_id = (await client.call(join, 5)).member_id
        joined = await client.call(join, 5)
        sync = SyncGroupRequest(f"g-{n}", joined.generation_id, join.member_id)
        await client.call(sync, 4)
        leave = LeaveGroupRequest(f"g-{n}", "", [MemberIdentity(join.member_id)])
        requests.append((leave, 4))
    answers = await together(client, held, requests)
    assert [answer.error_code for answer in answers] == [E.NONE] * COUNT
