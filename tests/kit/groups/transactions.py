"""Offsets committed in transactions: requests, and what a coordinator answers to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkawire.codec.control import ABORT, COMMIT, TransactionMarker
from kafkawire.groups.model.request import (
    MarkerWritten,
    StableOffsetFetch,
    VerifiedCommit,
    WriteMarker,
)
from kafkawire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from kafkawire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.kit.groups.desk import Desk

if TYPE_CHECKING:
    from tests.kit.groups.log import Bench

PID = 4000


def txn_commit(
    offsets: dict[tuple[str, int], int],
    producer: int = PID,
    group: str = "g",
    generation: int = -1,
    member: str = "",
    instance: str | None = None,
    metadata: str | None = "",
    epoch: int = 0,
) -> TxnOffsetCommitRequest:
    """A TxnOffsetCommit of these (topic, partition) -> offset."""
    return TxnOffsetCommitRequest(
        transactional_id=f"T{producer}",
        group_id=group,
        producer_id=producer,
        producer_epoch=epoch,
        generation_id=generation,
        member_id=member,
        group_instance_id=instance,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_leader_epoch=3,
                        committed_metadata=metadata,
                    )
                ],
            )
            for (topic, partition), offset in offsets.items()
        ],
    )


def verified(offsets: dict[tuple[str, int], int], **how: Any) -> VerifiedCommit:
    """The same, verified."""
    return VerifiedCommit(txn_commit(offsets, **how), None)


def codes(answer: Any) -> list[int]:
    """The error codes of a response, by partition."""
    return [entry.error_code for topic in answer.topics for entry in topic.partitions]


def ending(commit: bool, producer: int = PID, epoch: int = 0) -> WriteMarker:
    """The end of the producer's transaction."""
    return WriteMarker(TransactionMarker(producer, epoch, 0, COMMIT if commit else ABORT))


def stable(group: str, *partitions: tuple[str, int]) -> StableOffsetFetch:
    """An OffsetFetch with RequireStable."""
    topics = [OffsetFetchRequestTopics(name=t, partition_indexes=[p]) for t, p in partitions]
    return StableOffsetFetch(OffsetFetchRequestGroup(group_id=group, topics=topics))


async def stable_codes(bench: Bench, group: str, *partitions: tuple[str, int]) -> list[int]:
    """Error codes of an OffsetFetch with RequireStable."""
    return codes(await bench.now(stable(group, *partitions)))


class TxnDesk(Desk):
    """A shard that carries out each decision at once, with transactions."""

    def txn(self, offsets: dict[tuple[str, int], int], **how: Any) -> list[int]:
        return codes(self.ask(verified(offsets, **how)))

    def end(self, commit: bool, producer: int = PID) -> None:
        answer = self.ask(ending(commit, producer))
        assert answer == MarkerWritten(0)

    def unstable(self, *partitions: tuple[str, int], group: str = "g") -> list[int]:
        return codes(self.ask(stable(group, *partitions)))
