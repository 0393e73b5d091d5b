"""Write segment-v1.segment, and its content as segment-v1.json.

Run once, for a new version: `python -m tests.golden.make_segment_v1` from the root. A golden file
is never written again, because it is what users have on their disks; the files of earlier versions
stay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kafkawire.codec import batches as wire
from kafkawire.codec.batches import Record, pack
from kafkawire.codec.control import Aborted
from kafkawire.codec.segment.format import Origin, PartitionState, SegmentBuilder
from kafkawire.codec.segment.stored import Step
from kafkawire.metadata.checkpoint import ProducerEntry, pack_epochs, pack_producers

HERE = Path(__file__).parent
UUID = bytes.fromhex("0123456789abcdef0123456789abcdef")
TOPICS = {"orders": b"\1" * 16, "täglich": b"\2" * 16}


def record(offset: int, key: bytes | None, value: bytes | None, **headers: bytes) -> Record:
    return Record(offset, 1_700_000_000_000 + offset, key, value, list(headers.items()))


def partitions() -> list[tuple[int, str, int, int, int, PartitionState, list[bytes]]]:
    """Number, topic, index, base, end, state, batches."""
    orders = [
        bytes(pack([record(n, b"k%d" % n, bytes([n]) * 900)], leader_epoch=n // 8))
        for n in range(20)
    ]
    idempotent = pack([record(4, None, b"x", h=b"1"), record(7, b"a", None)], producer_id=77,
                      producer_epoch=1, base_sequence=5)  # fmt: skip
    open_one = pack([record(9, b"t", b"v")], producer_id=78, producer_epoch=0, base_sequence=0,
                    attributes=wire.TRANSACTIONAL)  # fmt: skip
    marker = pack([record(10, b"\0\0\0\0", b"\0\0\0\0\0\0")], producer_id=78, producer_epoch=0,
                  attributes=wire.TRANSACTIONAL | wire.CONTROL)  # fmt: skip
    producers = [ProducerEntry(77, 1, [(5, 6, 4, 1_700_000_000_007)]), ProducerEntry(78, 0)]
    epochs = pack_epochs([(0, 0), (1, 8), (2, 16)])
    return [
        (5, "orders", 0, 0, 20, PartitionState(0, epochs, pack_producers([])), orders),
        (6, "orders", 1, 3, 3, PartitionState(3), []),
        (1 << 33, "täglich", 7, 5, 12,
         PartitionState(5, pack_epochs([(4, 0)]), pack_producers(producers), [Aborted(78, 9, 9)]),
         [bytes(idempotent), bytes(open_one), bytes(marker)]),
    ]  # fmt: skip


def build(
    origin: Origin | None = None, stored: Mapping[int, list[Step]] | None = None
) -> tuple[bytes, dict[str, Any]]:
    """The file, and its content. `stored`: the store times by partition number."""
    builder = SegmentBuilder(UUID, 3, 1_700_000_000_123)
    data = bytearray(builder.header())
    said: list[dict[str, Any]] = []
    for number, topic, index, base, end, state, batches in partitions():
        state.stored = [] if stored is None else stored.get(number, [])
        builder.start_partition(number, TOPICS[topic], topic, index, base, state)
        for batch in batches:
            builder.add(batch)
            data += batch
        builder.end_partition(end)
        said.append({
            "number": number, "topic": topic, "topic_id": TOPICS[topic].hex(), "index": index,
            "base_offset": base, "end_offset": end, "log_start": state.log_start,
            "leader_epochs": state.leader_epochs.hex(), "producers": state.producers.hex(),
            "aborted": state.aborted, "batches": [batch.hex() for batch in batches],
        })  # fmt: skip
    data += builder.finish(origin)
    says = {"uuid": UUID.hex(), "node": 3, "created_ms": 1_700_000_000_123, "partitions": said}
    return bytes(data), says


if __name__ == "__main__":
    file, content = build()
    (HERE / "segment-v1.segment").write_bytes(file)
    (HERE / "segment-v1.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
