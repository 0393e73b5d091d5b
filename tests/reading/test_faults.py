"""Every byte of a segment damaged, one after the other: never a wrong row, never an unreported
missing one.

In-process, on segments built by hand; tests/reading/test_faults_broker.py uses real brokers
and Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kafkawire.codec.batches import build
from kafkawire.codec.segment.format import (
    DIRECTORY,
    HEADER_BYTES,
    ORIGIN,
    TAIL_BYTES,
    SparseIndex,
    read_directory,
    read_trailer,
    section_body,
)
from kafkawire.manifest.columns import Entry, ManifestObject
from kafkawire.manifest.keys import segment_key
from kafkawire.manifest.state import ManifestTopic
from kafkawire.reading.catalog import SourceCatalog, open_catalog
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.columns import Selection
from kafkawire.reading.model.source import (
    ABORTED,
    COMPACTED,
    CONTROL,
    DAMAGED,
    Account,
    DamagedData,
    PartitionRange,
    Source,
    SourceError,
    Task,
)
from kafkawire.reading.read_task import read_task
from tests.kit.minio import Minio
from tests.kit.spark.files import START_MS, Files, Share, batch, batches, marker, value
from tests.kit.spark.reads import tier_files  # noqa: F401  (a fixture, by name)

SELECTION = Selection(("offset", "key", "value"))
Cell = bytes | None
Rows = dict[int, tuple[Cell, Cell]]


class Outcome(NamedTuple):
    """The result of a task. `noted`: the damage passed to its handler."""

    rows: Rows
    account: Account
    noted: list[DamagedData]


def planned(files: Files, isolation: str = "read_committed") -> tuple[SourceCatalog, Task]:
    catalog = open_catalog(Source(files.place.url, isolation=isolation))
    start, _, end = catalog.bounds("t", 0)
    return catalog, Task((catalog.part(PartitionRange("t", 0, start, end)),))


def read(catalog: SourceCatalog, task: Task, *, fails: bool = False) -> Outcome:
    """Read all of a task. `fails`: damage is raised."""
    noted: list[DamagedData] = []
    accounts: list[Account] = []
    rows: Rows = {}
    for made in read_task(
        catalog.source,
        catalog.places,
        task,
        SELECTION,
        on_damage=None if fails else lambda error, _: noted.append(error),
        accounts=accounts,
    ):
        for offset, key, data in zip(*[c.to_pylist() for c in made.columns], strict=True):
            assert offset not in rows, "an offset was read twice"
            rows[offset] = key, data
    (account,) = accounts
    assert account.missing == 0
    return Outcome(rows, account, noted)


def simple(codec: int = 0) -> Callable[[Files], str]:
    """Some index blocks of batches of several records, with a gap."""

    def make(files: Files) -> str:
        [number] = files.topic("t")
        made = [*batches(0, [3] * 40, codec=codec, size=300), *batches(150, [3] * 40, codec=codec)]
        key = files.put(1, Share(number, made))
        files.publish()
        return key

    return make


def transactional(files: Files) -> str:
    """Aborted and committed records, and records outside of transactions between them."""
    [number] = files.topic("t")
    of = {"producer_epoch": 0, "attributes": 0x10}
    made = [
        batch(0, 5, producer_id=7, base_sequence=0, **of),
        batch(5, 2),
        marker(7, 7, commits=False),
        batch(8, 4, producer_id=7, base_sequence=5, **of),
        batch(12, 4, producer_id=8, base_sequence=0, **of),
        marker(16, 7, commits=True),
        batch(17, 3),
        marker(20, 8, commits=False),
    ]
    key = files.put(1, Share(number, made, aborted=[(7, 0, 7), (8, 12, 20)]))
    files.publish()
    return key


def places_of_harm(data: bytes) -> list[int]:
    """Positions in every part: some of the batches, all borders, all of the footer if it is
    small."""
    trailer = read_trailer(data[-TAIL_BYTES:], len(data))
    end = trailer.batches_end
    inside = range(HEADER_BYTES, end, max(1, (end - HEADER_BYTES) // 15))
    after = range(end, len(data), max(1, (len(data) - end) // 25))
    boundaries = [0, HEADER_BYTES - 1, HEADER_BYTES, end - 1, end, len(data) - 1]
    return sorted({*inside, *after, *boundaries})


def harmed(files: Files, key: str) -> Iterator[tuple[str, int]]:
    """The segment with a bit flipped, then truncated, at each of its positions."""
    data = files.place.get(key)
    for at in places_of_harm(data):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        files.place.put(key, bytes(changed))
        yield "flipped", at
        files.place.put(key, data[:at])
        yield "cut", at
    files.place.put(key, data)


def block_at(files: Files, task: Task, at: int) -> tuple[int, int]:
    """The offsets of the index block that contains a byte."""
    [piece] = task.parts[0].pieces
    body = files.place.get_range(piece.key, piece.index_start, piece.index_length)
    index = SparseIndex(body, piece.start, piece.length, piece.entry_base, piece.index_checksum)
    number = index.find(at)
    after = index.block(number + 1)[2] if number + 1 < len(index) else piece.end
    return index.block(number)[2], after


def explained(made: Outcome, whole: Outcome, key: str) -> int:
    """Check that rows are unchanged and missing ones are reported; return the number of damaged
    offsets."""
    reported = [offset for error in made.noted for offset in range(error.base, error.end)]
    assert len(reported) == len(set(reported)) == made.account.counts.get(DAMAGED, 0)
    assert made.rows == {at: row for at, row in whole.rows.items() if at not in set(reported)}
    gone = whole.rows.keys() - made.rows.keys()
    assert gone <= set(reported)
    for error in made.noted:
        assert key in str(error)
        assert f"offsets [{error.base}, {error.end}) of partition 0 of topic 't'" in str(error)
    return len(reported)


@pytest.mark.slow
@pytest.mark.parametrize("codec", [0, 4], ids=["none", "zstd"])
def test_any_damage_to_segment_is_reported_or_harmless(files: Files, codec: int) -> None:
    key = simple(codec)(files)
    catalog, task = planned(files)
    whole = read(catalog, task)
    assert whole.rows == {at: (b"k%d" % at, whole.rows[at][1]) for at in whole.rows}
    assert len(whole.rows) == 240
    assert whole.account.counts == {COMPACTED: 30}
    trailer = read_trailer(files.place.get(key)[-TAIL_BYTES:], len(files.place.get(key)))
    seen = set()
    for how, at in harmed(files, key):
        made = read(catalog, task)
        damaged = explained(made, whole, key)
        within = HEADER_BYTES <= at < trailer.batches_end
        assert bool(damaged) == (within or (how == "cut" and at < HEADER_BYTES)), (how, at)
        if how == "flipped" and within:
            (error,) = made.noted
            assert (error.base, error.end) == block_at(files, task, at)
        seen.add((how, bool(damaged)))
        if not damaged:
            continue
        with pytest.raises(DamagedData) as caught:
            read(catalog, task, fails=True)
        assert key in str(caught.value)
        assert (caught.value.topic, caught.value.partition) == ("t", 0)
        assert caught.value.base == made.noted[0].base
    assert len(seen) == 4


@pytest.mark.slow
def test_damage_never_exposes_aborted_records(files: Files) -> None:
    """Any damage, including the state section, which lists aborted transactions."""
    key = transactional(files)
    catalog, task = planned(files)
    whole = read(catalog, task)
    assert sorted(whole.rows) == [5, 6, 8, 9, 10, 11, 17, 18, 19]
    assert whole.account.counts == {ABORTED: 9, CONTROL: 3}
    said = []
    for _ in harmed(files, key):
        _forget()
        try:
            explained(read(catalog, task), whole, key)
        except SourceError as failure:
            said.append(str(failure))
    assert len(said) > 5
    assert all(key in text for text in said)


def _forget() -> None:
    """Clear the process's caches of immutable files."""
    from kafkawire.reading import transactions

    transactions._read.cache_clear()


def test_empty_segment_file_is_reported(files: Files) -> None:
    key = simple()(files)
    catalog, task = planned(files)
    for data in (b"", b"x", bytes(len(files.place.get(key)))):
        files.place.put(key, data)
        made = read(catalog, task)
        assert not made.rows
        assert sum(error.end - error.base for error in made.noted) >= 240
        with pytest.raises(DamagedData, match="offsets"):
            read(catalog, task, fails=True)


def test_damaged_manifest_is_an_error(files: Files) -> None:
    """For each of its files: an error that names it, never fewer rows."""
    simple()(files)
    said = []
    for key in list(files.place.list("manifest/")):
        data = files.place.get(key)
        for at in range(0, len(data), max(1, len(data) // 15)):
            changed = bytearray(data)
            changed[at] ^= 0x10
            files.place.put(key, bytes(changed))
            try:
                catalog, task = planned(files)
            except SourceError as failure:
                said.append(str(failure))
            else:
                assert key == "manifest/current"  # JSON has bytes without meaning
                assert len(read(catalog, task).rows) == 240
        files.place.put(key, data)
    assert len(said) > 20
    assert all("manifest" in text for text in said)


def test_nulls_and_large_values_and_empty_partitions(files: Files) -> None:
    numbers = files.topic("t", 3)
    pairs: list[tuple[Cell, Cell]] = [
        (None, b"no key"),
        (b"no value", None),
        (None, None),
        (b"", b""),
        (b"large", b"x" * 10_000_000),
    ]
    made = [
        bytes(build(pairs, base_offset=at, timestamp_ms=START_MS, codec=codec))
        for at, codec in ((0, 0), (5, 4))
    ]
    files.put(1, Share(numbers[0], made), Share(numbers[2], [], base=0, end=7))
    files.publish()
    catalog, task = planned(files)
    assert read(catalog, task).rows == dict(enumerate(pairs * 2))
    assert catalog.bounds("t", 1) == (0, 0, 0)
    empty = Task((catalog.part(PartitionRange("t", 2, 0, 7)),))
    assert read(catalog, empty).account.counts == {COMPACTED: 7}
    nothing = Task((catalog.part(PartitionRange("t", 1, 0, 0)),))
    assert not read(catalog, nothing).rows


@pytest.mark.real
def test_damage_in_bucket_is_reported(
    minio: Minio, tier_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage, truncation, and objects that are replaced and deleted, in a bucket."""
    for name, text in minio.environ.items():
        monkeypatch.setenv(name, text)
    minio.client().create_bucket(Bucket=tier_url.split("/")[2])
    files = Files(open_place(tier_url))
    key = simple()(files)
    catalog, task = planned(files)
    whole = read(catalog, task)
    data = files.place.get(key)
    for changed in (data[:5000] + b"????" + data[5004:], data[:7000], data[:-10], b""):
        files.place.put(key, changed)
        damaged = explained(read(catalog, task), whole, key)
        assert bool(damaged) == (len(changed) < len(data) - 10 or changed[5000:5004] == b"????")
    [number] = files.topics["t"].partitions
    files.put(2, Share(number, [batch(0, 1), batch(100, 1)], base=0, end=270), generation=1)
    files.publish(gone=[1])
    files.place.delete([key])
    made = read(catalog, task)
    assert made.rows == {at: (b"k%d" % at, value(at)) for at in (0, 100)}
    assert made.account.counts == {COMPACTED: 268}


@pytest.mark.parametrize("name", ["segment-v1", "segment-v1-origin"])
def test_old_segments_are_read_with_and_without_an_origin(files: Files, name: str) -> None:
    """As the first version wrote them; their manifest is built by hand."""
    data = (Path(__file__).parent.parent / f"golden/{name}.segment").read_bytes()
    trailer = read_trailer(data[-TAIL_BYTES:], len(data))
    assert (trailer.optional(ORIGIN) is None) == (name == "segment-v1")
    section = trailer.section(DIRECTORY)
    found = read_directory(section_body(section, data[section.start : section.stop]))
    numbers = [entry.number for entry in found]
    for at, topic in enumerate(("t", "empty", "others")):
        facts = ManifestTopic(bytes([at]) * 16, topic, False, 1, {}, (numbers[at],))
        files.topics[topic] = facts
    uuid = bytes(range(16))
    row = ManifestObject(uuid, uuid, 0, 1, len(data), 1, 1, 0, len(found))
    entries = [
        Entry(
            e.number, e.base_offset, e.end_offset, e.start, e.length, e.index_start,
            e.index_length, e.index_checksum, e.max_timestamp, e.batches, e.records,
        )
        for e in found
    ]  # fmt: skip
    files.rows[1] = row, entries
    files.place.put(segment_key(uuid), data)
    files.publish(starts={entry.number: entry.base_offset for entry in found})
    catalog, task = planned(files)
    made = read(catalog, task)
    assert made.rows == {n: (b"k%d" % n, bytes([n]) * 900) for n in range(20)}
    others = read(catalog, Task((catalog.part(PartitionRange("others", 0, 5, 12)),)))
    assert others.rows == {7: (b"a", None)}
    assert others.account.counts == {COMPACTED: 4, ABORTED: 1, CONTROL: 1}
