"""The ledger and the batch reader report every kind of fault that they exist to detect."""

from __future__ import annotations

import pytest

from tests.trials.ledger import Commits, Partition, some
from tests.trials.records import (
    CODECS,
    Malformed,
    Outgoing,
    Record,
    batches,
    build,
    read,
    records_of,
    scan,
)


def rows(*uids: int) -> list[Outgoing]:
    return [Outgoing(uid, b"k%d" % (uid % 3), b"v%d" % uid) for uid in uids]


def stored(offset: int, row: Outgoing) -> Record:
    return Record(offset, row.uid, row.key, row.digest)


def found_in(data: bytes) -> list[Record]:
    """The records that a reader parses from a response; none where it refuses them."""
    try:
        return [row for batch in batches(data) for row in records_of(data, batch)]
    except Malformed:
        return []


def kept(compacted: bool = False) -> tuple[Partition, list[Record]]:
    """A partition with ten acknowledged records, and the response of a sound broker."""
    ledger = Partition("t-0", compacted)
    sent = rows(*range(100, 110))
    ledger.send(sent)
    assert ledger.ack(0, sent) == []
    return ledger, [stored(offset, row) for offset, row in enumerate(sent)]


@pytest.mark.parametrize("codec", range(5), ids=CODECS)
def test_built_batches_round_trip(codec: int) -> None:
    sent = [*rows(1, 2, 3), Outgoing(4, b"k", None), Outgoing(5, None, bytes(300))]
    data = build(sent, codec=codec, timestamp_ms=1, producer_id=7, epoch=0, sequence=3)
    assert list(read(data * 2))[:5] == [stored(n, row) for n, row in enumerate(sent)]
    (batch, again) = scan(b"x" * 99 + data + bytes(5) + data + b"\x02" * 80)
    assert (batch.start, batch.end, batch.producer_id) == (99, 99 + len(data), 7)
    assert again.start == batch.end + 5


def test_trial_and_product_codecs_read_each_others_batches() -> None:
    from kafkawire.codec import batches as product

    sent = rows(1, 2, 3)
    data = build(sent, timestamp_ms=5)
    ((position, _),) = product.iter_batches(data)
    assert [bytes(r.value or b"") for r in product.records(data, position)] == [
        row.value for row in sent
    ]
    theirs = bytes(product.build([(b"k", b"v")], timestamp_ms=5))
    (record,) = read(theirs)
    assert (record.key, record.digest) == (b"k", Outgoing(0, b"k", b"v").digest)


def test_flipped_byte_anywhere_is_detected() -> None:
    data = build(rows(1, 2), timestamp_ms=1)
    for at in range(12, len(data)):  # base offset is outside the checksum, the leader epoch too
        if 12 <= at < 16:
            continue
        broken = bytearray(data)
        broken[at] ^= 0xFF
        assert found_in(bytes(broken)) == []


def test_sound_broker_has_no_findings() -> None:
    ledger, there = kept()
    assert ledger.check(0, 10, there) == []
    assert ledger.check(0, 10, there) == []


def test_lost_record_is_reported() -> None:
    ledger, there = kept()
    found = ledger.check(0, 10, there[:4] + there[5:])
    assert any("1 acknowledged records lost: 4" in text for text in found)
    assert any("1 are missing: 4" in text for text in found)


def test_lost_tail_is_reported() -> None:
    ledger, there = kept()
    found = ledger.check(0, 7, there[:7])
    assert any("the high watermark is 7" in text for text in found)
    assert any("3 acknowledged records lost: 7-9" in text for text in found)


def test_altered_offset_is_reported() -> None:
    ledger, there = kept()
    swapped = [Record(5, there[6].uid, there[6].key, there[6].digest)]
    found = ledger.check(0, 10, there[:5] + swapped + there[6:])
    assert any("offset 5 given twice" in text for text in found)


def test_offset_assigned_twice_is_reported_at_ack() -> None:
    ledger, _ = kept()
    more = rows(200)
    ledger.send(more)
    assert ledger.ack(9, more) == ["t-0: offset 9 given twice: record 109, now 200 (acknowledged)"]


def test_duplicate_record_is_reported() -> None:
    ledger, there = kept()
    twice = Record(10, there[3].uid, there[3].key, there[3].digest)
    assert any("at offset 3 and again at 10" in t for t in ledger.check(0, 11, [*there, twice]))


def test_unsent_record_and_changed_value_are_reported() -> None:
    ledger, there = kept()
    phantom = Record(10, 999, None, 0)
    assert any("never sent here" in text for text in ledger.check(0, 11, [*there, phantom]))
    ledger, there = kept()
    there[2] = Record(2, there[2].uid, there[2].key, 12345)
    assert any("value of 102 changed" in text for text in ledger.check(0, 10, there))


def test_unexplained_log_start_is_reported() -> None:
    ledger, there = kept()
    assert any("starts at 4" in text for text in ledger.check(4, 10, there[4:]))
    ledger.delete_asked = 4
    assert ledger.check(4, 10, there[4:]) == []
    assert ledger.check(0, 10, there) == []
    ledger.delete_acked = 4
    assert any("starts at 0" in text for text in ledger.check(0, 10, there))


def test_compaction_may_remove_only_superseded_records() -> None:
    ledger, there = kept(compacted=True)
    assert ledger.check(0, 10, there[7:]) == []
    assert any("lost: 2, 5, 8" in t for t in ledger.check(0, 10, [there[7], there[9]]))


def test_duplicate_acked_without_offset_must_be_stored() -> None:
    ledger, there = kept()
    more = rows(300)
    ledger.send(more)
    assert ledger.ack(-1, more) == []
    assert any("are nowhere" in text for text in ledger.check(0, 10, there))
    assert ledger.check(0, 11, [*there, stored(10, more[0])]) == []


def test_decreased_committed_offset_is_reported() -> None:
    commits = Commits("g")
    key = (b"id", 0)
    for offset in (5, 9):
        commits.send(key, offset)
        commits.ack(key, offset)
    commits.send(key, 12)
    assert commits.check(key, 9, "t-0") == commits.check(key, 12, "t-0") == []
    assert commits.check(key, 5, "t-0") == ["group g, t-0: committed offset 5, 9 was acked"]
    assert commits.check(key, -1, "t-0")
    assert commits.check(key, 13, "t-0")


def test_some_formats_numbers_as_ranges() -> None:
    assert some([3, 4, 5, 9, 1]) == "1, 3-5, 9"
    assert some(range(0, 100, 2)).endswith("and 45 more ranges")
