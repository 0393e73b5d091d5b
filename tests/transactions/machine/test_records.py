"""The bytes of `__transaction_state` records, compared with Kafka's formats field by field.

Expected bytes are put together here from the description of the format.

Covers: kafkawire.coordination.batches.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.batches import HEAD_BYTES, iter_batches, read_head, records
from kafkawire.codec.compile import encode_versioned
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import DecodeError
from kafkawire.messages.stored import (
    TransactionLogKey,
    TransactionLogPartitions,
    TransactionLogValue,
)
from kafkawire.transactions.machine.records import (
    TransactionRecord,
    batches_of,
    decode_record,
    encode_record,
    fits,
)
from kafkawire.transactions.machine.transaction import (
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    Transaction,
    TransactionState,
)

NO_TAGS = b"\0"


def i64(number: int) -> bytes:
    return struct.pack(">q", number)


def i32(number: int) -> bytes:
    return struct.pack(">i", number)


def i16(number: int) -> bytes:
    return struct.pack(">h", number)


def compact(text: str) -> bytes:
    """A flexible string: its length plus one as an unsigned varint, here one byte."""
    return bytes([len(text.encode()) + 1]) + text.encode()


def plain(text: str) -> bytes:
    return i16(len(text.encode())) + text.encode()


def tag(number: int, data: bytes) -> bytes:
    return bytes([number, len(data)]) + data


OPEN = Transaction(
    producer_id=4_000_000_001,
    producer_epoch=3,
    timeout_ms=60_000,
    state=ONGOING,
    partitions=frozenset({("orders", 1), ("orders", 0), ("ünits", 7)}),
    started_ms=1_700_000_000_000,
    updated_ms=1_700_000_000_500,
    previous_producer_id=4_000_000_001,
    client_version=2,
    last_producer_epoch=2,
)


def test_the_key_is_type_0_and_the_id() -> None:
    key, _ = encode_record(TransactionRecord("märz", OPEN), 2)
    assert key == i16(0) + plain("märz")


def test_an_open_transaction_is_value_1() -> None:
    _, value = encode_record(TransactionRecord("t", OPEN), 2)
    topics = (
        b"\x03"  # two topics
        + compact("orders") + b"\x03" + i32(0) + i32(1) + NO_TAGS
        + compact("ünits") + b"\x02" + i32(7) + NO_TAGS
    )  # fmt: skip
    tags = b"\x02" + tag(0, i64(4_000_000_001)) + tag(2, i16(2))
    assert value == (
        i16(1) + i64(4_000_000_001) + i16(3) + i32(60_000) + b"\x01" + topics
        + i64(1_700_000_000_500) + i64(1_700_000_000_000) + tags
    )  # fmt: skip


def test_with_feature_0_it_is_value_0() -> None:
    _, value = encode_record(TransactionRecord("t", OPEN), 0)
    topics = (
        i32(2)
        + plain("orders") + i32(2) + i32(0) + i32(1)
        + plain("ünits") + i32(1) + i32(7)
    )  # fmt: skip
    assert value == (
        i16(0) + i64(4_000_000_001) + i16(3) + i32(60_000) + b"\x01" + topics
        + i64(1_700_000_000_500) + i64(1_700_000_000_000)
    )  # fmt: skip
    assert (
        encode_record(TransactionRecord("t", OPEN), 1)[1]
        == (encode_record(TransactionRecord("t", OPEN), 2)[1])
    )


def test_an_empty_id_has_null_for_partitions() -> None:
    at = Transaction(7, 0, 1000, EMPTY, updated_ms=9, previous_producer_id=7)
    head = i64(7) + i16(0) + i32(1000) + b"\x00"
    times = i64(9) + i64(-1)
    _, value = encode_record(TransactionRecord("t", at), 2)
    assert value == i16(1) + head + b"\x00" + times + b"\x01" + tag(0, i64(7))
    _, value = encode_record(TransactionRecord("t", at), 0)
    assert value == i16(0) + head + i32(-1) + times


def test_a_complete_one_has_an_empty_array() -> None:
    at = Transaction(7, 0, 1000, COMPLETE_COMMIT, started_ms=8, updated_ms=9)
    head = i64(7) + i16(0) + i32(1000) + b"\x04"
    times = i64(9) + i64(8)
    _, value = encode_record(TransactionRecord("t", at), 2)
    assert value == i16(1) + head + b"\x01" + times + NO_TAGS  # -1 and 0 are not written
    _, value = encode_record(TransactionRecord("t", at), 0)
    assert value == i16(0) + head + i32(0) + times


def test_a_rollover_has_the_next_producer_id() -> None:
    at = Transaction(
        7, 32_767, 1000, PREPARE_ABORT, frozenset({("t", 0)}), 8, 9, 7, 5001, client_version=2
    )
    _, value = encode_record(TransactionRecord("t", at), 2)
    assert value == (
        i16(1) + i64(7) + i16(32_767) + i32(1000) + b"\x03"
        + b"\x02" + compact("t") + b"\x02" + i32(0) + NO_TAGS
        + i64(9) + i64(8)
        + b"\x03" + tag(0, i64(7)) + tag(1, i64(5001)) + tag(2, i16(2))
    )  # fmt: skip


@pytest.mark.parametrize("state", list(TransactionState))
def test_statuses_are_kafkas(state: TransactionState) -> None:
    names = ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"]
    assert names[int(state)] == state.label
    _, value = encode_record(TransactionRecord("t", Transaction(1, 0, 1, state)), 2)
    assert value is not None
    assert value[16] == int(state)


def test_tombstones_have_a_key_and_no_value() -> None:
    key, value = encode_record(TransactionRecord("t", None), 2)
    assert value is None
    assert decode_record(key, None) == TransactionRecord("t", None)


numbers = st.integers(-1, 2**63 - 1)
transactions = st.builds(
    Transaction,
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 32_767),
    timeout_ms=st.integers(1, 2**31 - 1),
    state=st.sampled_from([s for s in TransactionState if s is not EMPTY]),
    partitions=st.frozensets(st.tuples(st.text(max_size=5), st.integers(0, 99)), max_size=6),
    started_ms=numbers,
    updated_ms=numbers,
    previous_producer_id=numbers,
    next_producer_id=numbers,
    client_version=st.integers(0, 2),
    last_producer_epoch=st.just(-1),
)


def declared(record: TransactionRecord, version: int) -> tuple[bytes, bytes]:
    """The bytes of a record by the declarations of its messages."""
    at = record.value
    assert at is not None
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(at.partitions):
        topics.setdefault(topic, []).append(index)
    value = TransactionLogValue(
        producer_id=at.producer_id,
        previous_producer_id=at.previous_producer_id,
        next_producer_id=at.next_producer_id,
        producer_epoch=at.producer_epoch,
        transaction_timeout_ms=at.timeout_ms,
        transaction_status=int(at.state),
        transaction_partitions=[TransactionLogPartitions(*row) for row in topics.items()],
        transaction_last_update_timestamp_ms=at.updated_ms,
        transaction_start_timestamp_ms=at.started_ms,
        client_transaction_version=at.client_version,
    )
    key = encode_versioned(TransactionLogKey(record.transactional_id), 0)
    return key, encode_versioned(value, version)


@given(st.text(min_size=1, max_size=200), transactions)
def test_the_bytes_are_those_of_the_declared_messages(name: str, at: Transaction) -> None:
    record = TransactionRecord(name, at)
    assert encode_record(record, 2) == declared(record, 1)
    assert encode_record(record, 0) == declared(record, 0)


@pytest.mark.parametrize("count", [63, 64, 127, 128, 20_000])
def test_lengths_of_more_than_a_byte(count: int) -> None:
    """Of a topic's name, of the topics, of the partitions of one."""
    names = frozenset({("n" * count, 0)} | {(str(number), 1) for number in range(count)})
    many = frozenset(("t", index) for index in range(count))
    for partitions in (names, many):
        record = TransactionRecord("T" * count, OPEN._replace(partitions=partitions))
        assert encode_record(record, 2) == declared(record, 1)
        assert encode_record(record, 0) == declared(record, 0)


@given(st.text(min_size=1, max_size=9), transactions)
def test_records_survive_the_log(name: str, at: Transaction) -> None:
    record = TransactionRecord(name, at)
    assert decode_record(*encode_record(record, 2)) == record
    old = decode_record(*encode_record(record, 0))
    assert old is not None
    assert old.value is not None
    assert old.value.partitions == at.partitions
    assert (old.value.previous_producer_id, old.value.client_version) == (-1, 0)


def test_the_last_epoch_is_not_in_the_log() -> None:
    found = decode_record(*encode_record(TransactionRecord("t", OPEN), 2))
    assert found is not None
    assert found.value is not None
    assert found.value.last_producer_epoch == -1


def test_a_tag_that_is_never_written_is_read() -> None:
    """NextProducerEpoch, tag 3, and one of a newer Kafka."""
    key, value = encode_record(TransactionRecord("t", Transaction(1, 0, 1)), 2)
    assert value is not None
    assert value[-1:] == NO_TAGS
    more = value[:-1] + b"\x02" + tag(3, i16(4)) + tag(9, b"new")
    assert decode_record(key, more) == TransactionRecord("t", Transaction(1, 0, 1))


def test_other_records_are_not_ours() -> None:
    key, value = encode_record(TransactionRecord("t", OPEN), 2)
    assert value is not None
    assert decode_record(i16(1) + plain("t"), value) is None
    assert decode_record(i16(-1) + plain("t"), value) is None
    for wrong_key, wrong in [
        (None, value),
        (b"\0", value),
        (key[:-1], value),
        (key + b"x", value),
        (key, b""),
        (key, i16(2) + value[2:]),
        (key, value[:16] + b"\x06" + value[17:]),  # Dead is never in the log
        (key, value + b"x"),
        *((key, value[:cut]) for cut in range(0, len(value), 7)),
    ]:
        with pytest.raises(DecodeError):
            decode_record(wrong_key, wrong)


def test_one_record_is_one_plain_batch() -> None:
    """One record each, uncompressed, CreateTime, not transactional, no producer."""
    record = TransactionRecord("t", OPEN)
    (batch,) = batches_of([record], 10_000, 2, 77)
    head = read_head(batch)
    assert (head.attributes, head.producer_id, head.base_sequence, head.count) == (0, -1, -1, 1)
    (found,) = records(batch)
    assert (found.key, found.value) == encode_record(record, 2)
    assert found.timestamp == 77


def test_records_are_split_where_a_batch_is_full() -> None:
    items = [TransactionRecord(f"id-{n}", None) for n in range(100)]
    batches = batches_of(items, 500, 2, 77)
    assert len(batches) > 4
    assert all(len(batch) <= 500 for batch in batches)
    found = [
        decode_record(record.key, record.value)
        for batch in batches
        for position, _ in iter_batches(batch)
        for record in records(batch, position)
    ]
    assert found == items
    with pytest.raises(KafkaError) as error:
        batches_of(items, HEAD_BYTES, 2, 77)
    assert error.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert batches_of([], 500, 2, 77) == []


def test_an_id_must_fit_into_a_record() -> None:
    assert fits("x" * 32_767)
    assert not fits("x" * 32_768)
    assert fits("ü" * 16_383)
    assert not fits("ü" * 16_384)
