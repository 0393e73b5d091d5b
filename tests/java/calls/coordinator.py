"""Requests to the coordinator of transactions."""

from __future__ import annotations

from typing import Any

from kafkawire.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    fetch,
    init_producer_id,
)
from tests.java.calls.wire import NO_EPOCH, Owner, Part, Wire, codes_of
from tests.java.log_content import StateRecord, read_states
from tests.kit.waiting import wait_until

STATE_TOPIC = "__transaction_state"


class CoordinatorCalls(Wire):
    """InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn; the log of the coordinator."""

    def init_once(
        self,
        id: str | None,
        pid: int = -1,
        epoch: int = NO_EPOCH,
        *,
        version: int = 5,
        timeout_ms: int = 60_000,
    ) -> tuple[int, int, int]:
        """Return (code, producer ID, epoch)."""
        request = init_producer_id.InitProducerIdRequest(
            transactional_id=id,
            transaction_timeout_ms=timeout_ms,
            producer_id=pid,
            producer_epoch=epoch,
        )
        answer = self.ask("InitProducerId", request, version)
        return answer.error_code, answer.producer_id, answer.producer_epoch

    def init(self, *args: Any, **fields: Any) -> tuple[int, int, int]:
        """As `init_once`, repeated while the answer is to retry."""
        found: tuple[int, int, int] = self.final(
            lambda: self.init_once(*args, **fields), lambda answer: answer[0]
        )
        return found

    def owner(self, prefix: str = "T", **fields: Any) -> Owner:
        """Return the owner of a new transactional id."""
        id = self.new(prefix)
        self.mark_states(id)
        code, pid, epoch = self.init(id, **fields)
        assert (code, epoch) == (0, 0)
        self.aliases.setdefault(pid, prefix)
        return Owner(id, pid, epoch)

    def add_once(self, owner: Owner, *parts: Part, version: int = 3) -> list[int]:
        """AddPartitionsToTxn to v3; return the codes in the order of `parts`."""
        request = add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=owner.id or "",
            v3_and_below_producer_id=owner.pid,
            v3_and_below_producer_epoch=owner.epoch,
            v3_and_below_topics=topics_of(parts),
        )
        answer = self.ask("AddPartitionsToTxn", request, version)
        return codes_of(answer.results_by_topic_v3_and_below, parts)

    def add(self, owner: Owner, *parts: Part, version: int = 3) -> list[int]:
        """As `add_once`, repeated while the answer is to retry."""
        codes: list[int] = self.final(
            lambda: self.add_once(owner, *parts, version=version), lambda codes: codes[0]
        )
        return codes

    def add_many(
        self, *of: tuple[Owner, list[Part], bool], version: int = 5
    ) -> tuple[int, list[list[int]]]:
        """AddPartitionsToTxn v4+ with (owner, partitions, verify only); return the top-level code
        and the codes of each."""
        request = add_partitions_to_txn.AddPartitionsToTxnRequest(
            transactions=[
                add_partitions_to_txn.AddPartitionsToTxnTransaction(
                    transactional_id=owner.id or "",
                    producer_id=owner.pid,
                    producer_epoch=owner.epoch,
                    verify_only=verify,
                    topics=topics_of(parts),
                )
                for owner, parts, verify in of
            ]
        )
        answer = self.ask("AddPartitionsToTxn", request, version)
        found = {row.transactional_id: row.topic_results for row in answer.results_by_transaction}
        return answer.error_code, [
            codes_of(found.get(owner.id, []), parts) for owner, parts, _ in of
        ]

    def verify(self, owner: Owner, *parts: Part, version: int = 5) -> list[int]:
        """Ask whether the partitions are in the transaction."""
        return self.add_many((owner, list(parts), True), version=version)[1][0]

    def add_offsets(self, owner: Owner, group: str, version: int = 3) -> int:
        request = add_offsets_to_txn.AddOffsetsToTxnRequest(
            transactional_id=owner.id or "",
            producer_id=owner.pid,
            producer_epoch=owner.epoch,
            group_id=group,
        )
        code: int = self.final(
            lambda: self.ask("AddOffsetsToTxn", request, version), lambda answer: answer.error_code
        ).error_code
        return code

    def end_once(self, owner: Owner, commit: bool, version: int) -> tuple[int, int, int]:
        """EndTxn; return (code, producer ID, epoch), (-1, -1) as these below v5."""
        request = end_txn.EndTxnRequest(
            transactional_id=owner.id or "",
            producer_id=owner.pid,
            producer_epoch=owner.epoch,
            committed=commit,
        )
        answer = self.ask("EndTxn", request, version)
        return answer.error_code, answer.producer_id, answer.producer_epoch

    def end(self, owner: Owner, commit: bool, version: int) -> tuple[int, int, int]:
        """As `end_once`, repeated while the answer is to retry."""
        found: tuple[int, int, int] = self.final(
            lambda: self.end_once(owner, commit, version), lambda answer: answer[0]
        )
        return found

    def end_old(self, owner: Owner, commit: bool, version: int = 4) -> int:
        """EndTxn of the first transaction protocol (TV1); return the code."""
        return self.end(owner, commit, version)[0]

    def end_new(self, owner: Owner, commit: bool) -> Owner:
        """EndTxn of the second transaction protocol (TV2); return the producer to go on with."""
        code, pid, epoch = self.end(owner, commit, 5)
        assert code == 0
        self.aliases.setdefault(pid, f"{owner.id}-next")
        return Owner(owner.id, pid, epoch)

    def wait_for_state(self, owner: Owner, state: str) -> None:
        """Wait until the transaction has this state. Nothing is noted."""
        wait_until(lambda: self.settle(owner) == state, f"{state} of {owner.id}")

    def settle(self, owner: Owner) -> str:
        """Wait until the transaction is not being ended any more; return its state. Nothing is
        noted."""
        states: list[str] = []

        def settled() -> bool:
            request = describe_transactions.DescribeTransactionsRequest([owner.id or ""])
            (row,) = self.send("DescribeTransactions", request, 0).transaction_states
            states.append(row.transaction_state)
            return not states[-1].startswith("Prepare")

        wait_until(settled, f"the end of the transaction of {owner.id}")
        return states[-1]

    def mark_states(self, id: str) -> None:
        """Let `states` begin with the records that are appended from now on."""
        self.starts[id] = self._state_log(id, 0).high_watermark

    def states(self, id: str) -> list[StateRecord]:
        """Return the records of `id` in `__transaction_state` since `mark_states`, up to the one of
        its present state; they are compared."""
        records: list[StateRecord] = []

        def complete() -> bool:
            records[:] = read_states(self._state_log(id, self.starts[id]).records or b"", id)
            return bool(records) and records[-1].state == self.settle(Owner(id, 0, 0))

        wait_until(complete, f"the last record of {id}")
        for index, record in enumerate(records):
            masked = {k: v for k, v in record._asdict().items() if not k.endswith(("pid", "_ms"))}
            masked["parts"] = {
                # of groups whose hash is negative the partition is another than in Kafka
                (topic, -1 if topic == "__consumer_offsets" else partition)
                for topic, partition in record.parts or ()
            }
            self.transcript.append((f"record {index} of {STATE_TOPIC}", masked))
        return records

    def _state_log(self, id: str, offset: int) -> Any:
        """Fetch from the partition of `id` in `__transaction_state`."""
        row = fetch.FetchPartition(
            partition=state_partition(id), fetch_offset=offset, partition_max_bytes=1 << 24
        )
        named = fetch.FetchTopic(topic=STATE_TOPIC, partitions=[row])
        request = fetch.FetchRequest(max_wait_ms=0, max_bytes=1 << 24, topics=[named])
        found = self.send("Fetch", request, 12).responses[0].partitions[0]
        assert found.error_code == 0
        return found


def state_partition(id: str, count: int = 50) -> int:
    """Return the partition of `__transaction_state` that a transactional id belongs to: the
    absolute value of its hash, modulo the partition count."""
    digest = 0
    for character in id:  # Java's String.hashCode
        digest = (31 * digest + ord(character)) & 0xFFFFFFFF
    return (digest if digest < 1 << 31 else (1 << 32) - digest) % (1 << 31) % count


def topics_of(parts: Any) -> list[add_partitions_to_txn.AddPartitionsToTxnTopic]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in parts:
        by_topic.setdefault(topic, []).append(partition)
    return [add_partitions_to_txn.AddPartitionsToTxnTopic(*row) for row in by_topic.items()]
