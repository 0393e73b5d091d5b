"""The port to the persister: where the leader of a share partition stores its state.

Kafka: Persister of server-common. Kafka's share coordinators keep the states in
`__share_group_state`, under the key (group, topic id, partition). A share partition is initialized
there before members are assigned to it (InitializeShareGroupState, by the group coordinator).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

UNSET_OFFSET = -1
"""A start offset that is not decided: the leader chooses it by the group's setting."""
UNKNOWN_COUNT = -1
"""A delivery-complete count that the writer does not know."""


class SharePartitionKey(NamedTuple):
    """A partition as one share group consumes it. `topic_id`: 16 bytes."""

    group_id: str
    topic_id: bytes
    partition: int


class StateBatch(NamedTuple):
    """The offsets `first` to `last`, both included, in one state: 0 available, 2 acknowledged,
    3 archiving, 4 archived, as kafkawire.share.states.RecordState."""

    first: int
    last: int
    state: int
    delivery_count: int


class ShareState(NamedTuple):
    """The stored state of a share partition. `batches` ascend and do not overlap; offsets from
    `start_offset` on that are in no batch were never settled."""

    state_epoch: int
    start_offset: int = UNSET_OFFSET
    batches: tuple[StateBatch, ...] = ()
    delivery_complete_count: int = UNKNOWN_COUNT


class Persister(Protocol):
    """Reads and writes states, here or at the broker that has them.

    Both methods find the coordinator again, and wait, while it is loading or moves, for the write
    timeout of share coordinators at most. What then remains, and every other error, is raised as
    KafkaError: INVALID_REQUEST (the share partition was never initialized),
    FENCED_STATE_EPOCH (initialized again since it was read), FENCED_LEADER_EPOCH (a later leader
    has read it), UNKNOWN_TOPIC_OR_PARTITION, GROUP_ID_NOT_FOUND, COORDINATOR_NOT_AVAILABLE,
    COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR. After an error of `write` the outcome is unknown.
    """

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """Return the state, and fence writes of leaders with a lower epoch, durably."""
        ...

    async def write(
        self,
        key: SharePartitionKey,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: tuple[StateBatch, ...],
    ) -> None:
        """Merge `batches` into the state; return when that is durable. Newer batches replace what
        they overlap; what is below the start offset is dropped. `start_offset` UNSET_OFFSET leaves
        the start as it is, and a lower one never moves it back.

        The leader has one write of a share partition in progress at a time. Writes of different
        share partitions are concurrent; those of one event-loop iteration should share a batch of
        the log."""
        ...
