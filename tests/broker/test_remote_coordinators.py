"""Records and offsets of a transaction whose coordinator is another broker.

Covers: kafkawire.broker.other_brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kafkawire.broker.broker import Broker
from kafkawire.codec.batches import TRANSACTIONAL
from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.errors import ErrorCode as E
from kafkawire.groups.model.transactional import Verification
from kafkawire.transactions.machine.request import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    VerifyPartitions,
)
from tests.kit.client import Client, batch
from tests.kit.log.transactional import committed_records
from tests.kit.produce_fetch import produce
from tests.kit.two_brokers import Two, two_brokers
from tests.kit.waiting import until

pytestmark = pytest.mark.slow
Who = tuple[str, int, int]


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    async with two_brokers(tmp_path) as started:
        yield started


async def begun(two: Two) -> Who:
    """A producer of "tx", without a transaction."""
    service = two.first.transactions
    await service.coordinator_of("tx")
    made = await service.init_producer(InitProducer("tx", 60_000))
    return "tx", made.producer_id, made.producer_epoch


def port(broker: Broker) -> int:
    return broker.listeners["PLAINTEXT"][1]


async def write(broker: Broker, who: Who, index: int, version: int) -> int:
    """Produce one record to a partition of "t"; the code."""
    data = batch(
        b"x",
        producer_id=who[1],
        producer_epoch=who[2],
        base_sequence=0,
        attributes=TRANSACTIONAL,
    )
    request = produce("t", data, index=index)
    request.transactional_id = who[0]
    client = await Client.connect(port(broker))
    answer = await client.call(request, version)
    await client.close()
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


async def test_produce_adds_the_partition_at_the_other_broker(two: Two) -> None:
    who = await begun(two)
    assert await write(two.first, who, 0, 12) == 0
    assert await write(two.second, who, 1, 12) == 0
    assert await two.state() == ("Ongoing", [0, 1])
    ended = await two.first.transactions.answer_request(EndTransaction(*who, True, 2))
    assert ended.code is E.NONE
    await two.settled("CompleteCommit")
    for index in (0, 1):
        assert await committed_records(two.partition(index)) == [(0, b"x")]


async def test_produce_verifies_the_partition_at_the_other_broker(two: Two) -> None:
    who = await begun(two)
    assert await write(two.second, who, 1, 11) == E.TRANSACTION_ABORTABLE
    assert two.partition(1).next_offset == 0
    added = await two.first.transactions.answer_request(AddPartitions(*who, frozenset({("t", 1)})))
    assert added.code is E.NONE
    assert await write(two.second, who, 1, 11) == 0
    assert await write(two.second, ("tx", who[1], who[2] + 1), 3, 11) == E.INVALID_PRODUCER_EPOCH
    assert await write(two.second, ("tx", who[1] + 1, 0), 3, 11) == E.INVALID_PRODUCER_ID_MAPPING


async def test_offsets_are_verified_and_their_marker_reaches_the_group(two: Two) -> None:
    who = await begun(two)
    await two.second.groups.coordinator_of("g")
    await until(lambda: all(each.phase.name == "ACTIVE" for each in two.second.groups.list_led()))
    asked = Verification(*who, 0, False)
    assert (await two.second.verifier.verify_offsets(asked)).code is E.TRANSACTION_ABORTABLE
    verified = await two.second.verifier.verify_offsets(Verification(*who, 0, True))
    assert verified.code is E.NONE
    assert verified.guard is not None
    await two.first.transactions.answer_request(EndTransaction(*who, False, 2))
    await two.settled("CompleteAbort")
    partition = two.second.table.find_by_name("__consumer_offsets", 0)
    assert partition.high_watermark == 1  # the marker


async def test_coordinator_that_does_not_answer_is_a_network_error(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = await begun(two)
    remote: Any = two.second.verifier._remote
    at = ("t", 1)
    info = two.second.catalog.brokers[1]
    with monkeypatch.context() as patch:
        patch.setitem(info.listeners, "PLAINTEXT", ("127.0.0.1", 1))
        codes = await remote.request_verification(1, VerifyPartitions(*who, frozenset({at})))
        assert codes == {at: ErrorCode.NETWORK_EXCEPTION}
        assert await write(two.second, who, 1, 11) == E.NOT_ENOUGH_REPLICAS  # clients retry
    asked = [
        remote.request_verification(1, AddPartitions(*who, frozenset({at}), 2)) for _ in range(5)
    ]
    assert await asyncio.gather(*asked) == [{at: ErrorCode.NONE}] * 5
    missing = ("nosuch", 0)
    codes = await remote.request_verification(1, AddPartitions(*who, frozenset({at, missing}), 2))
    assert codes == {at: E.OPERATION_NOT_ATTEMPTED, missing: E.UNKNOWN_TOPIC_OR_PARTITION}
