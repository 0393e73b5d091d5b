"""A write batch: what was appended between two runs of the flush, and its form on disk.

`lay_out` turns the queued frames into one gathered write per journal: frame heads, with the padding
before each, are small buffers of their own; batches are the views in which the producers' bytes
were received. Nothing is copied. The only state that changes here is which partitions a journal
names, which `Write.unname` takes back: kafkawire.log.append.commit_log writes and applies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kafkawire.crc32c import crc32c
from kafkawire.log.io.callbacks import Callback
from kafkawire.log.io.gathered_write import write_whole
from kafkawire.log.io.ports import Buffer
from kafkawire.log.journal.file import POSITION_BITS, POSITION_MASK, Journal
from kafkawire.log.journal.format import (
    BATCH_PREFIX_BYTES,
    HEAD_BYTES,
    HEADER_BYTES,
    KIND_BATCH,
    KIND_NAMING,
    MAGIC,
    PADDING,
    JournalHeader,
    Naming,
    pack_body,
    pack_front,
    pad_length,
    write_header,
    write_naming,
)

if TYPE_CHECKING:
    from kafkawire.log.journal.directory import Journals
    from kafkawire.log.partition.state import Frame, LoadedPartition, Sink

MAX_NAMING_BYTES: Final = HEAD_BYTES + 48 + 256
"""A naming frame: head, fixed fields, a topic name of at most 249 bytes, padding."""


BLOCK_BYTES: Final = 4096
"""The block of usual file systems, and the page of usual machines."""
ZEROS: Final = memoryview(bytes(BLOCK_BYTES))


class WriteBatch:
    """Frames, and the callbacks for when they are `written`, and by sink, for when they are
    `durable` there. `writes`: what `lay_out` has made of the frames."""

    __slots__ = ("durable", "frames", "size_bytes", "writes", "written")

    def __init__(
        self,
        frames: list[Frame],
        size_bytes: int,
        written: list[Callback],
        durable: dict[Sink, list[Callback]],
    ) -> None:
        self.frames = frames
        self.size_bytes = size_bytes
        self.written = written
        self.durable = durable
        self.writes: list[Write] = []


class Write:
    """One gathered write: buffers for [position, position + length) of a journal, after its last
    frame. The first write of a journal begins with its header, which states `previous_end`, where
    the journal before it ended. `named`: partitions with a naming frame in it, by their number."""

    __slots__ = ("buffers", "entries", "journal", "length", "named", "position", "time_ms")

    def __init__(self, journal: Journal, previous_end: int, run: int, now_ms: int) -> None:
        self.journal = journal
        self.position = journal.end
        self.time_ms = now_ms
        self.buffers: list[Buffer] = []
        self.length = 0
        self.entries = 0
        self.named: dict[int, LoadedPartition] = {}
        if journal.end == 0:
            header = write_header(JournalHeader(journal.number, run, previous_end, now_ms))
            self.buffers.append(header)
            self.length = len(header)

    def name(self, partition: LoadedPartition) -> None:
        """Note that the partition's naming frame is in this write."""
        partition.named_in = self.journal.number
        self.named[partition.number] = partition

    def unname(self) -> None:
        """Note that this write failed: its naming frames must still be written."""
        for partition in self.named.values():
            partition.named_in = -1


def lay_out(
    write_batch: WriteBatch,
    journals: Journals,
    run: int,
    committed: int,
    entries_at_most: int,
    now_ms: int,
) -> None:
    """Lay out the frames of a write batch in its `writes`, one per journal. Run number and
    committed log position are fields of every frame. Raises OSError if no journal can be created;
    then the caller takes back the names of the writes."""
    frames, writes = write_batch.frames, write_batch.writes
    # 0: no frame fits into a journal that is to be rolled.
    bound = journals.journal_bytes if not journals.rolling else 0
    write = Write(journals.active, journals.previous_end, run, now_ms)
    # The usual case: all frames in the active journal, without a count per frame. As if each frame
    # needed a naming frame and padding: an upper bound is enough here.
    most = write_batch.size_bytes + len(frames) * (HEAD_BYTES + 8 + MAX_NAMING_BYTES)
    entries = write.journal.entries + len(frames)
    if write.position + write.length + most <= bound and entries <= entries_at_most:
        writes.append(write)
        _fill(write, frames, run, committed)
        return
    start = ahead = 0
    while start < len(frames):
        # One frame may be larger than a journal: the file grows for it.
        if write.position == 0:
            first = HEADER_BYTES + MAX_NAMING_BYTES + HEAD_BYTES + pad_length(frames[start].length)
            write.journal.reserve(first)
        stop = _how_many(frames, start, write, bound, entries_at_most)
        if stop > start:
            writes.append(write)
            _fill(write, frames[start:stop], run, committed)
            start = stop
        else:
            # Only prepared: the commit log advances to it once everything is written, so that a
            # failure leaves everything as it was.
            ahead += 1
            # With this write: the header of the next journal states where this one ended.
            ended = write.journal.log_position | (write.position + write.length)
            journal = journals.upcoming(ahead)
            bound = journals.journal_bytes
            write = Write(journal, ended, run, now_ms)


def _how_many(
    frames: list[Frame], start: int, write: Write, journal_bytes: int, entries_at_most: int
) -> int:
    """Return up to which frame a journal can take them."""
    position = write.position + write.length
    entries = write.journal.entries + write.entries
    stop = start
    while stop < len(frames):
        position += HEAD_BYTES + pad_length(frames[stop].length) + MAX_NAMING_BYTES
        # An empty journal takes at least one, however large.
        if (position > journal_bytes or entries >= entries_at_most) and entries:
            break
        entries += 1
        stop += 1
    return stop


def _fill(write: Write, frames: list[Frame], run: int, committed: int) -> None:
    """Add the frames to the write. Hot: a microsecond or two per frame.

    Each head is in one buffer with the padding of the frame before it.
    """
    journal_number = write.journal.number
    buffers = write.buffers
    log_position = journal_number << POSITION_BITS | (write.position + write.length)
    padding = b""
    for frame in frames:
        partition = frame.partition
        batches = frame.batches
        length = frame.length
        if partition is None:
            body = pack_body(length, frame.kind, 0, log_position, run, 0, committed)
            checksum = crc32c(batches[0], crc32c(body))
        else:
            # The first batches of a partition in each journal: the journals alone then name
            # everything.
            if partition.named_in != journal_number:
                naming = _naming_frame(partition, log_position, run, committed)
                buffers.append(padding + naming)
                padding = b""
                log_position += len(naming)
                write.name(partition)
            body = pack_body(
                length, KIND_BATCH, len(batches), log_position, run, partition.number, committed
            )
            if len(batches) == 1:
                checksum = crc32c(body + batches[0][:BATCH_PREFIX_BYTES])
            else:
                heads = [batch[:BATCH_PREFIX_BYTES] for batch in batches]
                checksum = crc32c(b"".join([body, *heads]))
        buffers.append(padding + pack_front(MAGIC, checksum) + body)
        buffers += batches
        # Of the first batch, not of the head: readers want the batches.
        frame.log_position = log_position + HEAD_BYTES
        log_position += HEAD_BYTES + ((length + 7) & ~7)
        padding = PADDING[-length & 7]
    if padding:
        # The last frame is padded too: the next write begins at a multiple of 8.
        buffers.append(padding)
    write.length = (log_position & POSITION_MASK) - write.position
    write.entries += len(frames)


def _naming_frame(partition: LoadedPartition, log_position: int, run: int, committed: int) -> bytes:
    # Its values from before this write batch.
    naming = write_naming(
        Naming(
            partition.topic_id,
            partition.topic,
            partition.index,
            partition.leader_epoch,
            partition.next_offset,
            partition.log_start,
        )
    )
    body = pack_body(len(naming), KIND_NAMING, 0, log_position, run, partition.number, committed)
    front = pack_front(MAGIC, crc32c(naming, crc32c(body)))
    return front + body + naming + PADDING[-len(naming) & 7]


def write_all(writes: list[Write], monotonic: Callable[[], float]) -> float:
    """Do the writes in order; return how many seconds that took. Runs on the event loop or in the
    writer thread."""
    before = monotonic()
    for write in writes:
        buffers, length = write.buffers, write.length
        end = write.position + length
        # The kernel reads a block that is written in part from the disk unless it is in the page
        # cache, and those of a recycled journal may not be. So the last new block is written to its
        # end; the next write continues in it.
        if (end - 1) // BLOCK_BYTES != (write.position - 1) // BLOCK_BYTES:
            rest = min(-end % BLOCK_BYTES, write.journal.capacity - end)
            if rest > 0:
                buffers = [*buffers, ZEROS[:rest]]
                length += rest
        write_whole(write.journal.require_file(), buffers, write.position, length)
    return monotonic() - before
