"""Wire versions of the transaction APIs: which codes each knows, how requests are split."""

from __future__ import annotations

import pytest

from kafkawire.codec.compile import decode, encode
from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kafkawire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kafkawire.messages.end_txn import EndTxnRequest, EndTxnResponse
from kafkawire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kafkawire.transactions.machine import wire
from kafkawire.transactions.machine.request import (
    AddPartitions,
    Answer,
    EndTransaction,
    InitProducer,
    VerifyPartitions,
)

FENCED = ErrorCode.PRODUCER_FENCED
OK = ErrorCode.NONE
TOPICS = [AddPartitionsToTxnTopic("b", [2, 0, 2]), AddPartitionsToTxnTopic("a", [1])]
ORDER = frozenset({("b", 2), ("b", 0), ("a", 1)})


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id(version: int) -> None:
    sent = InitProducerIdRequest("t", 9, 5, 6) if version >= 3 else InitProducerIdRequest("t", 9)
    request = decode(InitProducerIdRequest, version, encode(sent, version))
    pid, epoch = (5, 6) if version >= 3 else (-1, -1)
    assert wire.init_producer_of(request) == InitProducer("t", 9, pid, epoch)
    fenced = wire.init_producer_response(Answer(FENCED), version)
    assert fenced == InitProducerIdResponse(0, 47 if version < 4 else 90, -1, -1)
    assert wire.init_producer_response(Answer(OK, 7, 8), version) == InitProducerIdResponse(
        0, 0, 7, 8
    )


def test_two_phase_commit_is_in_version_6() -> None:
    sent = InitProducerIdRequest("t", 9, enable2pc=True, keep_prepared_txn=True)
    request = decode(InitProducerIdRequest, 6, encode(sent, 6))
    assert wire.init_producer_of(request) == InitProducer("t", 9, -1, -1, True, True)


@pytest.mark.parametrize("version", range(4))
def test_partitions_of_one_transaction(version: int) -> None:
    sent = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=5,
        v3_and_below_producer_epoch=6,
        v3_and_below_topics=TOPICS,
    )
    one = wire.single_transaction(decode(AddPartitionsToTxnRequest, version, encode(sent, version)))
    assert one.topics == TOPICS
    request = wire.partitions_request(one, ORDER, version)
    assert request == AddPartitions("t", 5, 6, ORDER, 0)


@pytest.mark.parametrize("version", [4, 5])
def test_partitions_of_many_transactions(version: int) -> None:
    adds = AddPartitionsToTxnTransaction("t", 5, 6, False, TOPICS)
    verifies = AddPartitionsToTxnTransaction("u", 7, 8, True, TOPICS)
    request = wire.partitions_request(adds, ORDER, version)
    assert request == AddPartitions("t", 5, 6, ORDER, 2)
    assert wire.partitions_request(verifies, ORDER, version) == VerifyPartitions("u", 7, 8, ORDER)


@pytest.mark.parametrize("version", range(5))
def test_offsets_add_the_partition_of_their_group(version: int) -> None:
    request = decode(
        AddOffsetsToTxnRequest, version, encode(AddOffsetsToTxnRequest("t", 5, 6, "g"), version)
    )
    at = ("__consumer_offsets", 3)
    assert wire.add_offsets_of(request, at) == AddPartitions("t", 5, 6, frozenset({at}), 0)
    code = wire.fenced_code(FENCED, version, wire.FENCED_FROM_ADD_OFFSETS)
    assert code == (47 if version < 2 else 90)


@pytest.mark.parametrize("version", range(6))
def test_ending(version: int) -> None:
    request = decode(EndTxnRequest, version, encode(EndTxnRequest("t", 5, 6, True), version))
    asked = EndTransaction("t", 5, 6, True, 2 if version == 5 else 0)
    assert wire.end_of(request, version) == asked
    assert wire.end_response(Answer(FENCED), version).error_code == (47 if version < 2 else 90)
    ended = EndTxnResponse(0, 0, 7, 8) if version == 5 else EndTxnResponse()
    assert wire.end_response(Answer(OK, 7, 8), version) == ended
    assert encode(ended, version)


@pytest.mark.parametrize("code", [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_TXN_STATE])
def test_other_codes_are_the_same_in_every_version(code: ErrorCode) -> None:
    assert wire.fenced_code(code, 0, 4) is code
