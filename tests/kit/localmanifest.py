"""What a broker's folder says of itself, read as whoever has no broker reads it, and held against
the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kafkawire.codec.batches import Record, iter_batches, records
from kafkawire.manifest.contents import Manifest
from kafkawire.manifest.keys import segment_key
from kafkawire.manifest.reader import read_manifest
from log.env import FileSystem
from log.partition import Partition
from log.segments.store import SegmentStore
from offsets.storage import LIVE

Row = tuple[int, bytes | None]


def reader(fs: FileSystem, folder: str) -> Callable[[str], bytes]:
    """Files by key."""

    def get(key: str) -> bytes:
        file = fs.open(f"{folder}/{key}")
        return file.pread(file.size(), 0)

    return get


def read_local(fs: FileSystem, folder: str) -> Manifest:
    """The manifest of a folder. NoManifest, LostManifest, FormatError."""
    return read_manifest(reader(fs, folder))


def offsets_of(manifest: Manifest, number: int) -> tuple[int, int]:
    """(log start, end) of a partition; every offset between them must be covered, once."""
    row = manifest.partition(number)
    if row is None:
        return 0, 0
    at = row.log_start
    for span in manifest.spans(number):
        assert span.base == at, f"offsets {at} to {span.base} of {number} are in nothing"
        at = span.end
    assert at == row.end, f"offsets {at} to {row.end} of {number} are in nothing"
    return row.log_start, row.end


def rows_of(get: Callable[[str], bytes], manifest: Manifest, number: int) -> list[Row]:
    """(offset, value) of every record. FileNotFoundError if a segment is gone."""
    found: list[Row] = []
    for span in manifest.spans(number):
        entry = manifest.entries[span.entry]
        data = get(segment_key(manifest.objects.uuid(span.object)))
        part = data[entry.start : entry.start + entry.length]
        for position, _ in iter_batches(part):
            for record in records(part, position):
                assert isinstance(record, Record)
                if span.base <= record.offset < span.end:
                    value = None if record.value is None else bytes(record.value)
                    found.append((record.offset, value))
    return found


def check_settled(
    fs: FileSystem,
    folder: str,
    store: SegmentStore,
    partitions: Mapping[int, Partition],
    logged: Mapping[int, list[Row]] | None = None,
) -> None:
    """Nothing is on its way: the manifest says what the log does, below each cut offset; what
    `logged` has is compared, too."""
    manifest, get = read_local(fs, folder), reader(fs, folder)
    living = {s.row.uuid for s in store.by_id.values() if s.row.state == LIVE and s.row.local}
    assert {manifest.objects.uuid(at) for at in range(len(manifest.objects))} == living
    for number, partition in partitions.items():
        start, end = offsets_of(manifest, number)
        cut = max(partition.cut_offset, partition.log_start)
        if cut or end:
            assert (start, end) == (partition.log_start, cut)
        if logged is None:
            continue
        wanted = [row for row in logged[number] if row[0] < partition.cut_offset]
        assert rows_of(get, manifest, number) == wanted
