"""The promises of transactions, checked when everything has settled."""

from __future__ import annotations

from collections.abc import Mapping

from kafkawire.transactions.machine.records import TransactionRecord
from kafkawire.transactions.machine.transaction import (
    AT_REST,
    EMPTY,
    ONGOING,
    PREPARED,
    TopicPartition,
    Transaction,
    TransactionState,
)
from tests.kit.transactions.partitions import PartitionModel
from tests.kit.transactions.producers import ABORTED, COMMITTED, UNKNOWN, History
from tests.kit.transactions.world import World


class Violation(AssertionError):
    """A promise to producers or consumers was broken."""


def check(world: World, history: History) -> None:
    """Raises Violation. The world has settled: nothing waits, and no client asks any more."""
    check_outcomes(world.partitions, history)
    check_log(world.stored())
    if history.fenced:
        raise Violation(f"fenced without a reason: {history.fenced}")
    for transactional_id, at in world.shard.transactions.items():
        if at.state not in AT_REST or world.shard.pending:
            raise Violation(f"{transactional_id} is {at.state.label} for ever")


def check_outcomes(partitions: Mapping[TopicPartition, PartitionModel], history: History) -> None:
    """One outcome per transaction, the same in every partition, the one that was answered."""
    outcomes: dict[tuple[int, int], set[bool]] = {}
    for name, partition in partitions.items():
        for key, ends in partition.ends.items():
            if not ends or any(at.open for at in partition.producers.values()):
                raise Violation(f"{key} hangs in {name}")
            outcomes.setdefault(key, set()).update(ends)
    for key, found in outcomes.items():
        if len(found) > 1:
            raise Violation(f"{key} is torn: committed and aborted")
        known = history.known[key]
        expected = {COMMITTED: {True}, ABORTED: {False}, UNKNOWN: found}[known]
        if found != expected:
            raise Violation(f"{key} was answered {known}, consumers see commit={found}")


def check_log(records: list[TransactionRecord]) -> None:
    """Each record follows the one before it of its id, by the rules of epochs."""
    last: dict[str, Transaction] = {}
    for record in records:
        before, after = last.get(record.transactional_id), record.value
        if after is None:
            last.pop(record.transactional_id, None)
            continue
        last[record.transactional_id] = after
        if before is not None:
            why = _wrong(before, after)
            if why:
                raise Violation(f"{record.transactional_id}: {why}: {before} -> {after}")


def _wrong(before: Transaction, after: Transaction) -> str:
    states = (before.state, after.state)
    if after.producer_id != before.producer_id:
        taken = after.producer_id == before.next_producer_id and before.state in PREPARED
        if after.producer_epoch or not (taken or after.state is EMPTY):
            return "a new producer id out of turn"
        return ""
    bump = after.producer_epoch - before.producer_epoch
    allowed = {0, 1}
    if after.state is ONGOING or before.state in PREPARED:
        allowed = {0}
    if bump not in allowed:
        return f"the epoch moves by {bump}"
    if before.state in PREPARED and after.state is not _completed(before.state):
        return f"an outcome is changed, {states}"
    return ""


def _completed(state: TransactionState) -> TransactionState:
    return TransactionState(int(state) + 2)
