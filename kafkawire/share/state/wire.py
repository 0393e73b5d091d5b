"""The requests about share states as Kafka's messages 83 to 87, and back. Pure.

A message has partitions of one group; requests are in its order.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from kafkawire.codec.errors import ErrorCode
from kafkawire.messages import delete_share_group_state as delete
from kafkawire.messages import initialize_share_group_state as initialize
from kafkawire.messages import read_share_group_state as read
from kafkawire.messages import read_share_group_state_summary as summary
from kafkawire.messages import write_share_group_state as write
from kafkawire.share.persister import SharePartitionKey, StateBatch
from kafkawire.share.state.machine import (
    MAX_BATCHES,
    DeleteState,
    InitializeState,
    ReadState,
    ReadSummary,
    StateAnswer,
    StateRequest,
    WriteState,
)
from kafkawire.share.state.records import StoredShareState

StateMessage = (
    initialize.InitializeShareGroupStateRequest
    | read.ReadShareGroupStateRequest
    | write.WriteShareGroupStateRequest
    | delete.DeleteShareGroupStateRequest
    | summary.ReadShareGroupStateSummaryRequest
)
StateResponse = (
    initialize.InitializeShareGroupStateResponse
    | read.ReadShareGroupStateResponse
    | write.WriteShareGroupStateResponse
    | delete.DeleteShareGroupStateResponse
    | summary.ReadShareGroupStateSummaryResponse
)


class StateFormat(NamedTuple):
    """The API of one kind of request: its key, and its message and response with their parts."""

    key: int
    message: type[Any]
    topic: type[Any]
    response: type[Any]
    topic_result: type[Any]
    row: type[Any]


FORMATS: dict[type[Any], StateFormat] = {
    InitializeState: StateFormat(
        83,
        initialize.InitializeShareGroupStateRequest,
        initialize.InitializeStateData,
        initialize.InitializeShareGroupStateResponse,
        initialize.InitializeStateResult,
        write.PartitionResult,
    ),
    ReadState: StateFormat(
        84,
        read.ReadShareGroupStateRequest,
        read.ReadStateData,
        read.ReadShareGroupStateResponse,
        read.ReadStateResult,
        read.PartitionResult,
    ),
    WriteState: StateFormat(
        85,
        write.WriteShareGroupStateRequest,
        write.WriteStateData,
        write.WriteShareGroupStateResponse,
        write.WriteStateResult,
        write.PartitionResult,
    ),
    DeleteState: StateFormat(
        86,
        delete.DeleteShareGroupStateRequest,
        delete.DeleteStateData,
        delete.DeleteShareGroupStateResponse,
        delete.DeleteStateResult,
        write.PartitionResult,
    ),
    ReadSummary: StateFormat(
        87,
        summary.ReadShareGroupStateSummaryRequest,
        summary.ReadStateSummaryData,
        summary.ReadShareGroupStateSummaryResponse,
        summary.ReadStateSummaryResult,
        summary.PartitionResult,
    ),
}
"""By kind of request."""
_BY_MESSAGE = {each.message: each for each in FORMATS.values()}


def parse_message(message: StateMessage) -> Iterator[StateRequest]:
    """Yield the requests of a message."""
    for topic in message.topics:
        for each in topic.partitions:
            key = SharePartitionKey(message.group_id, bytes(topic.topic_id), each.partition)
            yield _parse(message, key, each)


def _parse(message: StateMessage, key: SharePartitionKey, each: Any) -> StateRequest:
    if isinstance(message, initialize.InitializeShareGroupStateRequest):
        return InitializeState(key, each.state_epoch, each.start_offset)
    if isinstance(message, read.ReadShareGroupStateRequest):
        return ReadState(key, each.leader_epoch)
    if isinstance(message, write.WriteShareGroupStateRequest):
        # With one more than the state machine allows it refuses the write.
        batches = _parse_batches(each.state_batches[: MAX_BATCHES + 1])
        return WriteState(
            key, each.state_epoch, each.leader_epoch, each.start_offset,
            each.delivery_complete_count, batches,
        )  # fmt: skip
    if isinstance(message, delete.DeleteShareGroupStateRequest):
        return DeleteState(key)
    return ReadSummary(key)


def _parse_batches(batches: Iterable[write.StateBatch]) -> tuple[StateBatch, ...]:
    return tuple(
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in batches
    )


def response_steps(
    message: StateMessage, answers: Sequence[StateAnswer]
) -> Generator[None, None, StateResponse]:
    """Return the response to a message, with the answers to its requests in order. A generator for
    Slices.run."""
    remaining = iter(answers)
    kind = _BY_MESSAGE[type(message)]
    response = kind.response()
    for topic in message.topics:
        result = kind.topic_result(topic_id=topic.topic_id)
        for each in topic.partitions:
            answer = next(remaining)
            row = kind.row(
                partition=each.partition,
                error_code=int(answer.code),
                error_message=(answer.message or answer.code.sentence) if answer.code else None,
            )
            if answer.state is not None:
                _show(row, answer.state)
            result.partitions.append(row)
            yield
        response.results.append(result)
    return response  # type: ignore[no-any-return]


def _show(row: Any, state: StoredShareState) -> None:
    row.state_epoch = state.state_epoch
    row.start_offset = state.start_offset
    if isinstance(row, read.PartitionResult):
        row.state_batches = [write.StateBatch(*batch) for batch in state.batches]
    elif isinstance(row, summary.PartitionResult):
        row.leader_epoch = state.leader_epoch
        row.delivery_complete_count = state.delivery_complete_count


def format_message(requests: Sequence[StateRequest]) -> StateMessage:
    """Return requests of one kind and one group as a message."""
    kind = FORMATS[type(requests[0])]
    message = kind.message(group_id=requests[0].key.group_id)
    topics: dict[bytes, Any] = {}
    for request in requests:
        topic_id = request.key.topic_id
        if topic_id not in topics:
            topics[topic_id] = kind.topic(topic_id=topic_id)
            message.topics.append(topics[topic_id])
        topics[topic_id].partitions.append(_format(request))
    return message  # type: ignore[no-any-return]


def _format(request: StateRequest) -> Any:
    partition = request.key.partition
    if isinstance(request, InitializeState):
        return initialize.PartitionData(partition, request.state_epoch, request.start_offset)
    if isinstance(request, ReadState):
        return summary.PartitionData(partition, request.leader_epoch)
    if isinstance(request, WriteState):
        return write.PartitionData(
            partition, request.state_epoch, request.leader_epoch, request.start_offset,
            request.delivery_complete_count,
            [write.StateBatch(*batch) for batch in request.batches],
        )  # fmt: skip
    if isinstance(request, DeleteState):
        return delete.PartitionData(partition)
    return summary.PartitionData(partition)


def parse_response(response: StateResponse) -> dict[tuple[bytes, int], StateAnswer]:
    """Return the answers of a response by topic id and partition."""
    return {
        (bytes(topic.topic_id), row.partition): _parse_result(row)
        for topic in response.results
        for row in topic.partitions
    }


def _parse_result(row: Any) -> StateAnswer:
    known = row.error_code in set(ErrorCode)
    code = ErrorCode(row.error_code) if known else ErrorCode.UNKNOWN_SERVER_ERROR
    if code is not ErrorCode.NONE:
        return StateAnswer(code, row.error_message)
    if isinstance(row, read.PartitionResult):
        batches = _parse_batches(row.state_batches)
        state = StoredShareState(row.state_epoch, row.start_offset, batches=batches)
        return StateAnswer(code, None, state)
    if isinstance(row, summary.PartitionResult):
        state = StoredShareState(
            row.state_epoch,
            row.start_offset,
            leader_epoch=row.leader_epoch,
            delivery_complete_count=row.delivery_complete_count,
        )
        return StateAnswer(code, None, state)
    return StateAnswer(code)
