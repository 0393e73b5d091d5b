"""The transaction service of a running broker: its topic, markers in the log, a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkawire.broker.new_topics import TRANSACTION_STATE_TOPIC
from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.transactional import Verification
from kafkawire.messages.create_topics import CreatableTopic
from kafkawire.transactions.machine.request import AddPartitions, EndTransaction, InitProducer
from tests.kit.server import running
from tests.kit.waiting import until

pytestmark = pytest.mark.slow
T = ("t", 0)


async def test_transaction_ends_in_the_log_and_survives_a_restart(tmp_path: Path) -> None:
    settings = {"transaction.state.log.num.partitions": "2"}
    async with running(tmp_path, **settings) as server:
        broker = server.broker
        await broker.topics.create([CreatableTopic("t", 1, 1)])
        assert TRANSACTION_STATE_TOPIC not in broker.catalog.by_name
        assert (await broker.transactions.coordinator_of("T")).leader == broker.node_id
        made = await broker.transactions.init_producer(InitProducer("T", 60_000))
        assert made.code is ErrorCode.NONE
        who = "T", made.producer_id, made.producer_epoch
        added = await broker.transactions.answer_request(AddPartitions(*who, frozenset({T})))
        assert added.code is ErrorCode.NONE
        ended = await broker.transactions.answer_request(EndTransaction(*who, True, 0))
        assert ended.code is ErrorCode.NONE
        partition = broker.table.find_by_name(*T)
        await until(lambda: partition.high_watermark == 1)  # its marker
    async with running(tmp_path, **settings) as server:
        service = server.broker.transactions
        await until(lambda: bool(service.coordinators))
        await until(lambda: all(each.phase.name == "ACTIVE" for each in service.list_led()))
        found = await service.describe("T")
        assert (found.error_code, found.producer_id) == (0, made.producer_id)
        assert found.transaction_state == "CompleteCommit"


async def test_offsets_are_added_to_the_transaction_and_verified(tmp_path: Path) -> None:
    async with running(tmp_path, **{"offsets.topic.num.partitions": "1"}) as server:
        broker = server.broker
        await broker.groups.coordinator_of("g")
        await broker.transactions.coordinator_of("T")
        made = await broker.transactions.init_producer(InitProducer("T", 60_000))
        who = "T", made.producer_id, made.producer_epoch
        refused = await broker.verifier.verify_offsets(Verification(*who, 0, False))
        assert (refused.code, refused.guard) == (ErrorCode.TRANSACTION_ABORTABLE, None)
        for adds in (True, False):
            verified = await broker.verifier.verify_offsets(Verification(*who, 0, adds))
            assert verified.code is ErrorCode.NONE
            assert verified.guard is not None
        stranger = await broker.verifier.verify_offsets(Verification("S", 99, 0, 0, True))
        assert stranger.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        missing = await broker.verifier.verify_offsets(Verification(*who, 7, True))
        assert missing.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
