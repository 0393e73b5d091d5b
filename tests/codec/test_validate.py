"""Validation of produced batches: each refusal with Kafka's code, fuzzing, and the stored form."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec import batches
from kafkawire.codec.batches import Record, build, pack, read_head
from kafkawire.codec.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.validate import _is_plain, check_batch, check_ends, convert
from kafkawire.codec.walk import MAX_HEADERS, MAX_RECORD_HEADERS
from tests.kit.codec import batch_rows
from tests.kit.codec.batch_rows import ROWS, Row, as_records, by_aiokafka, by_kafka_python
from tests.kit.codec.walks import walked_both_ways, walked_one

NOW = 1_700_000_000_000
EVER = (1 << 63) - 1
LIMIT = 1_048_588
Change = Callable[[bytearray], object]


def refusal(batch: bytearray | bytes, limit: int = LIMIT) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        check_batch(memoryview(batch), limit)
    assert caught.value.message
    return caught.value.code


def walked(
    batch: bytes | bytearray,
    *,
    compacted: bool = False,
    before_ms: int = EVER,
    after_ms: int = EVER,
) -> int:
    view = memoryview(batch)
    head = check_batch(view, 1 << 30)
    config = TopicConfig()
    config.cleanup_compact = compacted
    config.before_max_ms, config.after_max_ms = before_ms, after_ms
    return walked_both_ways(view, head, config, NOW)


def resummed(batch: bytearray) -> bytearray:
    batches.resum(batch, 0, len(batch))
    return batch


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("builder", [by_kafka_python, by_aiokafka])
def test_batches_built_by_clients_are_valid(
    builder: Callable[[list[Row], int, int], bytes], codec: int
) -> None:
    for producer_id in (-1, 5):
        batch = builder(ROWS, codec, producer_id)
        head = check_batch(memoryview(batch), LIMIT)
        assert head[:13] == batches.HEAD.unpack_from(batch)
        assert walked(batch) == max(row[0] for row in ROWS)


@given(batch_rows.rows, st.integers(0, 4))
def test_any_well_formed_batch_is_valid(rows: list[Row], codec: int) -> None:
    assert walked(pack(as_records(rows), codec=codec)) == max(row[0] for row in rows)


def put(at: int, size: int, value: int) -> Change:
    def change(batch: bytearray) -> None:
        batch[at : at + size] = value.to_bytes(size, "big", signed=value < 0)

    return change


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (put(0, 8, 3), ErrorCode.INVALID_RECORD),
        (put(16, 1, 1), ErrorCode.INVALID_RECORD),
        (put(16, 1, 0), ErrorCode.INVALID_RECORD),
        (put(22, 1, batches.LOG_APPEND_TIME), ErrorCode.INVALID_TIMESTAMP),
        (put(22, 1, batches.CONTROL), ErrorCode.INVALID_RECORD),
        (put(22, 1, batches.CONTROL | batches.TRANSACTIONAL), ErrorCode.INVALID_RECORD),
        (put(22, 1, batches.TRANSACTIONAL), ErrorCode.INVALID_TXN_STATE),
        (put(22, 1, 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (put(22, 1, 7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (put(23, 4, 3), ErrorCode.INVALID_RECORD),
        (put(23, 4, -1), ErrorCode.INVALID_RECORD),
        (put(57, 4, 0), ErrorCode.INVALID_RECORD),
        (put(57, 4, -3), ErrorCode.INVALID_RECORD),
        (put(43, 8, 9), ErrorCode.INVALID_RECORD),  # a producer id without a sequence
        (put(8, 4, 48), ErrorCode.CORRUPT_MESSAGE),
        (put(8, 4, -1), ErrorCode.CORRUPT_MESSAGE),
        (put(8, 4, 1 << 30), ErrorCode.INVALID_RECORD),
        (put(16, 1, 3), ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_each_wrong_field_has_its_error_code(change: Change, code: ErrorCode) -> None:
    batch = build([(b"k", b"v")] * 3, timestamp_ms=NOW)
    change(batch)
    assert refusal(resummed(batch)) is code


def test_checksum_is_checked_before_fields_it_covers() -> None:
    batch = build([(b"k", b"v")], timestamp_ms=NOW)
    batch[-1] ^= 1
    assert refusal(batch) is ErrorCode.CORRUPT_MESSAGE
    batch[22] |= batches.CONTROL
    assert refusal(batch) is ErrorCode.CORRUPT_MESSAGE


def test_leader_epoch_of_client_is_ignored() -> None:
    batch = build([(b"k", b"v")], timestamp_ms=NOW, leader_epoch=12345)
    assert check_batch(memoryview(batch), LIMIT)[2] == 12345


def test_exactly_one_batch_is_required() -> None:
    batch = build([(b"k", b"v")], timestamp_ms=NOW)
    assert refusal(b"") is ErrorCode.INVALID_RECORD
    assert refusal(batch + batch) is ErrorCode.INVALID_RECORD
    assert refusal(batch + b"\0") is ErrorCode.INVALID_RECORD
    for cut in range(1, len(batch)):
        assert refusal(batch[:cut]) is ErrorCode.INVALID_RECORD


def test_size_limit_is_exact_and_checked_before_checksum() -> None:
    batch = build([(b"k", b"v" * 100)], timestamp_ms=NOW)
    check_batch(memoryview(batch), len(batch))
    assert refusal(batch, len(batch) - 1) is ErrorCode.MESSAGE_TOO_LARGE
    batch[-1] ^= 1
    assert refusal(batch, len(batch) - 1) is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_impossible_record_count_is_refused(codec: int) -> None:
    """Batches whose records are not parsed get offsets by their count, so it must at least be
    possible."""
    batch = build([(None, None)] * 3, timestamp_ms=NOW, codec=codec)
    put(57, 4, 1 << 30)(batch)
    put(23, 4, (1 << 30) - 1)(batch)
    assert refusal(resummed(batch)) is ErrorCode.INVALID_RECORD


def test_smallest_possible_records_are_accepted() -> None:
    assert walked(build([(None, None)] * 60, timestamp_ms=NOW)) == NOW


def bad_records(batch: bytes | bytearray, **bounds: int | bool) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        walked(batch, **bounds)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize("codec", [NONE, SNAPPY])
def test_records_without_key_are_named_for_compacted_topic(codec: int) -> None:
    pairs = [(b"k", b"v"), (None, b"v"), (b"", None), (None, None)]
    batch = build(pairs, timestamp_ms=NOW, codec=codec)
    walked(batch)
    error = bad_records(batch, compacted=True)
    assert error.code is ErrorCode.INVALID_RECORD
    assert [index for index, _ in error.record_errors] == [1, 3]
    assert "record 1" in str(error.message)


def test_records_with_timestamps_out_of_bounds_are_named() -> None:
    times = [NOW, NOW - 101, NOW + 50, NOW + 51, -1, NOW - 100]
    batch = pack([Record(i, t, None, b"v") for i, t in enumerate(times)])
    assert walked(batch, before_ms=101, after_ms=51) == NOW + 51
    error = bad_records(batch, before_ms=100, after_ms=50)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in error.record_errors] == [1, 3]  # -1 is "no timestamp"
    assert bad_records(batch, before_ms=100, after_ms=EVER).record_errors[0][0] == 1


def test_invalid_timestamp_takes_precedence_over_missing_key() -> None:
    batch = pack([Record(0, NOW, None, b"v"), Record(1, NOW + 9, b"k", b"v")])
    error = bad_records(batch, compacted=True, after_ms=8)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in error.record_errors] == [0, 1]


def test_list_of_invalid_records_is_bounded() -> None:
    error = bad_records(build([(None, b"")] * 5000, timestamp_ms=NOW, codec=GZIP), compacted=True)
    assert len(error.record_errors) == 1000
    assert "5000 of" in str(error.message)


def test_newest_timestamp_is_found_regardless_of_header() -> None:
    batch = pack([Record(0, NOW, b"k", b"v"), Record(1, NOW + 70, b"k", b"v")])
    put(35, 8, NOW + 999)(batch)
    newest = walked(resummed(batch))
    assert newest == NOW + 70
    batches.stamp(batch, newest, log_append=False)
    assert read_head(batch).max_timestamp == NOW + 70
    check_batch(memoryview(batch), LIMIT)


@pytest.mark.parametrize("codec", [NONE, LZ4])
@pytest.mark.parametrize("shift", [-1, 1])
def test_wrong_length_in_record_is_refused(codec: int, shift: int) -> None:
    """Each byte of a record that is a length, count or delta, changed by one: never accepted."""
    body = bytes(build([(b"abc", b"defg")], timestamp_ms=NOW)[61:])
    record = Record(0, NOW, b"abc", b"defg", [("h", b"x")])
    body = bytes(pack([record])[61:])
    at_lengths = [0, 3, 4, 8, 13, 14, 16]
    for at in at_lengths:
        broken = bytearray(body)
        broken[at] = broken[at] + 2 * shift & 0xFF
        batch = resummed(with_payload(bytes(broken), 1, codec))
        assert bad_records(batch).code is ErrorCode.INVALID_RECORD, at


def with_payload(payload: bytes, count: int, codec: int) -> bytearray:
    """A batch with a valid header over any records."""
    from kafkawire.codec.compression import compress

    out = build([(None, None)] * count, timestamp_ms=NOW)[:61]
    out += compress(codec, payload)
    put(8, 4, len(out) - 12)(out)
    put(22, 1, codec)(out)
    return resummed(out)


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        ("0e000000010100", 2),  # fewer records than the count
        ("0e0000000101000e000002010100", 1),  # more
        ("0c0000000101000000", 1),
        ("ff000000010100", 1),  # a length cut off
        ("0d000000010100", 1),  # a negative length
        ("0e00000004616280", 1),  # ends in the length of its value
        ("9f80c0000000010100", 1),  # a length of three bytes made to look like two
    ],
)
def test_records_that_do_not_fill_batch_are_refused(payload: str, count: int) -> None:
    batch = with_payload(bytes.fromhex(payload), count, NONE)
    if len(batch) - 61 >= 7 * count:
        assert bad_records(batch).code is ErrorCode.INVALID_RECORD
    else:
        assert refusal(batch) is ErrorCode.INVALID_RECORD
    packed = with_payload(bytes.fromhex(payload), count, GZIP)
    assert bad_records(packed).code is ErrorCode.INVALID_RECORD


@pytest.mark.slow
def test_single_record_path_matches_general_path() -> None:
    """The fast path for a batch of one record accepts what the general one does, and only that."""
    rng = random.Random(7)
    lengths = [*range(70), *range(120, 136), 8100, *range(8170, 8200), 20_000]
    accepted = refused = 0
    for n in range(6000):
        key = None if n % 3 else rng.randbytes(rng.choice(lengths[:75]))
        value = None if n % 11 == 0 else bytes(rng.choice(lengths))
        batch = build([(key, value)], timestamp_ms=NOW)
        for _ in range(rng.randrange(3)):
            at = rng.choice((61, 62, 63, 64, 65, 66, 67, 68, len(batch) - 1))
            if at < len(batch):
                batch[at] = rng.choice((batch[at] ^ 1 << rng.randrange(8), 0, 0x80, 0xFF))
        resummed(batch)
        head = check_batch(memoryview(batch), LIMIT)
        try:
            walked_one(bytes(batch), NOW)
            sound = True
        except IndexError:
            sound = False
        assert not _is_plain(memoryview(batch), head, False) or sound
        accepted += sound
        refused += not sound
        if sound:
            assert walked(batch) == max(walked_one(bytes(batch), NOW), -1)
        else:
            assert bad_records(batch).code is ErrorCode.INVALID_RECORD
    assert accepted > 1000
    assert refused > 1000


def test_wrong_offset_deltas_are_refused() -> None:
    batch = pack([Record(0, NOW, b"a", b""), Record(2, NOW, b"b", b"")])
    put(23, 4, 1)(batch)
    assert bad_records(resummed(batch)).code is ErrorCode.INVALID_RECORD


@pytest.mark.slow
@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_bombs_and_damaged_streams_are_refused(codec: int) -> None:
    bomb = build([(None, bytes(65 * 1024 * 1024))], timestamp_ms=NOW, codec=codec)
    assert bad_records(bomb).code is ErrorCode.MESSAGE_TOO_LARGE
    broken = build([(None, b"x" * 500)], timestamp_ms=NOW, codec=codec)
    broken[70:] = bytes(len(broken) - 70)
    assert bad_records(resummed(broken)).code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("at", [0, 11])
def test_batch_whose_first_or_last_record_has_many_headers_is_walked(at: int) -> None:
    records = [Record(n, NOW, b"k", b"v") for n in range(12)]
    records[at] = Record(at, NOW, b"k", b"v", [("", None)] * (MAX_HEADERS + 1))
    batch = pack(records, codec=GZIP)
    assert not check_ends(memoryview(batch), check_batch(memoryview(batch), len(batch)))
    records[at] = Record(at, NOW, b"k", b"v", [("", None)] * MAX_HEADERS)
    batch = pack(records, codec=GZIP)
    assert check_ends(memoryview(batch), check_batch(memoryview(batch), len(batch)))


@pytest.mark.slow
def test_record_with_too_many_headers_is_refused() -> None:
    def bad(count: int) -> KafkaError | None:
        pairs = [("", None)] * count
        batch = pack([Record(0, NOW, b"k", b"v"), Record(1, NOW, b"k", b"v", pairs)], codec=GZIP)
        try:
            walked(batch)
        except KafkaError as error:
            return error
        return None

    assert bad(MAX_RECORD_HEADERS) is None
    error = bad(MAX_RECORD_HEADERS + 1)
    assert error is not None
    assert error.code is ErrorCode.INVALID_RECORD
    assert error.record_errors == [(1, "it has 1048577 headers, and 1048576 are allowed")]


@pytest.mark.slow
@pytest.mark.parametrize("codec", range(5))
def test_garbage_raises_kafka_error(codec: int) -> None:
    """Damage under a recomputed checksum; what is accepted must then also be readable."""
    rng = random.Random(codec)
    sound = bytes(pack(as_records(ROWS[:9]), codec=codec))
    accepted = 0
    for _ in range(2000):
        broken = bytearray(sound)
        for _ in range(rng.randint(1, 3)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        if rng.random() < 0.2:
            del broken[rng.randrange(len(broken)) :]
        if len(broken) >= 61 and rng.random() < 0.9:
            put(8, 4, len(broken) - 12)(broken)
            broken[0:8], broken[16] = bytes(8), 2
            batches.resum(broken, 0, len(broken))
        try:
            walked(broken, compacted=rng.random() < 0.3, after_ms=rng.choice([EVER, 1000]))
        except KafkaError:
            continue
        accepted += 1
        assert len(list(batches.records(broken))) == read_head(broken).count
    assert accepted


@given(st.binary(max_size=300))
def test_random_bytes_raise_kafka_error(data: bytes) -> None:
    with pytest.raises(KafkaError):
        check_batch(memoryview(data), LIMIT)


@given(st.binary(max_size=100), st.integers(1, 9))
def test_random_records_with_valid_header_raise_kafka_error(payload: bytes, count: int) -> None:
    code = ErrorCode.INVALID_RECORD
    try:
        walked(with_payload(payload, count, NONE))
    except KafkaError as error:
        code = error.code
    assert code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("source", range(5))
@pytest.mark.parametrize("target", range(5))
@pytest.mark.parametrize("time", [None, 42])
def test_stored_form_has_the_same_records(source: int, target: int, time: int | None) -> None:
    sent = by_aiokafka(ROWS, source, 7)
    before = bytes(sent)
    head = check_batch(memoryview(sent), LIMIT)
    stored = convert(sent, head, target, None, time)
    again = check_head_of_stored(stored)
    assert again.codec == target
    assert (again.producer_id, again.base_sequence, again.count) == (7, 0, len(ROWS))
    expected = as_records(ROWS)
    for record in expected if time is not None else []:
        record.timestamp = time or 0
    assert list(batches.records(stored)) == expected
    assert again.max_timestamp == (head[8] if time is None else time)
    assert sent == before, (
        "the original is unchanged"
    )  # compressed again, gzip's header has another time


def check_head_of_stored(stored: bytearray) -> batches.BatchHead:
    head = read_head(stored)
    assert head.size_bytes == len(stored)
    summed = bytearray(stored)
    batches.resum(summed, 0, len(summed))
    assert summed == stored
    return head


def test_stored_form_keeps_corrected_timestamp() -> None:
    """The log corrects a header with a wrong newest timestamp before it compresses the batch."""
    sent = pack([Record(0, NOW, b"k", b"v")])
    put(35, 8, NOW + 999)(sent)
    head = check_batch(memoryview(resummed(sent)), LIMIT)
    batches.stamp(sent, walked(sent), log_append=False)
    assert read_head(convert(sent, head, ZSTD, None, None)).max_timestamp == NOW


def test_compression_level_is_passed_to_codec() -> None:
    words = random.Random(3).choices([b"alpha ", b"beta ", b"gamma "], k=3000)
    sent = build([(None, b"".join(words))], timestamp_ms=NOW)
    head = check_batch(memoryview(sent), LIMIT)
    assert len(convert(sent, head, ZSTD, 19, None)) < len(convert(sent, head, ZSTD, -5, None))
