"""Requests of operators about the offsets of share groups, and the deletion of groups. Pure.

Each has two steps: a decision that has share coordinators change states, and one on their answers.
Kafka: GroupMetadataManager.alterShareGroupOffsets and those next to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups.model.changes import DeletionBegun, DeletionEnded, InitializationBegun
from kafkawire.groups.model.decision import ChangeStates, Decision, Reply, StatesPurpose
from kafkawire.groups.model.request import GroupRequest
from kafkawire.groups.model.topics import ClusterTopics
from kafkawire.groups.share.group import NamedPartitions, ShareGroup, states_record
from kafkawire.groups.share.initialization import decide_initialized
from kafkawire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from kafkawire.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from kafkawire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from kafkawire.share.persister import UNSET_OFFSET, SharePartitionKey
from kafkawire.share.state.machine import DeleteState, InitializeState, StateAnswer

NOTHING_TO_DELETE = "There is no offset information to delete."
_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

Alter = GroupRequest[AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse]
DeleteOffsets = GroupRequest[DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse]


def alter(group: ShareGroup, topics: ClusterTopics, ask: Alter, now_ms: int) -> Decision:
    """Decide on AlterShareGroupOffsets, which creates the group. Raises KafkaError."""
    if group.members:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, ErrorCode.NON_EMPTY_GROUP.sentence)
    body = AlterShareGroupOffsetsResponse()
    requests: dict[SharePartitionKey, InitializeState] = {}
    changed: dict[bytes, set[int]] = {}
    for topic in ask.request.topics:
        topic_id, size = topics.topic_id(topic.topic_name), topics.topic_size(topic.topic_name)
        result = AlterShareGroupOffsetsResponseTopic(topic_name=topic.topic_name)
        body.responses.append(result)
        if topic_id is not None:
            result.topic_id = topic_id
        for wanted in topic.partitions:
            code = _check_partition(group, topic_id, size, wanted)
            result.partitions.append(_alter_result(wanted.partition_index, code))
            if code is ErrorCode.NONE and topic_id is not None:
                key = SharePartitionKey(group.group_id, topic_id, wanted.partition_index)
                requests[key] = InitializeState(key, group.epoch, wanted.start_offset)
                changed.setdefault(topic_id, set()).add(wanted.partition_index)
    decision = Decision(group.group_id)
    if not requests:
        decision.effects.append(Reply(ask.token, body))
        return decision
    initializing = dict(group.initializing)
    for topic_id, partitions in changed.items():
        before = initializing.get(topic_id, NamedPartitions("", frozenset()))
        name = topics.topic_name(topic_id) or before.name
        initializing[topic_id] = NamedPartitions(name, before.partitions | partitions)
    deleting = {each: name for each, name in group.deleting.items() if each not in changed}
    decision.steps += [
        states_record(group.group_id, initializing, group.initialized, deleting),
        InitializationBegun(frozenset(changed), now_ms),
    ]
    decision.effects.append(
        ChangeStates(StatesPurpose.ALTER, tuple(requests.values()), ask.token, body)
    )
    return decision


def _check_partition(
    group: ShareGroup,
    topic_id: bytes | None,
    size: int | None,
    wanted: AlterShareGroupOffsetsRequestPartition,
) -> ErrorCode:
    if topic_id is None or size is None or not 0 <= wanted.partition_index < size:
        return _UNKNOWN
    if wanted.start_offset < UNSET_OFFSET:
        return ErrorCode.INVALID_REQUEST
    return _find_busy(group, topic_id)


def _find_busy(group: ShareGroup, topic_id: bytes) -> ErrorCode:
    """Return an error after which clients try again while requests about a topic are on their way:
    this one could overtake them, or be overtaken."""
    busy = topic_id in group.deletions or topic_id in group.initializations
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if busy else ErrorCode.NONE


def _alter_result(index: int, code: ErrorCode) -> AlterShareGroupOffsetsResponsePartition:
    text = None if code is ErrorCode.NONE else code.sentence
    return AlterShareGroupOffsetsResponsePartition(index, int(code), text)


def decide_altered(
    group: ShareGroup,
    topics: ClusterTopics,
    body: AlterShareGroupOffsetsResponse,
    answers: Mapping[SharePartitionKey, StateAnswer],
) -> Decision:
    """Decide on the answers to the requests of `alter`, whose errors `body` gets."""
    for topic in body.responses:
        for at, result in enumerate(topic.partitions):
            key = SharePartitionKey(group.group_id, topic.topic_id, result.partition_index)
            answer = answers.get(key)
            if answer is not None and not result.error_code:
                topic.partitions[at] = _alter_result(result.partition_index, answer.code)
    made = {key: answer.code is ErrorCode.NONE for key, answer in answers.items()}
    return decide_initialized(group, topics, made)


def delete_offsets(group: ShareGroup, topics: ClusterTopics, ask: DeleteOffsets) -> Decision:
    """Decide on DeleteShareGroupOffsets. Raises NON_EMPTY_GROUP."""
    if group.members:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, ErrorCode.NON_EMPTY_GROUP.sentence)
    body = DeleteShareGroupOffsetsResponse()
    initialized, deleting = dict(group.initialized), dict(group.deleting)
    requests: list[DeleteState] = []
    chosen: dict[bytes, str] = {}
    for name in dict.fromkeys(topic.topic_name for topic in ask.request.topics):
        topic_id, size = topics.topic_id(name), topics.topic_size(name)
        code = _UNKNOWN if topic_id is None else _find_busy(group, topic_id)
        if topic_id is None or size is None or code is not ErrorCode.NONE:
            body.responses.append(_refuse_topic(name, code, code.sentence))
            continue
        if topic_id in initialized:
            partitions: Iterable[int] = sorted(initialized.pop(topic_id).partitions)
        elif topic_id in deleting:
            partitions = range(size)  # an earlier attempt failed
        else:
            body.responses.append(_refuse_topic(name, _UNKNOWN, NOTHING_TO_DELETE))
            continue
        chosen[topic_id] = deleting[topic_id] = name
        requests += _delete_requests(group.group_id, topic_id, partitions)
    decision = Decision(group.group_id)
    if not requests:
        decision.effects.append(Reply(ask.token, body))
        return decision
    decision.steps += [
        states_record(group.group_id, group.initializing, initialized, deleting),
        DeletionBegun(frozenset(chosen)),
    ]
    decision.effects.append(
        ChangeStates(StatesPurpose.DELETE_OFFSETS, tuple(requests), ask.token, body)
    )
    return decision


def _refuse_topic(name: str, code: ErrorCode, text: str) -> DeleteShareGroupOffsetsResponseTopic:
    return DeleteShareGroupOffsetsResponseTopic(
        topic_name=name, error_code=int(code), error_message=text
    )


def decide_offsets_deleted(
    group: ShareGroup,
    topics: ClusterTopics,
    body: DeleteShareGroupOffsetsResponse,
    answers: Mapping[SharePartitionKey, StateAnswer],
) -> Decision:
    """Decide on the answers to the requests of `delete_offsets`; `body` gets a result for each
    topic."""
    codes = _first_errors(answers)
    done: list[DeleteShareGroupOffsetsResponseTopic] = []
    for topic_id, code in codes.items():
        name = group.deleting.get(topic_id) or topics.topic_name(topic_id) or ""
        result = DeleteShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic_id)
        if code is ErrorCode.NONE:
            done.append(result)
        else:
            result.error_code, result.error_message = int(code), code.sentence
            body.responses.append(result)
    body.responses[:0] = done  # as in Kafka: before those with errors
    decision = Decision(group.group_id, [DeletionEnded(frozenset(codes))])
    gone = {each.topic_id for each in done} & group.deleting.keys()
    if gone:
        left = {each: name for each, name in group.deleting.items() if each not in gone}
        decision.steps.append(
            states_record(group.group_id, group.initializing, group.initialized, left)
        )
    return decision


def delete_group(group: ShareGroup, topics: ClusterTopics, token: int) -> Decision:
    """Decide on the deletion of a group without members: first of its states."""
    states: dict[bytes, NamedPartitions] = dict(group.initialized)
    for topic_id, named in group.initializing.items():
        before = states.get(topic_id, NamedPartitions("", frozenset()))
        states[topic_id] = NamedPartitions(named.name, named.partitions | before.partitions)
    for topic_id, name in group.deleting.items():
        size = topics.topic_size(name) if topics.topic_name(topic_id) == name else None
        # Of an earlier attempt that failed; those of a deleted topic are deleted with it.
        if size is not None:
            states[topic_id] = NamedPartitions(name, frozenset(range(size)))
    requests = [
        request
        for topic_id, named in states.items()
        for request in _delete_requests(group.group_id, topic_id, sorted(named.partitions))
    ]
    decision = Decision(group.group_id)
    body = DeleteGroupsResponse(results=[DeletableGroupResult(group_id=group.group_id)])
    busy = [code for topic_id in states if (code := _find_busy(group, topic_id))]
    if busy:
        body.results[0].error_code = int(busy[0])
        decision.effects.append(Reply(token, body))
        return decision
    if not requests:
        decision.steps += group.tombstones()
        decision.effects.append(Reply(token, body))
        return decision
    names = {topic_id: named.name for topic_id, named in states.items()}
    decision.steps += [
        states_record(group.group_id, {}, {}, names),
        DeletionBegun(frozenset(names)),
    ]
    decision.effects.append(ChangeStates(StatesPurpose.DELETE_GROUP, tuple(requests), token, body))
    return decision


def decide_group_deleted(
    group: ShareGroup,
    body: DeleteGroupsResponse,
    answers: Mapping[SharePartitionKey, StateAnswer],
) -> Decision:
    """Decide on the answers to the requests of `delete_group`: the group is deleted if all states
    are, and no member has joined meanwhile."""
    codes = _first_errors(answers)
    # A topic that was deleted has taken its states with it.
    failed = [code for code in codes.values() if code not in (ErrorCode.NONE, _UNKNOWN)]
    code = failed[0] if failed else ErrorCode.NONE
    if code is ErrorCode.NONE and group.members:
        code = ErrorCode.NON_EMPTY_GROUP
    body.results[0].error_code = int(code)
    decision = Decision(group.group_id)
    if code is ErrorCode.NONE:
        decision.steps += group.tombstones()
        return decision
    decision.steps.append(DeletionEnded(frozenset(codes)))
    gone = {each for each, found in codes.items() if found is ErrorCode.NONE}
    left = {each: name for each, name in group.deleting.items() if each not in gone}
    if left != group.deleting:
        decision.steps.append(
            states_record(group.group_id, group.initializing, group.initialized, left)
        )
    return decision


def _delete_requests(
    group_id: str, topic_id: bytes, partitions: Iterable[int]
) -> Sequence[DeleteState]:
    return [DeleteState(SharePartitionKey(group_id, topic_id, each)) for each in partitions]


def _first_errors(answers: Mapping[SharePartitionKey, StateAnswer]) -> dict[bytes, ErrorCode]:
    """Return the first error of each topic, or NONE."""
    codes: dict[bytes, ErrorCode] = {}
    for key, answer in answers.items():
        if codes.get(key.topic_id, ErrorCode.NONE) is ErrorCode.NONE:
            codes[key.topic_id] = answer.code
    return codes
