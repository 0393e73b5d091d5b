"""Records that compaction keeps, compared with models; their positions; the offset map."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.batches import CONTROL, Record, pack, read_head
from kafkawire.log.segments.compact.offset_map import OffsetMap
from kafkawire.log.segments.compact.retain import (
    join_records,
    move_times,
    read_columns,
    read_times,
)
from tests.kit.codec.batch_rows import ROWS, as_records, by_aiokafka, by_kafka_python, rows
from tests.kit.log.compaction import DAY_MS, NOW_MS, TXN, all_records, clean, keyed, marker

keys = st.none() | st.sampled_from([b"", b"a", b"b", b"c", b"d" * 200])
values = st.none() | st.binary(max_size=20)
batch_rows = st.lists(
    st.tuples(keys, values, st.integers(-5, 2 * DAY_MS), st.booleans()), min_size=1, max_size=9
)
logs = st.lists(st.tuples(batch_rows, st.integers(0, 4), st.booleans()), min_size=1, max_size=9)


def _log(drawn: list) -> list[bytes]:  # type: ignore[type-arg]
    """Batches of generated rows, some of them with gaps, consecutive in offsets."""
    batches, offset = [], 0
    for items, codec, gaps in drawn:
        made = []
        for key, value, time, header in items:
            made.append(Record(offset, NOW_MS + time, key, value, [("h", b"x")] if header else []))
            offset += 2 if gaps else 1
        batches.append(bytes(pack(made, codec=codec)))
    return batches


def _model(found: list[Record], end: int, gone: set[int]) -> list[Record]:
    """The last record of each key below `end`, without tombstones in `gone`, and all above."""
    newest = {record.key: record.offset for record in found if record.offset < end}
    return [
        record
        for record in found
        if record.offset >= end
        or (
            (record.key is not None and newest[record.key] == record.offset)
            and record.offset not in gone
        )
    ]


@given(drawn=logs, more=logs)
def test_cleaning_keeps_records_of_model(drawn: list, more: list) -> None:  # type: ignore[type-arg]
    before = _log(drawn)
    first = clean(before)
    expected = _model(all_records(before), first.end, set())
    assert first.records() == expected
    again = clean(first.batches, first.end)
    assert again.batches == first.batches

    shift = first.end
    later = []
    for batch in _log(more):
        moved = bytearray(batch)
        moved[:8] = (read_head(batch).base_offset + shift).to_bytes(8, "big")
        later.append(bytes(moved))
    dead = {record.offset for record in first.records() if record.value is None}
    second = clean([*first.batches, *later], first.end, now_ms=NOW_MS + DAY_MS)
    assert second.records() == _model(expected + all_records(later), second.end, dead)
    assert [h.base_offset for h in second.heads()] == sorted(h.base_offset for h in second.heads())
    assert second.heads()[-1].last_offset + 1 == second.end


steps = st.lists(
    st.tuples(st.sampled_from(["plain", "data", "data", "commit", "abort"]), st.integers(1, 3),
              st.sampled_from([b"a", b"b", b"c"])),
    max_size=25,
)  # fmt: skip


@given(steps)
def test_cleaning_transactions_keeps_records_of_model(drawn: list) -> None:  # type: ignore[type-arg]
    batches: list[bytes] = []
    found: list[tuple[int, bytes]] = []  # of records that were not aborted: offset, key
    opened: dict[int, list[tuple[int, bytes]]] = {}
    for offset, (what, producer_id, key) in enumerate(drawn):
        more = TXN | {"producer_id": producer_id}
        if what == "plain":
            batches.append(keyed(offset, (key, b"%d" % offset)))
            found.append((offset, key))
        elif what == "data":
            batches.append(keyed(offset, (key, b"%d" % offset), **more))
            opened.setdefault(producer_id, []).append((offset, key))
        else:
            batches.append(marker(offset, producer_id, commit=what == "commit"))
            ended = opened.pop(producer_id, [])
            found += ended if what == "commit" else []
    end = min((rows[0][0] for rows in opened.values()), default=len(drawn))
    stays = sorted(row for row in found if row[0] < end)
    newest = {key: offset for offset, key in stays}
    expected = [row for row in stays if newest[row[1]] == row[0]]

    now_ms, after = NOW_MS, clean(batches)
    for _ in range(4):
        assert after.end == (end if drawn else 0)
        got = [(r.offset, r.key) for r in after.records() if r.offset < end]
        assert got == expected
        now_ms += DAY_MS
        after = clean(after.batches, after.end, now_ms=now_ms)
    heads = [head for head in after.heads() if head.last_offset < end - 1]
    living = {head.producer_id for head in heads if not head.attributes & CONTROL and head.count}
    for head in heads:
        assert head.count, "no empty batch is needed"
        if head.attributes & CONTROL:
            assert head.producer_id in living, "a marker outlives its transaction"


@given(rows, st.integers(0, 4), st.data())
def test_spans_match_records(drawn: list, codec: int, data: st.DataObject) -> None:  # type: ignore[type-arg]
    items = as_records(drawn, 1000)
    batch = bytes(pack(items, codec=codec))
    head = read_head(batch)
    spans = read_columns(batch, 0, head)
    assert spans.keys == [item.key for item in items]
    assert spans.nulls == [n for n, item in enumerate(items) if item.value is None]
    assert spans.deltas == list(range(len(items)))
    kept = sorted(data.draw(st.sets(st.integers(0, len(items) - 1), min_size=1)))
    deltas = read_times(spans, kept)
    assert [head.base_timestamp + delta for delta in deltas] == [items[n].timestamp for n in kept]
    assert move_times(spans, kept, deltas) == join_records(spans, kept)


@pytest.mark.parametrize("build", [by_kafka_python, by_aiokafka])
@pytest.mark.parametrize("codec", range(5))
def test_spans_of_batches_of_other_clients(build, codec: int) -> None:  # type: ignore[no-untyped-def]
    batch = build(ROWS, codec)
    spans = read_columns(batch, 0, read_head(batch))
    assert spans.keys == [row[1] for row in ROWS]
    assert spans.nulls == [n for n, row in enumerate(ROWS) if row[2] is None]


@given(st.lists(st.binary(max_size=3), max_size=300), st.sampled_from([1 << 14, 1 << 16]))
def test_offset_map_behaves_like_dict(drawn: list[bytes], buffer_bytes: int) -> None:
    offsets = OffsetMap(10, 10_000, buffer_bytes, 0.9)
    for at in range(0, len(drawn), 7):
        part = drawn[at : at + 7]
        offsets.put(part, range(len(part)), 10 + at)
    model = {key: 10 + at for at, key in enumerate(drawn)}
    assert offsets.size == len(model)
    for at, key in enumerate(drawn):
        stays = offsets.newest([key], [0], 10 + at) == [0]
        assert stays == (model[key] == 10 + at)
        assert offsets.newest([key], [0], 3) == [], "an older one, of the clean part"
    assert offsets.newest([b"none of them", None], [0, 1], 5) == [0]


def test_offset_map_stays_within_its_buffer() -> None:
    offsets = OffsetMap(0, 1 << 30, 1 << 20, 0.9)
    assert offsets.capacity == int((1 << 16) * 0.9)
    keys = [b"%d" % n for n in range(offsets.capacity)]
    offsets.put(keys, range(len(keys)), 0)
    assert offsets.size == offsets.capacity
    assert offsets.newest(keys, range(len(keys)), 0) == list(range(len(keys)))
    assert OffsetMap(0, 10, 1 << 30, 0.9).capacity < 1000, "no more than is wanted"
