"""Records that compaction keeps, case by case like Kafka, and compared with a model."""

from __future__ import annotations

import pytest
from kafka.record import MemoryRecords

from kafkawire.codec.batches import (
    CONTROL,
    DELETE_HORIZON,
    HEAD_BYTES,
    LOG_APPEND_TIME,
    Record,
    pack,
    read_head,
    records,
    resum,
    stamp,
)
from kafkawire.codec.segment.format import DamagedBatch
from tests.kit.log.compaction import DAY_MS, NOW_MS, TXN, Round, clean, keyed, marker


def test_latest_record_of_each_key_keeps_its_offset() -> None:
    before = [
        keyed(0, (b"a", b"1"), (b"b", b"1"), (b"a", b"2")),
        keyed(3, (b"c", b"1"), (b"d", b"1")),
        keyed(5, (b"a", b"3"), (b"b", b"1")),
    ]
    after = clean(before)
    assert after.pairs() == [(3, b"c", b"1"), (4, b"d", b"1"), (5, b"a", b"3"), (6, b"b", b"1")]
    assert after.batches == before[1:], "whole batches stay byte for byte"
    assert after.cleaner.stats.read == 7
    assert after.cleaner.stats.kept == 4


def test_batch_keeps_offsets_producer_and_epoch() -> None:
    first = keyed(10, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), producer_id=7, producer_epoch=3,
                  base_sequence=20, leader_epoch=5)  # fmt: skip
    after = clean([first, keyed(13, (b"a", b"3"))], 10)
    old, new = read_head(first), after.heads()[0]
    assert after.pairs()[0] == (11, b"b", b"1")
    assert new.count == 1
    for name in ("base_offset", "last_delta", "producer_id", "producer_epoch", "base_sequence",
                 "leader_epoch", "base_timestamp", "attributes"):  # fmt: skip
        assert getattr(new, name) == getattr(old, name), name
    assert new.max_timestamp == NOW_MS + 1, "that of the remaining records"


def test_clean_part_loses_superseded_records() -> None:
    first = clean([keyed(0, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"))])
    after = clean([*first.batches, keyed(3, (b"b", b"2"))], 3)
    assert after.pairs() == [(0, b"a", b"1"), (2, b"c", b"1"), (3, b"b", b"2")]


def test_tombstone_is_kept_until_delete_horizon() -> None:
    before = [keyed(0, (b"a", b"1"), (b"b", b"1")), keyed(2, (b"a", None), (b"c", b"1"))]
    first = clean([*before, keyed(4, (b"z", b""))])
    assert [pair[0] for pair in first.pairs()] == [1, 2, 3, 4]
    marked = first.heads()[1]
    assert marked.attributes & DELETE_HORIZON
    assert marked.base_timestamp == NOW_MS + DAY_MS, "KIP-534: the horizon"
    assert marked.max_timestamp == NOW_MS + 1
    assert [r.timestamp for r in records(first.batches[1])] == [NOW_MS, NOW_MS + 1]
    assert not first.heads()[2].attributes & DELETE_HORIZON, "an empty value is no tombstone"

    second = clean(first.batches, 5, now_ms=NOW_MS + DAY_MS - 1)
    assert second.batches == first.batches, "not yet, and the horizon does not move"
    third = clean(first.batches, 5, now_ms=NOW_MS + DAY_MS)
    assert [pair[0] for pair in third.pairs()] == [1, 3, 4]
    left = third.heads()[1]
    assert left.attributes & DELETE_HORIZON
    assert left.base_timestamp == NOW_MS + DAY_MS, "like Kafka leaves it"
    assert [r.timestamp for r in records(third.batches[1])] == [NOW_MS + 1]


def test_superseded_tombstone_is_removed_at_once() -> None:
    after = clean([keyed(0, (b"a", None)), keyed(1, (b"a", b"2"))])
    assert after.pairs() == [(1, b"a", b"2")]


def test_records_without_key_are_removed() -> None:
    after = clean([keyed(0, (None, b"1"), (b"a", b"1")), keyed(2, (None, b"2"), (b"b", b""))])
    assert after.pairs() == [(1, b"a", b"1"), (3, b"b", b"")]
    assert after.cleaner.stats.keyless == 2
    assert clean([keyed(0, (b"", b"1")), keyed(1, (b"", b"2"))]).pairs() == [(1, b"", b"2")]


def test_last_batch_is_kept_even_if_empty() -> None:
    after = clean([keyed(0, (b"a", b"1")), keyed(1, (None, b"2"), (None, b"3"))])
    head = after.heads()[-1]
    assert (head.base_offset, head.last_offset, head.count) == (1, 2, 0)
    assert head.size_bytes == HEAD_BYTES
    assert (head.base_timestamp, head.max_timestamp) == (-1, NOW_MS + 1)
    assert clean(after.batches, 3).batches == after.batches
    more = clean([*after.batches, keyed(3, (b"a", b"2"))], 3)
    assert [h.base_offset for h in more.heads()] == [3], "no longer the last"


def test_last_batch_of_producer_is_kept_for_its_sequence() -> None:
    mine = {"producer_id": 9, "producer_epoch": 1}
    before = [
        keyed(0, (b"a", b"1"), base_sequence=0, **mine),
        keyed(1, (b"a", b"2"), (b"b", b"1"), base_sequence=1, **mine),
        keyed(3, (b"a", b"3"), (b"b", b"2")),
    ]
    after = clean(before, producers={9: (1, 1)})
    assert [(h.base_offset, h.last_offset, h.count) for h in after.heads()] == [
        (1, 2, 0), (3, 4, 2),
    ]  # fmt: skip
    kept = after.heads()[0]
    assert (kept.producer_id, kept.producer_epoch, kept.base_sequence) == (9, 1, 1)
    assert not kept.attributes
    assert len(clean(before).batches) == 1, "the producer is unknown"
    assert clean(after.batches, 5, producers={9: (1, 1)}).batches == after.batches


def test_producer_known_by_marker_keeps_marker_of_its_epoch() -> None:
    before = [marker(0, 9, commit=False, epoch=4), keyed(1, (b"a", b"1"))]
    known = {9: (4, -1)}
    first = clean(before, producers=known)
    late = NOW_MS + DAY_MS
    second = clean(first.batches, 2, producers=known, now_ms=late)
    assert [(h.attributes & CONTROL, h.count) for h in second.heads()] == [(CONTROL, 0), (0, 1)]
    third = clean(second.batches, 2, producers={9: (5, -1)}, now_ms=late)
    assert [h.base_offset for h in third.heads()] == [1]


def test_commit_marker_is_removed_after_its_data_and_horizon() -> None:
    before = [keyed(0, (b"a", b"1"), **TXN), marker(1, 5, commit=True), keyed(2, (b"x", b"1"))]
    first = clean(before)
    assert first.batches == before, "its data is there"
    second = clean([*first.batches, keyed(3, (b"a", b"2"))], 3)
    assert [h.base_offset for h in second.heads()] == [1, 2, 3]
    assert second.batches[0] == before[1], "its data was there until now"
    third = clean(second.batches, 4)
    assert third.heads()[0].attributes & DELETE_HORIZON
    assert third.heads()[0].base_timestamp == NOW_MS + DAY_MS
    (control,) = records(third.batches[0])
    assert control.timestamp == NOW_MS
    assert control.key == b"\0\0\0\1"
    assert clean(third.batches, 4, now_ms=NOW_MS + DAY_MS - 1).batches == third.batches
    fourth = clean(third.batches, 4, now_ms=NOW_MS + DAY_MS)
    assert [h.base_offset for h in fourth.heads()] == [2, 3]


def test_aborted_records_are_removed_and_supersede_nothing() -> None:
    before = [
        keyed(0, (b"a", b"committed")),
        keyed(1, (b"a", b"aborted"), (b"b", b"aborted"), **TXN),
        marker(3, 5, commit=False),
        keyed(4, (b"c", b"1")),
    ]
    first = clean(before)
    assert first.pairs() == [(0, b"a", b"committed"), (4, b"c", b"1")]
    assert [h.base_offset for h in first.heads()] == [0, 3, 4]
    assert first.cleaner.cleaned.kept == [(5, 1, 3)], "readers before it must see it"
    second = clean(first.batches, 5)
    assert second.cleaner.cleaned.kept == []
    assert second.heads()[1].attributes & DELETE_HORIZON
    third = clean(second.batches, 5, now_ms=NOW_MS + DAY_MS)
    assert [h.base_offset for h in third.heads()] == [0, 4]


def test_transactions_of_one_producer_are_independent() -> None:
    before = [
        keyed(0, (b"a", b"1"), **TXN), marker(1, 5, commit=True),
        keyed(2, (b"a", b"2"), **TXN), marker(3, 5, commit=False),
        keyed(4, (b"b", b"1"), **TXN), marker(5, 5, commit=True),
    ]  # fmt: skip
    assert clean(before).pairs() == [(0, b"a", b"1"), (4, b"b", b"1")]


def test_nothing_after_open_transaction_is_cleaned() -> None:
    before = [
        keyed(0, (b"a", b"1")), keyed(1, (b"a", b"2")), keyed(2, (b"a", b"3"), **TXN),
        keyed(3, (b"a", b"4")),
    ]  # fmt: skip
    after = clean(before)
    assert after.end == 2
    assert [pair[0] for pair in after.pairs()] == [1, 2, 3]


@pytest.mark.parametrize("codec", range(5))
def test_every_codec_is_kept(codec: int) -> None:
    headers = [("h", b"1"), ("h", None), ("\u00fc", b"")]
    items = [
        Record(n, NOW_MS + 40_000 * (n % 3), b"k%d" % (n % 60), b"v" * n, headers)
        for n in range(100)
    ]
    items[99].value = None
    before = bytes(pack(items, codec=codec))
    after = clean([before, keyed(100, (b"z", b"1"))])
    assert after.heads()[0].codec == codec
    assert after.heads()[0].attributes & DELETE_HORIZON
    kept = [item for item in after.records() if item.offset < 100]
    assert kept == items[40:]
    assert [header for item in kept for header in item.headers] == headers * 60
    assert after.heads()[0].max_timestamp == NOW_MS + 80_000
    assert after.heads()[0].last_delta == 99
    theirs = _by_kafka_python(after)
    assert [(r.offset, r.timestamp, r.key, r.value) for r in theirs[:60]] == [
        (item.offset, item.timestamp, item.key, item.value) for item in items[40:]
    ]


def _by_kafka_python(cleaned: Round) -> list:  # type: ignore[type-arg]
    """The records of data batches as kafka-python reads them, its checksums on."""
    log = MemoryRecords(b"".join(cleaned.batches))
    found = []
    while (batch := log.next_batch()) is not None:
        assert batch.validate_crc()
        found += list(batch)
    return found


def test_log_append_time_is_kept() -> None:
    before = bytearray(keyed(0, (b"a", b"1"), (b"b", None), (b"a", b"2")))
    stamp(before, NOW_MS + 5000, log_append=True)
    after = clean([bytes(before), keyed(3, (b"c", b"1"))])
    head = after.heads()[0]
    assert head.attributes == LOG_APPEND_TIME | DELETE_HORIZON
    assert (head.max_timestamp, head.base_timestamp) == (NOW_MS + 5000, NOW_MS + DAY_MS)
    assert [(r.offset, r.timestamp) for r in records(after.batches[0])] == [
        (1, NOW_MS + 5000), (2, NOW_MS + 5000),
    ]  # fmt: skip


def test_unreadable_batch_is_kept_unchanged() -> None:
    torn = bytearray(keyed(1, (b"a", b"2"), (b"b", b"2")))
    torn[HEAD_BYTES] = 0x7F  # a record's length: a defect of the producer, the checksum is valid
    resum(torn, 0, len(torn))
    packed = bytearray(keyed(3, (b"a", b"2"), codec=4))
    packed[HEAD_BYTES:] = b"\xff" * (len(packed) - HEAD_BYTES)
    resum(packed, 0, len(packed))
    before = [keyed(0, (b"a", b"1")), bytes(torn), bytes(packed), keyed(4, (b"z", b""))]
    after = clean(before)
    assert after.batches == before
    assert after.cleaner.stats.unreadable == 2


def test_false_offsets_do_not_drop_other_records() -> None:
    """A producer's record with an offset beyond its batch must not supersede later ones."""
    wrong = bytearray(pack([Record(0, NOW_MS, b"a", b"1"), Record(9, NOW_MS, b"a", b"x")]))
    wrong[23:27] = (1).to_bytes(4, "big")
    resum(wrong, 0, len(wrong))
    after = clean([bytes(wrong), keyed(2, (b"a", b"2"))])
    assert (2, b"a", b"2") in after.pairs()


@pytest.mark.parametrize("at", [0, 9, 16, 18, 30, 70])
def test_damaged_batch_is_reported(at: int) -> None:
    good, bad = keyed(0, (b"a", b"1"), (b"b", b"1")), bytearray(keyed(2, (b"a", b"22222")))
    bad[at] ^= 0x80
    with pytest.raises(DamagedBatch) as caught:
        clean([good, bytes(bad)])
    assert (caught.value.at, caught.value.offset) == (len(good), 2)


def test_full_offset_map_ends_clean_part_at_a_batch() -> None:
    before = [
        keyed(n * 100, *[(b"%d" % (n * 100 + i), b"") for i in range(100)]) for n in range(20)
    ]
    before.append(keyed(2000, (b"0", b"new"), (b"1999", b"new")))
    after = clean(before, buffer_bytes=16 * 1024)  # 921 keys of 1024 slots
    assert after.end == 900
    assert after.batches == before, "what replaces them has not been seen"
    rounds = 0
    while after.end < 2002:
        after = clean(after.batches, after.end, buffer_bytes=16 * 1024)
        rounds += 1
    assert rounds == 2
    assert after.batches == clean(before).batches
    one = clean([keyed(0, *[(b"%d" % n, b"") for n in range(3000)])], buffer_bytes=16 * 1024)
    assert one.end == 3000, "a batch that fills it alone is accepted nevertheless"
