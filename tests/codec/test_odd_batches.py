"""Batches that Kafka accepts although no usual client sends them: every decoder reads them.

Covers: kafkawire.codec.batches, kafkawire.log.segments.compact.retain, kafkawire.reading.decode.*.
"""

from __future__ import annotations

import pytest

from kafkawire.codec.batches import (
    Record,
    dump_record,
    header_bytes,
    header_text,
    load_record,
    pack,
    read_head,
    records,
)
from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.codec.validate import check_batch
from kafkawire.log.segments.file.writer import key_collector
from kafkawire.reading.decode.decoder import Decoder
from kafkawire.reading.decode.first_rows import FirstRowsDecoder
from kafkawire.reading.decode.port import RangeDecoder
from kafkawire.reading.model.columns import DEFAULT_HEADERS
from kafkawire.reading.model.source import Account, PartitionRange
from tests.kit.codec.odd_batches import COUNT, ODD, T0
from tests.kit.codec.walks import walked_both_ways
from tests.kit.log.compaction import clean

every_odd_batch = pytest.mark.parametrize("name", ODD)


@every_odd_batch
def test_broker_accepts_it(name: str) -> None:
    view = memoryview(ODD[name].data)
    head = check_batch(view, 1 << 20)
    newest = max(record.timestamp for record in ODD[name].records)
    assert walked_both_ways(view, head, TopicConfig(), T0 + 1000) == max(newest, -1)


@every_odd_batch
def test_records_are_read_and_packed_again(name: str) -> None:
    odd = ODD[name]
    assert list(records(odd.data)) == odd.records
    assert list(records(pack(list(records(odd.data))))) == odd.records
    assert [load_record(dump_record(each), each.offset) for each in odd.records] == odd.records


@every_odd_batch
def test_compaction_keeps_its_records(name: str) -> None:
    odd = ODD[name]
    after = clean([odd.data, bytes(pack([Record(COUNT, T0, odd.last_key, b"new")]))])
    kept = [each for batch in after.batches for each in records(batch)]
    keys = {each.key: each.offset for each in odd.records}
    assert [each.offset for each in kept] == [
        each.offset
        for each in odd.records
        if keys[each.key] == each.offset and each.key != odd.last_key
    ] + [COUNT]
    for each in kept[:-1]:
        assert each == odd.records[each.offset]


@every_odd_batch
def test_key_index_reads_its_keys(name: str, caplog: pytest.LogCaptureFixture) -> None:
    collector = key_collector(decompress=True)
    assert collector is not None
    collector.start_partition(1)
    collector.add([ODD[name].data])
    collector.end_partition()
    collector.section()
    collector.close()
    assert not caplog.records, "it warns of what it cannot read"


@every_odd_batch
@pytest.mark.parametrize("first", [True, False])
def test_spark_decodes_it(name: str, first: bool) -> None:
    odd = ODD[name]

    def compiled() -> RangeDecoder:
        return Decoder(DEFAULT_HEADERS)

    decoder = FirstRowsDecoder(DEFAULT_HEADERS, compiled) if first else compiled()
    account = Account(PartitionRange("t", 0, 0, COUNT))
    decoder.start_range(account)
    found = list(decoder.decode_batches(odd.data, check_crc=True))
    decoder.end_range()
    found += decoder.flush()
    rows = [row for batch in found for row in batch.to_pylist()]
    assert account.missing == 0
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [
        (each.offset, each.key, each.value) for each in odd.records
    ]
    assert [row["headers"] or [] for row in rows] == [
        [{"key": header_text(key), "value": value} for key, value in each.headers]
        for each in odd.records
    ]


def test_header_keys_that_are_not_utf8_keep_their_bytes() -> None:
    [key] = [each for each, _ in ODD["a header key that is not UTF-8"].records[3].headers[1:2]]
    assert header_bytes(key) == b"caf\xe9\xff"
    assert header_text(key) == "caf\ufffd\ufffd"
    assert header_text("\u00fc") == "\u00fc"
    assert read_head(ODD["long varints"].data).count == COUNT
