"""Records of a dumped batch as dictionaries: plain ones, control records, `__transaction_state`,
`__share_group_state`.

Called by kafkawire.cli.dump.journal and kafkawire.cli.dump.segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kafkawire.codec.batches import CONTROL, Record, header_bytes, iter_batches, records
from kafkawire.codec.control import ABORT, COMMIT, EMPTY, read_marker
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.types import DecodeError, uuid_text
from kafkawire.share.state.records import StateSnapshot, StateUpdate, StoredShareState
from kafkawire.share.state.records import decode_record as decode_share_state
from kafkawire.share.states import RecordState
from kafkawire.transactions.machine.records import TransactionRecord, decode_record

STATE_TOPIC, SHARE_STATE_TOPIC = "__transaction_state", "__share_group_state"
STATES = {state.value: state.name.lower() for state in RecordState}
MARKERS = {ABORT: "abort", COMMIT: "commit"}


def records_of(batches: memoryview, topic: str | None) -> Iterator[dict[str, Any]]:
    """Yield the readable records of some batches of a topic (None: not known), each as a dictionary
    for one line."""
    try:
        for position, head in iter_batches(batches):
            if head.attributes & CONTROL:
                marker = read_marker(batches, position, head)
                if marker.kind != EMPTY:
                    yield {
                        "offset": head.base_offset,
                        "timestamp": head.max_timestamp,
                        "marker": MARKERS.get(marker.kind, "other"),
                        "coordinator_epoch": marker.coordinator_epoch,
                    }
                continue
            for record in records(batches, position):
                yield _DECODED.get(topic or "", _plain)(record)
    except KafkaError as failure:
        yield {"damaged": str(failure)}


def _plain(record: Record) -> dict[str, Any]:
    line: dict[str, Any] = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": bytes_text(record.key),
        "value": bytes_text(record.value),
    }
    if record.headers:
        line["headers"] = [
            [bytes_text(header_bytes(name)), bytes_text(value)] for name, value in record.headers
        ]
    return line


def _transaction(record: Record) -> dict[str, Any]:
    """A record of `__transaction_state` decoded, or as bytes if that is not possible."""
    try:
        found = decode_record(record.key, record.value)
    except DecodeError as failure:
        return {**_plain(record), "damaged": str(failure)}
    if found is None:
        return _plain(record)
    return {"offset": record.offset, "timestamp": record.timestamp, **_state(found)}


def _state(found: TransactionRecord) -> dict[str, Any]:
    at = found.value
    if at is None:
        return {"transactional_id": found.transactional_id, "state": None}
    return {
        "transactional_id": found.transactional_id,
        "state": at.state.label,
        "producer_id": at.producer_id,
        "producer_epoch": at.producer_epoch,
        "previous_producer_id": at.previous_producer_id,
        "next_producer_id": at.next_producer_id,
        "timeout_ms": at.timeout_ms,
        "started_ms": at.started_ms,
        "updated_ms": at.updated_ms,
        "client_version": at.client_version,
        "partitions": [f"{topic}-{index}" for topic, index in sorted(at.partitions)],
    }


def _share_state(record: Record) -> dict[str, Any]:
    """A record of `__share_group_state` decoded, or as bytes if that is not possible."""
    try:
        found = decode_share_state(record.key, record.value)
    except DecodeError as failure:
        return {**_plain(record), "damaged": str(failure)}
    if found is None:
        return _plain(record)
    line: dict[str, Any] = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "group": found.key.group_id,
        "topic_id": uuid_text(found.key.topic_id),
        "partition": found.key.partition,
    }
    state: StateUpdate | StoredShareState
    if isinstance(found, StateSnapshot):
        if found.state is None:
            return {**line, "kind": "deleted"}
        state = found.state
        line |= {"kind": "snapshot", "state_epoch": state.state_epoch}
    else:
        state = found
        line["kind"] = "update"
    return {
        **line,
        "snapshot_epoch": state.snapshot_epoch,
        "leader_epoch": state.leader_epoch,
        "start_offset": state.start_offset,
        "delivery_complete_count": state.delivery_complete_count,
        "batches": [
            f"{first}-{last} {STATES.get(kind, kind)} {deliveries}"
            for first, last, kind, deliveries in state.batches
        ],
    }


def bytes_text(data: bytes | None) -> str | None:
    """Return bytes as text if they are UTF-8, else in hexadecimal."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "0x" + data.hex()


_DECODED = {STATE_TOPIC: _transaction, SHARE_STATE_TOPIC: _share_state}
