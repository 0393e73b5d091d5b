"""Batches for tests: built by other clients' builders, and by ours from generated records."""

from __future__ import annotations

from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from kafkawire.codec.batches import Record

Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""(timestamp, key, value, headers)"""

ROWS: list[Row] = [
    (1_700_000_000_000, b"k", b"v", []),
    (1_700_000_000_007, None, b"x" * 3000, [("h", b"1"), ("h", None), ("", b"")]),
    (1_700_000_090_000, b"", None, []),
    (1_699_999_000_000, b"key" * 40, b"", [("\u00fc", b"\xff" * 200)]),
    *[(1_700_000_000_000 + i, b"%d" % i, b"y" * i, []) for i in range(150)],
]


def by_kafka_python(rows: list[Row], codec: int, producer_id: int = -1) -> bytes:
    """A batch built by kafka-python."""
    sequence = 0 if producer_id >= 0 else -1
    builder = KafkaPythonBuilder(2, codec, False, producer_id, sequence, sequence, 1 << 20)
    for offset, (timestamp, key, value, headers) in enumerate(rows):
        assert builder.append(offset, timestamp, key, value, headers) is not None
    return bytes(builder.build())


def by_aiokafka(rows: list[Row], codec: int, producer_id: int = -1) -> bytes:
    """A batch built by aiokafka."""
    sequence = 0 if producer_id >= 0 else -1
    builder = AiokafkaBuilder(2, codec, 0, producer_id, sequence, sequence, 1 << 20)
    for offset, (timestamp, key, value, headers) in enumerate(rows):
        assert builder.append(offset, timestamp, key, value, headers) is not None
    return bytes(builder.build())


def as_records(rows: list[Row], base_offset: int = 0) -> list[Record]:
    return [Record(base_offset + i, *row) for i, row in enumerate(rows)]


optional_bytes = st.none() | st.binary(max_size=300)
rows = st.lists(
    st.tuples(
        st.integers(0, 1 << 45),
        optional_bytes,
        optional_bytes,
        st.lists(st.tuples(st.text(max_size=10), optional_bytes), max_size=3),
    ),
    min_size=1,
    max_size=90,
)
