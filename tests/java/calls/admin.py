"""Requests of administrators."""

from __future__ import annotations

from typing import Any

from kafkawire.messages import describe_producers, describe_transactions, list_transactions
from tests.java.calls.wire import Part, Wire

Described = tuple[int, str, int, int, set[Part]]
"""(code, state, producer ID, epoch, partitions) of a transaction."""


class AdminCalls(Wire):
    """DescribeTransactions, ListTransactions, DescribeProducers."""

    def describe(self, id: str) -> Described:
        """Return (code, state, producer ID, epoch, partitions)."""
        found, answer = self._describe(id)
        self.note("DescribeTransactions", answer)
        return found

    def describe_quietly(self, id: str) -> Described:
        """As `describe`, without noting the answer: for partitions of `__consumer_offsets`, of
        which groups have another than in Kafka where their hash is negative."""
        return self._describe(id)[0]

    def _describe(self, id: str) -> tuple[Described, Any]:
        request = describe_transactions.DescribeTransactionsRequest([id])
        answer = self.send("DescribeTransactions", request, 0)
        (row,) = answer.transaction_states
        row.topics.sort(key=lambda topic: topic.topic)
        for topic in row.topics:
            topic.partitions.sort()
        parts = {(topic.topic, p) for topic in row.topics for p in topic.partitions}
        state = row.error_code, row.transaction_state, row.producer_id, row.producer_epoch, parts
        return state, answer

    def producers(self, part: Part) -> list[Any]:
        """Return the rows of DescribeProducers, by producer ID."""
        named = describe_producers.TopicRequest(name=part[0], partition_indexes=[part[1]])
        request = describe_producers.DescribeProducersRequest(topics=[named])
        answer = self.send("DescribeProducers", request, 0)
        row = answer.topics[0].partitions[0]
        row.active_producers.sort(key=lambda producer: producer.producer_id)
        self.note("DescribeProducers", answer)
        assert row.error_code == 0
        return list(row.active_producers)

    def listed(self, version: int = 2, **filters: Any) -> tuple[int, list[str], dict[str, str]]:
        """ListTransactions; return (code, unknown states, states by id). Only the ids of this
        conversation are noted: others change while it runs."""
        request = list_transactions.ListTransactionsRequest(**filters)
        answer = self.send("ListTransactions", request, version)
        mine = [row for row in answer.transaction_states if row.transactional_id.endswith(self.run)]
        answer.transaction_states = sorted(mine, key=lambda row: row.transactional_id)
        self.note(f"ListTransactions v{version}", answer)
        states = {row.transactional_id: row.transaction_state for row in mine}
        return answer.error_code, answer.unknown_state_filters, states
