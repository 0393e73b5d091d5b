"""Objects that consist of ranges of local files, stored in any object store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from pathlib import Path

import pytest

from kafkawire.objectstore.calls import Call, Cancelled
from kafkawire.objectstore.errors import ConditionFailed, NoSuchObject, StoreError
from kafkawire.objectstore.file_ranges import MAX_RANGES, check_ranges, read_ranges
from kafkawire.objectstore.port import MAX_GET_BYTES, FileRange
from kafkawire.tiering.store.port import ObjectStore
from tests.kit.memfs import MemFileSystem
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.tier.fake_store import FakeStore
from tests.kit.tier.stores import (
    TEN,
    World,
    each_store,  # noqa: F401  (a fixture, by name)
    each_store_world,  # noqa: F401  (a fixture, by name)
    outcomes,
)

KEY = "log/00000000000000000007/00000000000000000000"
HEAD = b"head, of no multiple of 8"


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


async def test_ranges_become_one_object(store: ObjectStore, tmp_path: Path) -> None:
    one, two = str(tmp_path / "a"), str(tmp_path / "b")
    files = {one: os.urandom(100_000), two: os.urandom(100_000)}
    (tmp_path / "a").write_bytes(files[one])
    (tmp_path / "b").write_bytes(files[two])
    ranges = [
        FileRange(one, 0, 64), FileRange(two, 17, 1), FileRange(one, 64, 70_001),
        FileRange(two, 99_991, 9), FileRange(one, 0, 7), FileRange(two, 0, 100_000),
    ]  # fmt: skip
    expected = HEAD + b"".join(
        padded(files[path][start : start + length]) for path, start, length in ranges
    )
    stored = await store.put_ranges(KEY, HEAD, ranges)
    assert (stored.size_bytes, stored.requests) == (len(expected), 1)
    assert await store.get(KEY) == (expected, stored.etag)
    assert await store.head(KEY) == stored


async def test_files_may_grow(store: ObjectStore, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with path.open("wb", buffering=0) as file:
        for number in range(5):
            file.write(b"%8d" % number)
            await store.put_ranges(f"log/{number}", b"", [FileRange(str(path), 8 * number, 8)])
    for number in range(5):
        assert (await store.get(f"log/{number}"))[0] == b"%8d" % number


async def test_object_without_ranges_is_its_head(store: ObjectStore) -> None:
    await store.put_ranges(KEY, HEAD, [])
    assert (await store.get(KEY))[0] == HEAD


async def test_stored_object_is_not_replaced(store: ObjectStore, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(TEN)
    stored = await store.put(KEY, b"a fence", if_absent=True)
    with pytest.raises(ConditionFailed) as caught:
        await store.put_ranges(KEY, HEAD, [FileRange(str(path), 0, 10)])
    assert not caught.value.retryable
    assert await store.get(KEY) == (b"a fence", stored.etag)
    with pytest.raises(ConditionFailed):
        await store.put_ranges(KEY, b"", [])
    await store.delete([KEY])
    await store.put_ranges(KEY, b"", [FileRange(str(path), 2, 8)])
    with pytest.raises(ConditionFailed):
        await store.put(KEY, b"a fence", if_absent=True)
    assert (await store.get(KEY))[0] == TEN[2:]


async def test_one_of_concurrent_calls_succeeds(store: ObjectStore, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(bytes(range(80)))
    await store.put("other", b"")  # the bucket exists
    made = await outcomes(
        [store.put_ranges(KEY, b"", [FileRange(str(path), 8 * n, 8)]) for n in range(8)]
    )
    (winner,) = [n for n, outcome in enumerate(made) if not isinstance(outcome, Exception)]
    assert (await store.get(KEY))[0] == bytes(range(8 * winner, 8 * winner + 8))
    failed = [outcome for outcome in made if isinstance(outcome, Exception)]
    assert {type(failure) for failure in failed} == {ConditionFailed}


async def test_missing_and_short_files_are_errors(store: ObjectStore, tmp_path: Path) -> None:
    path, missing = tmp_path / "journal", str(tmp_path / "none")
    path.write_bytes(TEN)
    sound = FileRange(str(path), 0, 10)
    with pytest.raises(FileNotFoundError) as absent:
        await store.put_ranges(KEY, b"", [sound, FileRange(missing, 0, 1)])
    assert absent.value.filename == missing
    for start, length in ((0, 11), (9, 2), (10, 1), (1 << 40, 1)):
        with pytest.raises(OSError, match="the file ends at") as short:
            await store.put_ranges(KEY, b"", [sound, FileRange(str(path), start, length)])
        assert short.value.filename == str(path)
    assert await store.list("") == []
    with pytest.raises(NoSuchObject):
        await store.head(KEY)
    await store.put_ranges(KEY, b"", [sound])


async def test_invalid_ranges_are_refused(world: World) -> None:
    for ranges in (
        [FileRange(__file__, -1, 5)],
        [FileRange(__file__, 0, 0)],
        [FileRange(__file__, 0, -5)],
        [FileRange(__file__, 0, MAX_GET_BYTES + 1)],
        [FileRange(__file__, 0, MAX_GET_BYTES // 2 + 1)] * 2,
        [FileRange(__file__, 0, 1)] * (MAX_RANGES + 1),
    ):
        with pytest.raises(ValueError, match=r"range of|ranges|at most"):
            await world.store.put_ranges(KEY, b"", ranges)
    if world.real:
        with pytest.raises(ValueError, match="key"):
            await world.store.put_ranges("../a", b"", [])
    assert await world.store.list("") == []


def test_size_is_that_of_the_object(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(TEN)
    ranges = [FileRange(str(path), 0, length) for length in range(1, 11)]
    assert check_ranges(HEAD, ranges) == len(read_ranges(HEAD, ranges, Call()))
    assert check_ranges(b"", [FileRange("x", 0, MAX_GET_BYTES)]) == MAX_GET_BYTES


def test_cancelled_call_reads_no_more_files() -> None:
    call = Call()
    call.cancel()
    with pytest.raises(Cancelled):
        read_ranges(HEAD, [FileRange("/there/is/none", 0, 1)], call)


async def test_fake_reads_files_in_memory_and_loses_answers() -> None:
    fs, bucket = MemFileSystem(), FakeBucket(random.Random(1))
    fs.makedirs("/data")
    fs.open("/data/a", create=True).pwritev([b"content"], 0)
    store = FakeStore(bucket, fs)
    bucket.faults.lost_rate = 1.0
    with pytest.raises(StoreError) as caught:
        await store.put_ranges(KEY, b"head", [FileRange("/data/a", 3, 4)])
    assert caught.value.retryable
    assert store.objects == {KEY: b"headtent" + bytes(4)}
    bucket.faults.lost_rate = 0.0
    with pytest.raises(ConditionFailed):
        await store.put_ranges(KEY, b"head", [FileRange("/data/a", 3, 4)])
    for path, length in (("/data/a", 8), ("/data/b", 1)):
        with pytest.raises(OSError, match=path):
            await store.put_ranges("log/b", b"", [FileRange(path, 0, length)])
    assert list(store.objects) == [KEY]


async def test_cancelled_call_may_have_stored_the_object(
    store: ObjectStore, tmp_path: Path
) -> None:
    """It is complete or not there, and the next call for the key is answered accordingly."""
    path = tmp_path / "journal"
    path.write_bytes(bytes(1 << 20))
    await store.put("other", b"")
    call = asyncio.ensure_future(store.put_ranges(KEY, b"", [FileRange(str(path), 0, 1 << 20)]))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    with contextlib.suppress(ConditionFailed):
        await store.put_ranges(KEY, b"", [FileRange(str(path), 0, 1 << 20)])
    assert (await store.get(KEY))[0] == bytes(1 << 20)
