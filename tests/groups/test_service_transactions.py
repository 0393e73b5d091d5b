"""TxnOffsetCommit and RequireStable through the group service, in every API version."""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.codec.control import ABORT, COMMIT, TransactionMarker
from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.transactional import Verification, Verified
from kafkawire.handlers.delete_groups import delete_groups
from kafkawire.handlers.offset_commit import offset_commit
from kafkawire.handlers.offset_fetch import offset_fetch
from kafkawire.handlers.txn_offset_commit import txn_offset_commit
from kafkawire.messages.delete_groups import DeleteGroupsRequest
from kafkawire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kafkawire.messages.txn_offset_commit import TxnOffsetCommitRequest
from tests.kit.groups.broker import (
    ELSEWHERE,
    HERE,
    THERE,
    House,
    alone,
    open_house,  # noqa: F401  (a fixture, by name)
)
from tests.kit.groups.desk import commit_of
from tests.kit.groups.transactions import PID, codes, txn_commit

E = ErrorCode


async def commit(house: House, offsets: Any, version: int = 5, **how: Any) -> list[int]:
    request = txn_commit(offsets, **{"group": HERE, **how})
    return await ask(house, request, version)


async def ask(house: House, request: TxnOffsetCommitRequest, version: int) -> list[int]:
    for topic in request.topics:
        if version >= 6 and topic.name in house.catalog.by_name:
            topic.topic_id = house.catalog.by_name[topic.name].id
    return codes(await house.ask(txn_offset_commit, request, version))


async def end(house: House, commits: bool, producer: int = PID) -> ErrorCode:
    return await house.groups.write_marker(
        1, TransactionMarker(producer, 0, 0, COMMIT if commits else ABORT)
    )


async def fetch(house: House, version: int, stable: bool, group: str = HERE) -> list[Any]:
    """(partition, offset, leader epoch, metadata, code) of t-0 and t-1."""
    if version < 8:
        topic = OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])
        request = OffsetFetchRequest(group_id=group, topics=[topic])
    else:
        by_id = house.catalog.by_name["t"].id
        asked = OffsetFetchRequestTopics(name="t", topic_id=by_id, partition_indexes=[0, 1])
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, topics=[asked])]
        )
    request.require_stable = stable
    answer = await house.ask(offset_fetch, request, version)
    topics = answer.topics if version < 8 else answer.groups[0].topics
    return [
        (e.partition_index, e.committed_offset, e.committed_leader_epoch, e.metadata, e.error_code)
        for topic in topics
        for e in topic.partitions
    ]


@pytest.mark.parametrize("version", range(7))
async def test_commit_verifies_once_and_becomes_current_by_marker(
    house: House, version: int
) -> None:
    assert await commit(house, {("t", 0): 5, ("t", 1): 6}, version) == [0, 0]
    assert house.verifications == [Verification(f"T{PID}", PID, 0, 1, version >= 5)]
    assert house.partitions[1].guards == ["guard"]  # type: ignore[union-attr]
    assert [row[1] for row in await fetch(house, 6, stable=False)] == [-1, -1]
    assert await end(house, True) is E.NONE
    assert [row[1] for row in await fetch(house, 6, stable=False)] == [5, 6]


@pytest.mark.parametrize("version", [7, 8, 9, 10])
async def test_require_stable_answers_unstable_per_partition(house: House, version: int) -> None:
    await house.ask(offset_commit, commit_of({("t", 0): 1, ("t", 1): 2}, group=HERE), 8)
    await commit(house, {("t", 0): 5})
    assert await fetch(house, version, stable=True) == [(0, -1, -1, "", 88), (1, 2, 3, "", 0)]
    assert await fetch(house, version, stable=False) == [(0, 1, 3, "", 0), (1, 2, 3, "", 0)]
    await end(house, False)
    assert await fetch(house, version, stable=True) == [(0, 1, 3, "", 0), (1, 2, 3, "", 0)]


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (E.TRANSACTION_ABORTABLE, {0: 48, 3: 48, 4: 120}),
        (E.PRODUCER_FENCED, {0: 47, 3: 47, 4: 47, 5: 47}),
        (E.INVALID_PRODUCER_ID_MAPPING, {0: 49, 4: 49, 5: 49}),
        (E.INVALID_TXN_STATE, {0: 48, 5: 48}),
        (E.CONCURRENT_TRANSACTIONS, {0: 51, 3: 51, 4: 51, 5: 51}),
        (E.NETWORK_EXCEPTION, {0: 15, 1: 15, 2: 14, 5: 14}),
        (E.COORDINATOR_LOAD_IN_PROGRESS, {0: 15, 1: 15, 2: 14, 5: 14}),
        (E.COORDINATOR_NOT_AVAILABLE, {0: 15, 5: 15}),
        (E.NOT_COORDINATOR, {0: 16, 5: 16}),
    ],
)
async def test_refused_verification_by_version(
    house: House, refusal: ErrorCode, expected: dict[int, int]
) -> None:
    house.refusing = refusal
    for version, code in expected.items():
        assert await commit(house, {("t", 0): 5, ("x", 0): 1}, version) == [code, 3]
    assert not house.partitions[1].batches  # type: ignore[union-attr]


async def test_checks_are_made_in_order(house: House) -> None:
    """Topic, group id, transaction, group, partition."""
    house.refusing = E.PRODUCER_FENCED
    assert await commit(house, {("x", 0): 1, ("t", 99): 1}, group="") == [3, 3]
    assert await commit(house, {("t", 0): 1}, group="") == [E.INVALID_GROUP_ID]
    assert await commit(house, {("t", 0): 1}, group=THERE) == [E.NOT_COORDINATOR]
    assert not house.verifications
    assert await commit(house, {("t", 0): 1}, generation=99) == [47]
    house.refusing = E.NONE
    too_long: dict[str, Any] = {"metadata": "x" * 4097}
    assert await commit(house, {("t", 0): 1}, generation=99, **too_long) == [22]
    assert await commit(house, {("t", 0): 1}, **too_long) == [12]
    request = txn_commit({("t", 0): 1, ("x", 0): 2, ("t", 1): 3}, group=HERE)
    request.topics[2].partitions[0].committed_metadata = "x" * 4097
    assert await ask(house, request, 5) == [0, 3, 12]


async def test_member_is_checked_from_version_3_on(house: House) -> None:
    member, generation = await alone(house)
    who: dict[str, Any] = {"member": member, "generation": generation}
    for version in (3, 4, 5):
        assert await commit(house, {("t", 0): 1}, version, **who) == [0]
        assert await commit(house, {("t", 0): 1}, version, member="x", generation=1) == [25]
        assert await commit(house, {("t", 0): 1}, version, member=member, generation=99) == [22]
        assert await commit(house, {("t", 0): 1}, version) == [0]
    for version in (0, 1, 2):
        assert await commit(house, {("t", 0): 1}, version) == [0]


async def test_topic_deleted_during_verification_is_unknown(house: House) -> None:
    async def verify(asked: Verification) -> Verified:
        house.catalog.remove_topic(house.catalog.by_name["u"].id)
        guard: Any = "guard"
        return Verified(guard=guard)

    house.groups._verify = verify
    assert await commit(house, {("t", 0): 1, ("u", 0): 2}) == [0, 3]


async def test_large_commit_is_verified_once(house: House) -> None:
    request = txn_commit({("t", 0): 1}, group=HERE)
    entry = request.topics[0].partitions[0]
    request.topics[0].partitions = [entry] * 300
    assert await ask(house, request, 5) == [0] * 300
    assert len(house.verifications) == 1
    assert len(house.partitions[1].batches) == 3  # type: ignore[union-attr]


async def test_marker_of_another_brokers_partition(house: House) -> None:
    marker = TransactionMarker(PID, 0, 0, COMMIT)
    for partition in (ELSEWHERE, 99):
        code = await house.groups.write_marker(partition, marker)
        assert code is E.NOT_LEADER_OR_FOLLOWER
    await house.groups.close()
    assert await house.groups.write_marker(1, marker) is E.NOT_LEADER_OR_FOLLOWER
    assert await commit(house, {("t", 0): 1}) == [E.COORDINATOR_NOT_AVAILABLE]


async def test_deleted_group_with_many_pending_offsets(house: House) -> None:
    await commit(house, {("t", 0): 5, ("t", 1): 6, ("u", 0): 7})
    answer = await house.ask(delete_groups, DeleteGroupsRequest(groups_names=[HERE]), 2)
    assert [result.error_code for result in answer.results] == [0]
    assert await end(house, True) is E.NONE
    assert await fetch(house, 9, stable=True) == [(0, -1, -1, "", 0), (1, -1, -1, "", 0)]


async def test_service_without_transactions_refuses_them(house: House) -> None:
    house.groups._verify = None
    assert await commit(house, {("t", 0): 1}) == [E.NOT_COORDINATOR]
