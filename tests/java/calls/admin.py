"""Requests of administrators."""

from __future__ import annotations

from typing import Any

from kafkawire.messages import (
    api_versions,
    describe_producers,
    describe_transactions,
    list_transactions,
    update_features,
)
from tests.java.calls.wire import Part, Wire
from tests.kit.waiting import wait_until

Described = tuple[int, str, int, int, set[Part]]
"""(code, state, producer ID, epoch, partitions) of a transaction."""
TRANSACTION_VERSION = "transaction.version"
UPGRADE, SAFE_DOWNGRADE = 1, 2


class AdminCalls(Wire):
    """DescribeTransactions, ListTransactions, DescribeProducers, UpdateFeatures."""

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

    def update_features(
        self, *rows: tuple[str, int, int], version: int = 2, validate_only: bool = False
    ) -> tuple[int, str | None]:
        """UpdateFeatures with (name, level, upgrade type); return code and message, which are
        compared with those of each feature. In v0 the type says whether a downgrade is allowed."""
        keys = [
            update_features.FeatureUpdateKey(name, level, upgrade_type=kind)
            if version
            else update_features.FeatureUpdateKey(name, level, allow_downgrade=kind > UPGRADE)
            for name, level, kind in rows
        ]
        request = update_features.UpdateFeaturesRequest(60_000, keys, validate_only)
        answer = self.ask("UpdateFeatures", request, version)
        messages = {str(n): row.error_message for n, row in enumerate(answer.results)}
        self.transcript.append((f"messages for {rows}", {"": answer.error_message, **messages}))
        return answer.error_code, answer.error_message

    def transaction_version(self, version: int = 4) -> int | None:
        """Return the finalized level of transaction.version; None if it is switched off. It is
        compared: the other features belong to protocols that are not served."""
        request = api_versions.ApiVersionsRequest("test", "1")
        answer = self.send("ApiVersions", request, version)
        found = {
            row.name: (row.min_version_level, row.max_version_level)
            for row in answer.finalized_features
        }
        levels = found.get(TRANSACTION_VERSION)
        known = [row for row in answer.supported_features if row.name == TRANSACTION_VERSION]
        ranges = [(row.min_version, row.max_version) for row in known]
        fields = {"finalized": levels, "supported": ranges}
        self.transcript.append((f"features of ApiVersions v{version}", fields))
        return None if levels is None else levels[1]

    def finalize(self, level: int) -> None:
        """Change the level of transaction.version, and wait until it is in force."""
        kind = UPGRADE if level >= (self.transaction_version() or 0) else SAFE_DOWNGRADE
        self.update_features((TRANSACTION_VERSION, level, kind))
        self.wait_for_level(level)

    def wait_for_level(self, level: int) -> None:
        """Wait until a change of transaction.version is in force, a moment after its answer."""

        def in_force() -> bool:
            found = self.transaction_version()
            self.transcript.pop()
            return (found or 0) == level

        wait_until(in_force, f"transaction.version {level}")
