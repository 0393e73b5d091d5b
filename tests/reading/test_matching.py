"""Records selected by time, in batches whose heads say less than their records."""

from __future__ import annotations

import pytest

from kafkawire.codec.batches import Record, pack, read_head
from kafkawire.codec.compression import ZSTD
from kafkawire.codec.errors import KafkaError
from kafkawire.reading.matching import matching
from kafkawire.reading.model.records import RecordConditions
from tests.kit.codec.odd_batches import T0, plain, unreadable, with_newest

FEW = plain("few")


@pytest.mark.parametrize("codec", [0, ZSTD])
def test_records_are_newer_than_their_head_says(codec: int) -> None:
    items = [Record(n, T0, b"k", b"v") for n in range(12)]
    items[5].timestamp = T0 + 100
    batch = with_newest(pack(items, codec=codec), T0)
    found = matching(batch, 0, read_head(batch), RecordConditions(None, T0 + 50))
    assert found == [items[5]]
    found = matching(batch, 0, read_head(batch), RecordConditions(frozenset([b"k"]), T0 + 50))
    assert found == [items[5]]
    assert matching(batch, 0, read_head(batch), RecordConditions(None, T0 + 101)) == []


def test_records_that_do_not_fill_their_batch_are_damage() -> None:
    batch = with_newest(unreadable(FEW)["a byte after the last record"], 0)
    with pytest.raises(KafkaError):
        matching(batch, 0, read_head(batch), RecordConditions(None, T0))
