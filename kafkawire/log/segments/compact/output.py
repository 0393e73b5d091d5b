"""The segments that a compaction writes: those of cleaned batches, and one for the rests of
sources."""

from __future__ import annotations

from dataclasses import replace

from kafkawire.codec.control import Aborted
from kafkawire.codec.segment.format import PartitionState
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.io.worker_jobs import Made, SegmentOutput
from kafkawire.log.segments.compact.messages import CompactArguments, PartitionToClean
from kafkawire.log.segments.file.writer import JobOrigins, SegmentWriter


class Outputs:
    """Writes partition by partition: `begin`, perhaps `begin_rest` and `write_rest`, `write`...,
    then `end` or `abandon`; finally `finish` or `discard`. OSError from the disk."""

    __slots__ = ("_arguments", "_first", "_fs", "_in_rest", "_kept", "_made", "_noted", "_origins",
                 "_rest", "_share", "_size", "_state", "_waiting", "_writers")  # fmt: skip

    def __init__(self, fs: FileSystem, arguments: CompactArguments) -> None:
        self._fs = fs
        self._arguments = arguments
        self._origins = JobOrigins(arguments.origin)
        self._waiting = list(arguments.outputs)
        self._writers: list[SegmentWriter] = []
        self._rest: SegmentWriter | None = None
        self._share: PartitionToClean | None = None
        self._in_rest = False

    def begin(self, share: PartitionToClean, kept: list[Aborted]) -> None:
        """Begin the next partition, from its first source on. `kept` is filled with the aborted
        transactions that readers of the output must know."""
        if not self._writers:
            self._open_next()
        self._share, self._kept, self._noted = share, kept, 0
        self._first = len(self._writers) - 1
        self._begin_part(share.sources[0].base_offset)

    def _open(self, output: SegmentOutput) -> SegmentWriter:
        arguments = self._arguments
        made_by = arguments.node_id, arguments.created_ms, self._origins
        return SegmentWriter(self._fs, output, *made_by)

    def _open_next(self) -> None:
        self._writers.append(self._open(self._waiting.pop(0)))
        self._size = 0

    def _begin_part(self, base_offset: int) -> None:
        share = self._share
        assert share is not None, "no partition was begun"
        self._state = replace(share.state, aborted=[])
        _begin(self._writers[-1], share, base_offset, self._state)

    def _end_part(self, end_offset: int) -> None:
        # The state is written when the segment is finished, so it may still be filled.
        self._state.aborted = self._kept[self._noted :]
        self._noted = len(self._kept)
        self._writers[-1].end(end_offset)

    def write(self, parts: list[memoryview]) -> None:
        """Write cleaned data, which is whole batches."""
        if self._waiting and self._size >= self._arguments.segment_bytes:
            end = self._writers[-1].next_offset
            self._end_part(end)
            self._open_next()
            self._begin_part(end)
        self._writers[-1].write(parts)
        self._size += sum(map(len, parts))

    def begin_rest(self, share: PartitionToClean, base_offset: int, aborted: list[Aborted]) -> None:
        """Begin the rest of this partition."""
        if self._rest is None:
            self._rest = self._open(self._arguments.rest)
        _begin(self._rest, share, base_offset, replace(share.state, aborted=aborted))
        self._in_rest = True

    def write_rest(self, part: memoryview) -> None:
        """Write whole batches, as they were in the source."""
        assert self._rest is not None, "no rest was begun"
        self._rest.write([part])

    def end(self, clean_end: int, touched_end: int) -> None:
        """End the partition: cleaned below `clean_end`, then its rest."""
        self._end_part(clean_end)
        if self._in_rest:
            assert self._rest is not None
            self._rest.end(touched_end)
        self._share, self._in_rest = None, False

    def abandon(self) -> None:
        """Discard what was written of the partition."""
        if self._share is None:
            return
        if self._first < len(self._writers) - 1:
            assert self._first == 0, "only a single share is in more than one output"
            self._discard(self._writers)
        else:
            self._writers[-1].abandon()
        if self._in_rest:
            assert self._rest is not None
            self._rest.abandon()
        self._share, self._in_rest = None, False

    @staticmethod
    def _discard(writers: list[SegmentWriter]) -> None:
        for writer in writers:
            writer.discard()
        writers.clear()

    def discard(self) -> None:
        """Remove everything."""
        self._discard(self._writers)
        if self._rest is not None:
            self._rest.discard()

    def finish(self) -> tuple[list[Made], Made]:
        """Make everything durable; return the contents of each output, size 0 where there is no
        file."""
        arguments = self._arguments
        made = [writer.finish() for writer in self._writers]
        made += [_nothing(output) for output in arguments.outputs[len(made) :]]
        rest = _nothing(arguments.rest) if self._rest is None else self._rest.finish()
        return made, rest


def _begin(
    writer: SegmentWriter, share: PartitionToClean, base: int, state: PartitionState
) -> None:
    writer.begin(share.number, (share.topic_id, share.topic, share.index), base, state)


def _nothing(output: SegmentOutput) -> Made:
    return Made(output.path, output.uuid, 0, [])
