"""Offsets of share groups altered and deleted, and groups deleted: each through share
coordinators."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kafkawire.codec.errors import ErrorCode as E
from kafkawire.groups.model.request import ListShares
from kafkawire.groups.share.group import NamedPartitions
from kafkawire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from kafkawire.messages.delete_groups import DeleteGroupsRequest
from kafkawire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from kafkawire.share.persister import SharePartitionKey
from kafkawire.share.state.machine import InitializeState, StateAnswer
from tests.kit.groups.log import FakeTopics, id_of
from tests.kit.groups.requests import records_of
from tests.kit.groups.shares import ShareDesk, assigned

T, U = id_of("t"), id_of("u")


def alter(topics: dict[str, dict[int, int]], group: str = "g") -> AlterShareGroupOffsetsRequest:
    return AlterShareGroupOffsetsRequest(
        group,
        [
            AlterShareGroupOffsetsRequestTopic(
                name, [AlterShareGroupOffsetsRequestPartition(*each) for each in offsets.items()]
            )
            for name, offsets in topics.items()
        ],
    )


def delete(*topics: str, group: str = "g") -> DeleteShareGroupOffsetsRequest:
    return DeleteShareGroupOffsetsRequest(
        group, [DeleteShareGroupOffsetsRequestTopic(name) for name in topics]
    )


def altered(answer: Any) -> dict[tuple[str, int], int]:
    assert answer.error_code == 0
    return {
        (topic.topic_name, each.partition_index): each.error_code
        for topic in answer.responses
        for each in topic.partitions
    }


def deleted(answer: Any) -> list[tuple[str, int]]:
    assert answer.error_code == 0
    return [(topic.topic_name, topic.error_code) for topic in answer.responses]


def empty_group() -> ShareDesk:
    """A group without members, which has states of `t`."""
    desk = ShareDesk()
    desk.beat()
    desk.settle("a")
    desk.beat("a", -1)
    return desk


def test_alter_creates_the_group_and_waits_for_the_states() -> None:
    desk = ShareDesk()
    assert desk.ask(alter({"t": {0: 5, 2: 7}})) is None
    assert desk.group.initializing == {T: NamedPartitions("t", frozenset({0, 2}))}
    ((_, effect),) = desk.changing
    assert effect.requests == (
        InitializeState(SharePartitionKey("g", T, 0), 0, 5),
        InitializeState(SharePartitionKey("g", T, 2), 0, 7),
    )
    answer = desk.change()
    assert altered(answer) == {("t", 0): 0, ("t", 2): 0}
    assert answer.responses[0].topic_id == T
    assert desk.group.initialized == {T: NamedPartitions("t", frozenset({0, 2}))}
    assert desk.states.partitions[SharePartitionKey("g", T, 2)].state.start_offset == 7
    # The partition that was left out begins at the first record when a member joins.
    desk.beat()
    assert desk.requested() == [(1, 0)]
    assert desk.settle("a") == {"a": {"t": [0, 1, 2]}}


def test_alter_of_a_group_that_was_used_fences_its_leaders() -> None:
    desk = empty_group()
    epoch = desk.group.epoch
    desk.ask(alter({"t": {0: 5}}))
    assert altered(desk.change()) == {("t", 0): 0}
    assert desk.states.partitions[SharePartitionKey("g", T, 0)].state_epoch == epoch


def test_what_alter_refuses() -> None:
    desk = ShareDesk()
    answer = desk.ask(alter({"t": {3: 0, -1: 0, 0: -2}, "none": {0: 0}}))
    assert altered(answer) == {
        ("t", 3): E.UNKNOWN_TOPIC_OR_PARTITION, ("t", -1): E.UNKNOWN_TOPIC_OR_PARTITION,
        ("t", 0): E.INVALID_REQUEST, ("none", 0): E.UNKNOWN_TOPIC_OR_PARTITION,
    }  # fmt: skip
    assert not desk.shard.share_groups
    for group, code in (("", E.INVALID_GROUP_ID), ("g" * 40_000, E.INVALID_GROUP_ID)):
        assert desk.ask(alter({"t": {0: 0}}, group)).error_code == code
    desk.beat()
    answer = desk.ask(alter({"t": {0: 0}}))
    assert (answer.error_code, answer.error_message) == (
        E.NON_EMPTY_GROUP, E.NON_EMPTY_GROUP.sentence,
    )  # fmt: skip
    desk.shard._create("classic")
    assert desk.ask(alter({}, "classic")).error_code == E.GROUP_ID_NOT_FOUND


def test_states_that_could_not_be_altered() -> None:
    desk = ShareDesk()
    desk.ask(alter({"t": {0: 5, 1: 6}}))
    answer = desk.change(E.NONE, E.COORDINATOR_NOT_AVAILABLE)
    assert altered(answer) == {("t", 0): 0, ("t", 1): E.COORDINATOR_NOT_AVAILABLE}
    assert desk.group.initialized == {T: NamedPartitions("t", frozenset({0}))}
    assert not desk.group.initializing


def test_offsets_of_topics_are_deleted() -> None:
    desk = empty_group()
    assert desk.ask(delete("t", "u", "none", "t")) is None
    assert desk.group.deleting == {T: "t"}
    assert not desk.group.initialized
    answer = desk.change()
    assert deleted(answer) == [("t", 0), ("u", 3), ("none", 3)]
    assert answer.responses[1].error_message == "There is no offset information to delete."
    assert not desk.group.deleting
    assert not desk.states.partitions
    # A new member begins as the first one did.
    desk.beat()
    assert desk.requested() == [(0, -1), (1, -1), (2, -1)]


def test_deletion_that_failed_is_repeated() -> None:
    desk = empty_group()
    desk.ask(delete("t"))
    assert deleted(desk.change(E.NONE, E.NOT_COORDINATOR)) == [("t", E.NOT_COORDINATOR)]
    assert desk.group.deleting == {T: "t"}
    desk.reload()
    desk.ask(delete("t"))
    assert deleted(desk.change()) == [("t", 0)]
    assert not desk.group.deleting


def test_what_deletion_of_offsets_refuses() -> None:
    desk = ShareDesk()
    assert desk.ask(delete("t", group="")).error_code == E.INVALID_GROUP_ID
    assert desk.ask(delete("t")).error_code == E.GROUP_ID_NOT_FOUND
    desk.beat()
    assert desk.ask(delete("t")).error_code == E.NON_EMPTY_GROUP


def test_states_are_not_initialized_while_they_are_deleted() -> None:
    """An Initialize that overtakes the Delete would leave a group without the states that it
    assigns."""
    desk = empty_group()
    desk.ask(delete("t"))
    answer = desk.ask(alter({"t": {0: 5}}), token=2)
    assert altered(answer) == {("t", 0): E.COORDINATOR_NOT_AVAILABLE}
    desk.beat()
    assert len(desk.changing) == 1
    desk.change()
    assert desk.settle("a") == {"a": {"t": [0, 1, 2]}}
    assert len(desk.states.partitions) == 3


def test_offsets_are_not_altered_while_states_are_looked_up() -> None:
    desk = empty_group()
    desk.reload()
    desk.beat()
    desk.beat("a", -1)
    answer = desk.ask(alter({"t": {0: 5}}), token=2)
    assert altered(answer) == {("t", 0): E.COORDINATOR_NOT_AVAILABLE}
    desk.change()
    assert desk.ask(alter({"t": {0: 5}}), token=2) is None
    assert altered(desk.change()) == {("t", 0): 0}


def test_a_group_is_deleted_with_its_states() -> None:
    desk = empty_group()
    assert desk.ask(DeleteGroupsRequest(["g"]), 2) is None
    assert desk.group.deleting == {T: "t"}
    answer = desk.change()
    assert [(each.group_id, each.error_code) for each in answer.results] == [("g", 0)]
    assert [record.kind for record in records_of(desk.decision)] == [12, 15, 11]  # type: ignore[union-attr]
    assert not desk.shard.share_groups
    assert not desk.states.partitions
    desk.reload()
    assert not desk.shard.share_groups


def test_a_group_without_states_is_deleted_at_once() -> None:
    desk = ShareDesk()
    desk.beat(topics=["none"])
    desk.beat("a", -1)
    assert desk.ask(DeleteGroupsRequest(["g"]), 2).results[0].error_code == 0
    assert not desk.shard.share_groups


def test_deletion_of_a_group_that_failed_is_repeated() -> None:
    desk = empty_group()
    desk.ask(DeleteGroupsRequest(["g"]), 2)
    assert desk.change(E.NOT_COORDINATOR).results[0].error_code == E.NOT_COORDINATOR
    assert desk.group.deleting == {T: "t"}
    desk.reload()
    desk.ask(DeleteGroupsRequest(["g"]), 2)
    assert desk.change().results[0].error_code == 0
    assert not desk.shard.share_groups


def test_a_group_that_a_member_joins_meanwhile_is_not_deleted() -> None:
    desk = empty_group()
    desk.ask(DeleteGroupsRequest(["g"]), 2)
    desk.beat()
    assert desk.change().results[0].error_code == E.NON_EMPTY_GROUP
    assert desk.settle("a") == {"a": {"t": [0, 1, 2]}}


def test_while_states_are_initialized_or_deleted_they_are_not_deleted() -> None:
    desk = ShareDesk()
    desk.beat()
    desk.beat("a", -1)
    busy = E.COORDINATOR_NOT_AVAILABLE
    assert desk.ask(DeleteGroupsRequest(["g"]), 2).results[0].error_code == busy
    assert deleted(desk.ask(delete("t"))) == [("t", busy)]
    assert altered(desk.ask(alter({"t": {0: 5}}))) == {("t", 0): busy}
    desk.change()
    desk.ask(DeleteGroupsRequest(["g"]), 2, token=1)
    assert desk.ask(DeleteGroupsRequest(["g"]), 2, token=2).results[0].error_code == busy
    assert desk.change().results[0].error_code == 0
    assert not desk.shard.share_groups
    desk.beat()
    assert desk.settle("a") == {"a": {"t": [0, 1, 2]}}


def test_the_partitions_with_a_state() -> None:
    desk = empty_group()
    assert desk.ask(ListShares("g")).partitions == {T: frozenset(range(3))}
    assert desk.ask(ListShares("none")).partitions == {}


def test_large_topics_are_decided_at_once() -> None:
    """Each decision about 10,000 partitions takes far less than the 0.2 s that are allowed here."""
    size = 10_000
    desk = ShareDesk(FakeTopics({"t": size}))
    spent: list[float] = []

    def timed(step: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = step()
        spent.append(time.process_time() - began)
        return result

    def let_go() -> None:
        group_id, effect = desk.changing.pop()
        answers = {each.key: StateAnswer(E.NONE) for each in effect.requests}
        timed(lambda: desk.do(desk.shard.decide_changed(group_id, effect, answers)))

    timed(lambda: desk.beat("a"))
    let_go()
    assert len(timed(lambda: assigned(desk.beat("a", 1)))["t"]) == size
    desk.reload()
    timed(lambda: desk.beat("a", 2))
    let_go()
    timed(lambda: desk.beat("a", -1))
    request = alter({"t": dict.fromkeys(range(size), 5)})
    assert timed(lambda: desk.ask(request, token=2)) is None
    let_go()
    assert timed(lambda: desk.ask(delete("t"), token=3)) is None
    let_go()
    assert not desk.group.initialized
    assert max(spent) < 0.2, spent
