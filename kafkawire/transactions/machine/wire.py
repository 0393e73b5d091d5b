"""Requests of the wire as requests to the machine, and its answers as responses of a version.

Pure; called by the handlers.
"""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kafkawire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTransaction,
)
from kafkawire.messages.end_txn import EndTxnRequest, EndTxnResponse
from kafkawire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kafkawire.transactions.machine.request import (
    AddPartitions,
    Answer,
    EndTransaction,
    InitProducer,
    VerifyPartitions,
)
from kafkawire.transactions.machine.transaction import TopicPartition

FENCED_FROM_INIT_PRODUCER_ID = 4
FENCED_FROM_ADD_PARTITIONS = 2
FENCED_FROM_ADD_OFFSETS = 2
FENCED_FROM_END_TXN = 2
"""The first version of each API that answers PRODUCER_FENCED."""

BATCHED_FROM = 4
"""AddPartitionsToTxn has many transactions from this version on, and speaks version 2."""
ENDS_BY_BUMP_FROM = 5
"""EndTxn speaks version 2 of the protocol from this version on."""
# The level that a request follows depends on its own version, not on the feature of the cluster, as
# old and new clients work at the same time (Kafka: TransactionVersion).
VERSION_2 = 2
VERSION_1 = 0
"""The levels of transaction.version that a request speaks; Kafka calls the old one 0."""


def fenced_code(code: ErrorCode, version: int, known_from: int) -> ErrorCode:
    # The code that producers had for a replaced one before PRODUCER_FENCED existed.
    if code is ErrorCode.PRODUCER_FENCED and version < known_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


# -- InitProducerId -------------------------------------------------------------------------


def init_producer_of(request: InitProducerIdRequest) -> InitProducer:
    return InitProducer(
        request.transactional_id or "",
        request.transaction_timeout_ms,
        request.producer_id,
        request.producer_epoch,
        request.enable2pc,
        request.keep_prepared_txn,
    )


def init_producer_response(answer: Answer, version: int) -> InitProducerIdResponse:
    code = fenced_code(answer.code, version, FENCED_FROM_INIT_PRODUCER_ID)
    return InitProducerIdResponse(
        error_code=int(code), producer_id=answer.producer_id, producer_epoch=answer.producer_epoch
    )


# -- AddPartitionsToTxn, AddOffsetsToTxn ----------------------------------------------------


def single_transaction(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnTransaction:
    """The transaction of a request before version 4, in the form that later ones have (Kafka:
    AddPartitionsToTxnRequest.normalizeRequest)."""
    return AddPartitionsToTxnTransaction(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )


def partitions_request(
    one: AddPartitionsToTxnTransaction, partitions: frozenset[TopicPartition], version: int
) -> AddPartitions | VerifyPartitions:
    who = one.transactional_id, one.producer_id, one.producer_epoch
    if one.verify_only:
        return VerifyPartitions(*who, partitions)
    return AddPartitions(*who, partitions, VERSION_1 if version < BATCHED_FROM else VERSION_2)


def add_offsets_of(request: AddOffsetsToTxnRequest, partition: TopicPartition) -> AddPartitions:
    """An AddOffsetsToTxn: it adds `partition`, the one of `__consumer_offsets` with the group."""
    return AddPartitions(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        frozenset({partition}),
        VERSION_1,
    )


# -- EndTxn ---------------------------------------------------------------------------------


def end_of(request: EndTxnRequest, version: int) -> EndTransaction:
    return EndTransaction(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        VERSION_2 if version >= ENDS_BY_BUMP_FROM else VERSION_1,
    )


def end_response(answer: Answer, version: int) -> EndTxnResponse:
    """The response of EndTxn; versions before 5 have no producer id and epoch."""
    code = int(fenced_code(answer.code, version, FENCED_FROM_END_TXN))
    if version < ENDS_BY_BUMP_FROM:
        return EndTxnResponse(error_code=code)
    return EndTxnResponse(
        error_code=code, producer_id=answer.producer_id, producer_epoch=answer.producer_epoch
    )
