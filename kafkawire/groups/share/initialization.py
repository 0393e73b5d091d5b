"""The states of the share partitions that a group subscribes to: which are missing, and what share
coordinators have answered (Kafka: GroupMetadataManager.initializeShareGroupState). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.changes import (
    InitializationBegun,
    InitializationEnded,
    VerificationBegun,
)
from kafkawire.groups.model.decision import ChangeStates, Decision, StatesPurpose
from kafkawire.groups.model.topics import ClusterTopics
from kafkawire.groups.share.group import NamedPartitions, ShareGroup, States, states_record
from kafkawire.share.persister import UNSET_OFFSET, SharePartitionKey
from kafkawire.share.state.machine import InitializeState, ReadSummary, StateAnswer

NO_PARTITIONS: frozenset[int] = frozenset()
FIRST_OFFSET = 0


def find_uninitialized(
    group: ShareGroup, names: Iterable[str], topics: ClusterTopics, retry_ms: int, now_ms: int
) -> States:
    """Return the partitions of the topics `names` whose states are to be requested now: again
    `retry_ms` after a request without an answer."""
    found: dict[bytes, NamedPartitions] = {}
    for name in names:
        topic_id, size = topics.topic_id(name), topics.topic_size(name)
        # An Initialize could overtake the Delete, which would take the state again.
        if topic_id is None or size is None or topic_id in group.deletions:
            continue
        known = _partitions(group.initialized, topic_id)
        # Without a time: of before the load, when the request may have been lost.
        begun_ms = group.begun.get(topic_id)
        if begun_ms is not None and 0 <= now_ms - begun_ms < retry_ms:
            known |= _partitions(group.initializing, topic_id)
        if len(known) < size:
            found[topic_id] = NamedPartitions(name, frozenset(range(size)) - known)
    return found


def is_initializing(group: ShareGroup) -> bool:
    """Return whether subscribed partitions that have no state are to get one. Others remain with
    them if a request was not answered before a load."""
    waiting = _without(group.initializing, group.initialized)
    return any(named.name in group.names for named in waiting.values())


def request_states(
    group: ShareGroup, epoch: int, missing: States, decision: Decision, now_ms: int
) -> None:
    """Add to a decision that the states of partitions are requested, in this epoch of the group."""
    requests: list[InitializeState] = []
    for topic_id, named in missing.items():
        for partition in sorted(named.partitions):
            start_offset = _start_offset(group, topic_id, partition)
            key = SharePartitionKey(group.group_id, topic_id, partition)
            requests.append(InitializeState(key, epoch, start_offset))
    initializing = _join(group.initializing, missing)
    deleting = {each: name for each, name in group.deleting.items() if each not in missing}
    decision.steps.append(states_record(group.group_id, initializing, group.initialized, deleting))
    decision.steps.append(InitializationBegun(frozenset(missing), now_ms))
    decision.effects.append(ChangeStates(StatesPurpose.HEARTBEAT, tuple(requests)))


def _start_offset(group: ShareGroup, topic_id: bytes, partition: int) -> int:
    """Return where the group begins in a partition: partitions that were added to a topic that it
    reads begin at the first record (KAFKA-20742), others as share.auto.offset.reset says."""
    # One that was requested before, without an answer, is not new.
    requested = _partitions(group.initializing, topic_id)
    is_added = topic_id in group.initialized or (requested and partition not in requested)
    return FIRST_OFFSET if is_added else UNSET_OFFSET


def decide_initialized(
    group: ShareGroup, topics: ClusterTopics, partitions: Mapping[SharePartitionKey, bool]
) -> Decision:
    """Store which partitions have a state now: True; those with False, whose request failed, are
    requested again by a later heartbeat."""
    asked = frozenset(key.topic_id for key in partitions)
    decision = Decision(group.group_id, [InitializationEnded(asked)])
    # Others were deleted meanwhile.
    answered = [
        key for key in partitions if key.partition in _partitions(group.initializing, key.topic_id)
    ]
    done = _group_by_topic(answered, topics)
    made = _group_by_topic([key for key in answered if partitions[key]], topics)
    if done:
        decision.steps.append(
            states_record(
                group.group_id,
                _without(group.initializing, done),
                _join(group.initialized, made),
                group.deleting,
            )
        )
    return decision


def look_up_states(group: ShareGroup, decision: Decision) -> None:
    """Add to a decision that the states from before the load are looked up. Those that share
    coordinators have lost, such as by a restore from a backup, would never be read."""
    # A concurrent request about a topic could overtake this one, and its states are there.
    busy = {*group.initializations, *group.deletions}
    kept = {each: named for each, named in group.initialized.items() if each not in busy}
    decision.steps.append(VerificationBegun(frozenset(kept)))
    requests = tuple(
        ReadSummary(SharePartitionKey(group.group_id, topic_id, partition))
        for topic_id, named in kept.items()
        for partition in sorted(named.partitions)
    )
    if requests:
        decision.effects.append(ChangeStates(StatesPurpose.VERIFY, requests))


def decide_verified(
    group: ShareGroup, topics: ClusterTopics, answers: Mapping[SharePartitionKey, StateAnswer]
) -> Decision:
    """Forget the states that share coordinators do not have, so that the next heartbeat requests
    them again."""
    asked = frozenset(key.topic_id for key in answers)
    decision = Decision(group.group_id, [InitializationEnded(asked)])
    lost = _group_by_topic([key for key, answer in answers.items() if _is_lost(answer)], topics)
    left = _without(group.initialized, lost)
    if left != group.initialized:
        decision.steps.append(
            states_record(group.group_id, group.initializing, left, group.deleting)
        )
    return decision


def _is_lost(answer: StateAnswer) -> bool:
    """Return whether a summary is that of a share partition without a state."""
    if answer.code is not ErrorCode.NONE or answer.state is None:
        return False
    return answer.state.state_epoch == 0 and answer.state.start_offset == UNSET_OFFSET


def decide_topics_gone(group: ShareGroup, topics: ClusterTopics) -> Decision:
    """Forget the states of topics that do not exist any more; their share coordinators delete
    them."""
    decision = Decision(group.group_id)
    known = {*group.initializing, *group.initialized, *group.deleting}
    gone = {topic_id for topic_id in known if topics.topic_name(topic_id) is None}
    if gone:
        decision.steps.append(
            states_record(
                group.group_id,
                {each: named for each, named in group.initializing.items() if each not in gone},
                {each: named for each, named in group.initialized.items() if each not in gone},
                {each: name for each, name in group.deleting.items() if each not in gone},
            )
        )
    return decision


def list_assignable(group: ShareGroup, topics: ClusterTopics) -> dict[bytes, frozenset[int]]:
    """Return the partitions with a state, of existing topics."""
    found: dict[bytes, frozenset[int]] = {}
    for topic_id, named in group.initialized.items():
        name = topics.topic_name(topic_id)
        size = None if name is None else topics.topic_size(name)
        if size is not None:
            found[topic_id] = frozenset(each for each in named.partitions if each < size)
    return found


def _partitions(states: States, topic_id: bytes) -> frozenset[int]:
    named = states.get(topic_id)
    return NO_PARTITIONS if named is None else named.partitions


def _group_by_topic(
    keys: Iterable[SharePartitionKey], topics: ClusterTopics
) -> dict[bytes, NamedPartitions]:
    """Return the partitions of each topic that still exists."""
    found: dict[bytes, set[int]] = {}
    for key in keys:
        found.setdefault(key.topic_id, set()).add(key.partition)
    named = {topic_id: topics.topic_name(topic_id) for topic_id in found}
    return {
        topic_id: NamedPartitions(name, frozenset(found[topic_id]))
        for topic_id, name in named.items()
        if name is not None
    }


def _join(states: States, more: States) -> dict[bytes, NamedPartitions]:
    joined = dict(states)
    for topic_id, named in more.items():
        joined[topic_id] = NamedPartitions(
            named.name, _partitions(states, topic_id) | named.partitions
        )
    return joined


def _without(states: States, less: States) -> dict[bytes, NamedPartitions]:
    left: dict[bytes, NamedPartitions] = {}
    for topic_id, named in states.items():
        partitions = named.partitions - _partitions(less, topic_id)
        if partitions:
            left[topic_id] = NamedPartitions(named.name, partitions)
    return left
