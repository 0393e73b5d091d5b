"""Log objects, and frames as journals have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crc32c import crc32c

from kafkawire.codec.types import Buffer
from kafkawire.log.journal import format as journal_format
from kafkawire.log.journal.format import Naming
from kafkawire.log.objects.format import ObjectHead, write_head
from tests.kit.log.logs import batch

NONCE = bytes(range(16))


def frame_of(
    number: int,
    log_position: int,
    batches: Sequence[Buffer],
    run: int = 1,
    kind: int = journal_format.KIND_BATCH,
) -> bytes:
    """A frame with its padding."""
    payload = b"".join(batches)
    count = len(batches) if kind == journal_format.KIND_BATCH else 0
    body = journal_format.pack_body(len(payload), kind, count, log_position, run, number, 0)
    covered = [body, payload]
    if kind == journal_format.KIND_BATCH:
        covered[1:] = [
            bytes(memoryview(each)[: journal_format.BATCH_PREFIX_BYTES]) for each in batches
        ]
    front = journal_format.pack_front(journal_format.MAGIC, crc32c(b"".join(covered)))
    return front + body + payload + journal_format.PADDING[-len(payload) & 7]


def naming_of(number: int) -> Naming:
    """A naming of a partition."""
    return Naming(bytes([number & 0xFF]) * 16, f"täglich-{number}", number & 0xFF, 3, 10, 4)


def object_of(
    frames: Sequence[bytes],
    names: Mapping[int, Naming],
    *,
    epoch: int = 7,
    sequence: int = 2,
    node_id: int = 1,
    nonce: bytes = NONCE,
) -> bytes:
    """A whole object."""
    length = sum(map(len, frames))
    head = ObjectHead(node_id, epoch, sequence, nonce, len(frames), length, 1_700_000_000_000)
    return write_head(head, names) + b"".join(frames)


def small_object() -> bytes:
    """An object with three frames of two partitions, one frame of three batches; all kinds of
    padding."""
    frames = [
        frame_of(5, 3 << 32 | 64, [batch(b"a")]),
        frame_of(1 << 40, 3 << 32 | 4096, [batch(b"b", b"c"), batch(b""), batch(b"1234567")], 2),
        frame_of(5, 4 << 32 | 64, [batch(b"dd")], 2),
    ]
    return object_of(frames, {5: naming_of(5), 1 << 40: naming_of(1 << 40)})
