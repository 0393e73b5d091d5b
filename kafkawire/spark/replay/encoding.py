"""Rows of a table to record batches of the replay's producer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kafkawire.codec.batches import Record, pack
from kafkawire.spark.replay.lane import Encode, Encoded, raw
from kafkawire.spark.replay.record import SEQUENCES

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 512 << 10


def encoder(producer_id: int, epoch: int) -> Encode:
    """For one lane."""

    def encode(batch: pa.RecordBatch, sequence: int) -> Iterator[Encoded]:
        import pyarrow as pa

        ms = batch["_timestamp"].cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
        stamps = ms.fill_null(-1).to_pylist()
        rows: list[Record] = []
        size = 0
        for at, row in enumerate(batch.to_pylist()):
            key, value = raw(row.get("_key")), raw(row.get("_value"))
            headers = [(each["key"], each["value"]) for each in row.get("_headers") or ()]
            rows.append(Record(len(rows), stamps[at], key, value, headers))
            size += 20 + len(key or b"") + len(value or b"")
            if size >= BATCH_BYTES or at + 1 == batch.num_rows:
                data = pack(
                    rows, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
                )
                yield Encoded(data, len(rows))
                sequence = (sequence + len(rows)) % SEQUENCES
                rows, size = [], 0

    return encode
