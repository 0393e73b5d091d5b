"""One step of delivery: partitions, order, limits of the target, and its stored plan.

Covers: kafkawire.schedules.step, kafkawire.schedules.states.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafkawire.codec.batches import Record, iter_batches, records
from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.codec.murmur2 import key_partition
from kafkawire.codec.types import DecodeError
from kafkawire.schedules.headers import SCHEDULED_FROM
from kafkawire.schedules.progress import Corner, Progress
from kafkawire.schedules.states import (
    PlannedBatch,
    ScheduleState,
    StateRecord,
    decode_record,
    encode_record,
)
from kafkawire.schedules.step import (
    DueRecord,
    OutgoingBatch,
    TargetTopic,
    batches_of,
    fault_of,
    sequence_after,
)

TOPIC_ID = bytes(range(16))
NOW_MS = 1_795_000_000_000


def target(partitions: int = 3, **configs: str) -> TargetTopic:
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    return TargetTopic("orders", TOPIC_ID, partitions, TopicConfig(settings))


def due(
    offset: int, due_ms: int, to: TargetTopic, value: bytes = b"v", key: bytes | None = b"k"
) -> DueRecord:
    record = Record(offset, due_ms, key, value, [("h", b"1"), ("h", None)])
    return DueRecord((due_ms, offset), record, to)


def run(due_records: list[DueRecord]) -> list[OutgoingBatch]:
    steps = batches_of(due_records, "later-0", NOW_MS)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def packed(batch: OutgoingBatch) -> bytes:
    steps = batch.pack_in_steps(7, 0, 5)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bytes(end.value)


def test_records_keep_their_fields_and_get_a_header() -> None:
    (batch,) = run([due(4, NOW_MS - 10, target(1))])
    ((position, head),) = iter_batches(packed(batch))
    (found,) = records(packed(batch), position)
    assert (head.producer_id, head.producer_epoch, head.base_sequence) == (7, 0, 5)
    assert (found.key, found.value, found.timestamp) == (b"k", b"v", NOW_MS - 10)
    assert list(found.headers) == [("h", b"1"), ("h", None), (SCHEDULED_FROM, b"later-0-4")]


def test_order_in_each_partition_is_that_of_the_step() -> None:
    to = target(3)
    keys = [b"%d" % (n % 7) for n in range(50)]
    step = [due(n, NOW_MS - 100 + n // 5, to, b"%d" % n, keys[n]) for n in range(50)]
    found = run(step)
    assert sum(len(batch.records) for batch in found) == 50
    for batch in found:
        offsets = [offset for _, offset in batch.entries]
        assert offsets == sorted(offsets)
        expected = {key_partition(keys[at], 3) for at in offsets}
        assert expected == {batch.place[1]}, "as Kafka's DefaultPartitioner"


def test_records_without_key_go_to_all_partitions() -> None:
    found = run([due(n, NOW_MS, target(3), key=None) for n in range(6)])
    assert {batch.place[1] for batch in found} == {0, 1, 2}


def test_batches_fit_the_target() -> None:
    to = target(1, max_message_bytes="2000")
    step = [due(n, NOW_MS, to, bytes(500)) for n in range(20)]
    found = run(step)
    assert len(found) > 5
    for batch in found:
        assert len(packed(batch)) <= 2000
    assert [o for batch in found for _, o in batch.entries] == list(range(20))


@example(250, 9, "😀")
@given(st.integers(0, 3000), st.integers(0, 20), st.sampled_from("aé€😀"))
def test_record_without_fault_fits(size: int, headers: int, letter: str) -> None:
    to = target(1, max_message_bytes="2000")
    given_headers = [(letter * 50, b"x" * n) for n in range(headers)]
    record = Record(9, NOW_MS, b"k", bytes(size), given_headers)
    if fault_of(record, to, "later-0") is None:
        (batch,) = run([DueRecord((NOW_MS, 9), record, to)])
        assert len(packed(batch)) <= 2000
    else:
        assert size + 200 * headers > 1000


def test_faults_of_records() -> None:
    compacted = target(1, cleanup_policy="compact")
    assert "no key" in (fault_of(Record(0, 0, None, b""), compacted, "s-0") or "")
    assert fault_of(Record(0, 0, b"", b""), compacted, "s-0") is None
    small = target(1, max_message_bytes="200")
    assert "max.message.bytes" in (fault_of(Record(0, 0, None, bytes(200)), small, "s-0") or "")


@pytest.mark.parametrize(
    ("due_ms", "timestamp", "configs", "expected"),
    [
        (NOW_MS - 5, NOW_MS - 500, {}, NOW_MS - 5),
        (NOW_MS - 500, NOW_MS - 5, {}, NOW_MS - 5),
        (NOW_MS - 5, NOW_MS + 500, {}, NOW_MS),
        (1000, 1000, {"message_timestamp_before_max_ms": "60000"}, NOW_MS),
    ],
)
def test_timestamps(due_ms: int, timestamp: int, configs: dict[str, str], expected: int) -> None:
    record = Record(0, timestamp, b"k", b"v")
    (batch,) = run([DueRecord((due_ms, 0), record, target(1, **configs))])
    assert batch.records[0].timestamp == expected


def test_sequence_numbers_wrap() -> None:
    assert sequence_after(5, [0] * 3) == 8
    assert sequence_after((1 << 31) - 2, [0] * 3) == 1


STATE = ScheduleState(
    42,
    1,
    Progress((Corner(5, 1000, 4), Corner(9, 500, 7))),
    ((300, 3), (400, 8)),
    (PlannedBatch(TOPIC_ID, 2, 17, ((500, 7), (500, 8))),),
)


def test_state_is_stored_and_read() -> None:
    for state in (STATE, ScheduleState(-1), None):
        record = StateRecord((TOPIC_ID, 3), state)
        assert decode_record(*encode_record(record)) == record
    assert decode_record(None, b"x") is None


def test_stored_bytes_of_a_state_stay_readable() -> None:
    """Of version 0: brokers must read what earlier ones have written."""
    key, value = encode_record(StateRecord((TOPIC_ID, 3), STATE))
    assert key.hex() == "0000" + TOPIC_ID.hex() + "00000003"
    assert value is not None
    assert value.hex() == (
        "0000" "000000000000002a" "0001"
        "00000002" "0000000000000005" "00000000000003e8" "0000000000000004"
        "0000000000000009" "00000000000001f4" "0000000000000007"
        "00000002" "000000000000012c" "0000000000000003" "0000000000000190" "0000000000000008"
        "00000001" + TOPIC_ID.hex() + "00000002" "00000011"
        "00000002" "0000000000000007" "0000000000000008"
        "00000002" "00000000000001f4" "00000000000001f4"
    )  # fmt: skip


def test_damaged_states_are_refused() -> None:
    key, value = encode_record(StateRecord((TOPIC_ID, 3), STATE))
    assert value is not None
    for cut in range(0, len(value), 7):
        with pytest.raises(DecodeError):
            decode_record(key, value[:cut])
    with pytest.raises(DecodeError):
        decode_record(b"\0\1" + key[2:], value)
