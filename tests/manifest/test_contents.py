"""Locating records by the one rule for readers; reading a manifest that changes meanwhile."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.manifest.columns import ManifestPartition
from kafkawire.manifest.contents import Manifest
from kafkawire.manifest.fold import empty, fold
from kafkawire.manifest.format import pack
from kafkawire.manifest.keys import CURRENT, delta_key, snapshot_key
from kafkawire.manifest.reader import (
    Current,
    LostManifest,
    NoManifest,
    Obsolete,
    pack_current,
    read_manifest,
    read_manifest_async,
    unpack_current,
)
from kafkawire.manifest.state import Delta, ManifestTopic
from tests.kit.tier.manifests import CLUSTER, EPOCHS, add, entry, sample, uuid

START = empty(CLUSTER, 1, 1, 0, 0)
_ranges = st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 3), st.integers(1, 2))


def world(objects: list[tuple[int, int, int, int]], log_start: int, end: int) -> Manifest:
    """Objects of one entry each: (base, length, generation, partition)."""
    delta = Delta(1, CLUSTER, 1, 1, 1)
    delta.topics = [ManifestTopic(uuid(1), "t", False, 1, {}, (1, 2))]
    delta.partitions.append(ManifestPartition(1, log_start, end, EPOCHS))
    for at, (base, length, generation, number) in enumerate(objects):
        add(delta, at + 1, [entry(number, base, base + length)], generation)
    return Manifest(fold(START, [delta]))


@given(st.lists(_ranges, max_size=12), st.integers(0, 20), st.integers(0, 40))
def test_offset_is_located_by_highest_generation(
    objects: list[tuple[int, int, int, int]], log_start: int, end: int
) -> None:
    manifest = world(objects, log_start, end)
    expected: dict[int, int] = {}
    for offset in range(log_start, end):
        covering = [
            (generation, at)
            for at, (base, length, generation, number) in enumerate(objects)
            if number == 1 and base <= offset < base + length
        ]
        if covering:
            expected[offset] = max(covering)[1]
    found: dict[int, int] = {}
    last = -1
    for span in manifest.spans(1):
        assert last <= span.base < span.end
        last = span.end
        assert manifest.object_of(span.entry) == span.object
        for offset in range(span.base, span.end):
            found[offset] = span.object
    assert found == expected
    assert manifest.spans(2) == [], "according to the manifest nothing of it was ever uploaded"
    assert manifest.spans(3) == []


def test_queries_of_manifest() -> None:
    delta = sample()
    delta.sequence = 1
    manifest = Manifest(fold(START, [delta]))
    assert sorted(manifest.topics) == ["empty", "orders", "täglich"]
    assert list(manifest.numbers) == [3, 7, 1 << 40]
    assert manifest.get_partition(4) is None
    assert manifest.get_partition(7) == ManifestPartition(7, 2, 30, EPOCHS + bytes(12))
    assert manifest.find_object(uuid(9)) is None
    found = manifest.find_object(uuid(3))
    assert found is not None
    assert (found.generation, found.entries) == (4, 2)
    assert manifest.object_entries(2) == [entry(3, 10, 20), entry(7, 3, 30)]
    assert manifest.object_entries(1) == []
    assert (manifest.sequence, manifest.cluster.next_partition) == (1, 9)
    assert manifest.deleted == {uuid(20): 1_800_000_000_000}


def bucket(snapshot: int, deltas: int) -> dict[str, bytes]:
    """A manifest with a snapshot of this many deltas, and more after it; delta n adds offset n."""
    all_of_them = [one_delta(n) for n in range(1, snapshot + deltas + 1)]
    folded = fold(START, all_of_them[:snapshot])
    objects = {
        CURRENT: pack_current(Current(snapshot)),
        snapshot_key(snapshot): pack(folded),
    }
    for delta in all_of_them[snapshot:]:
        objects[delta_key(delta.sequence)] = pack(delta)
    return objects


def one_delta(n: int) -> Delta:
    delta = Delta(n, CLUSTER, 1, 1, n)
    delta.topics = [ManifestTopic(uuid(1), "t", False, 1, {}, (1,))] if n == 1 else []
    delta.partitions.append(ManifestPartition(1, 0, n, EPOCHS))
    add(delta, n, [entry(1, n - 1, n)])
    return delta


def ends(manifest: Manifest) -> int:
    spans = manifest.spans(1)
    assert [(span.base, span.end) for span in spans] == [(n, n + 1) for n in range(len(spans))]
    return len(spans)


@pytest.mark.parametrize(("snapshot", "deltas"), [(0, 0), (0, 5), (5, 0), (4, 3)])
def test_read_snapshot_and_deltas(snapshot: int, deltas: int) -> None:
    objects = bucket(snapshot, deltas)
    assert ends(read_manifest(objects.__getitem__)) == snapshot + deltas

    async def get(key: str) -> bytes:
        return objects[key]

    assert ends(asyncio.run(read_manifest_async(get))) == snapshot + deltas


def changing(at: int, change: Callable[[dict[str, bytes]], None]) -> Callable[[str], bytes]:
    """A bucket that changes before its `at`-th request."""
    objects = bucket(2, 3)
    count = 0

    def get(key: str) -> bytes:
        nonlocal count
        if count == at:
            change(objects)
        count += 1
        return objects[key]

    return get


@pytest.mark.parametrize("at", range(10))
def test_concurrent_fold_does_not_affect_reader(at: int) -> None:
    """Even one that removes at once what it folded."""

    def folded(objects: dict[str, bytes]) -> None:
        objects.clear()
        objects.update(bucket(5, 2))

    assert ends(read_manifest(changing(at, folded))) >= 5


def test_missing_and_damaged_files_are_named() -> None:
    objects: dict[str, bytes] = {}
    with pytest.raises(NoManifest):
        read_manifest(objects.__getitem__)
    objects = bucket(2, 1)
    del objects[snapshot_key(2)]
    with pytest.raises(LostManifest, match="snapshot-00000000000000000002"):
        read_manifest(objects.__getitem__)
    objects = bucket(2, 1)
    objects[delta_key(3)] = objects[delta_key(3)][:-1]
    with pytest.raises(FormatError, match="delta-00000000000000000003 cannot be read: it has"):
        read_manifest(objects.__getitem__)
    objects[delta_key(3)] = pack(one_delta(4))
    with pytest.raises(FormatError, match="sequence number 4"):
        read_manifest(objects.__getitem__)
    objects = bucket(2, 1)
    objects[snapshot_key(2)] = pack(one_delta(2))
    with pytest.raises(FormatError, match="is a delta"):
        read_manifest(objects.__getitem__)


def test_files_missing_in_folder_are_named() -> None:
    objects = bucket(2, 3)

    def get(key: str) -> bytes:
        if key not in objects:
            raise FileNotFoundError(key)
        return objects[key]

    assert ends(read_manifest(get)) == 5


def test_reading_imports_no_broker_module() -> None:
    code = (
        "import sys, kafkawire.manifest.reader as r; r.read_manifest; "
        "print([m for m in sys.modules if m.split('.')[0] in ('log', 'offsets', 'groups', "
        "'tiering', 'asyncio', 'sqlalchemy') or m.startswith(('kafkawire.', )) and "
        "m.split('.')[1] not in ('codec', 'crc32c', 'manifest')])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_current_file_format() -> None:
    current = Current(9, (Obsolete(0, 1, 4, 77), Obsolete(4, 5, 9, 99)))
    assert unpack_current(pack_current(current)) == current
    assert current.obsolete[0].keys() == [delta_key(n) for n in (1, 2, 3, 4)] + [snapshot_key(0)]
    with pytest.raises(NewerFormatError, match="format 3"):
        unpack_current(b'{"format": 3}')
    for wrong in (b"", b"[]", b"{}", b"7", b'{"format": 1}', b'{"format": "1", "snapshot": 1}',
                  b'{"format": 1, "snapshot": -1}', b'{"format": 1, "snapshot": true}', b"\xff",
                  b'{"format": 1, "snapshot": 1, "obsolete": 3}', b"[" * 100_000,
                  b'{"format": 1, "snapshot": 1, "obsolete": [{}]}',
                  b'{"format": 2, "snapshot": 1}',
                  pack_current(current).replace(b"77", b"76")):  # fmt: skip
        with pytest.raises(FormatError):
            unpack_current(wrong)
    says = json.loads(pack_current(current)) | {"new": 1, "format": 1}
    del says["crc"]
    assert unpack_current(json.dumps(says).encode()) == current, "format 1, which has no checksum"
