"""The order in the journal of what a transactional Produce writes.

Covers: kafkawire.broker.verification.
"""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.log.append import commit_log
from kafkawire.log.journal.write_batch import lay_out
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import make
from tests.kit.transactions.raw import TV2, RawProducer


@pytest.fixture
async def producer(client: Client) -> RawProducer:
    await make(client, "t", 1)
    return await RawProducer(client).init()


@pytest.mark.interpreted
async def test_records_follow_the_record_that_adds_their_partition(
    client: Client, producer: RawProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash keeps a part of a write batch from its beginning: records of a transaction that the
    coordinator does not know would stay open. The plain batch has begun the partition's frame."""
    topics: list[list[str]] = []

    def seen(write_batch: Any, *rest: Any) -> Any:
        topics.append([each.partition.topic for each in write_batch.frames if each.partition])
        return lay_out(write_batch, *rest)

    monkeypatch.setattr(commit_log, "lay_out", seen)
    client.send(producer.request({0: batch(b"plain")}), TV2)
    client.send(producer.request({0: producer.packed(b"a")}), TV2)
    for _ in range(2):
        assert (await client.receive()).responses[0].partition_responses[0].error_code == 0
    assert topics == [["t", "__transaction_state", "t"]]
