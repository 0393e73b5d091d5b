"""The contract of kafkawire.tiering.store.port.ObjectStore for objects, checked for every
implementation.

Both providers, the storage process over each of them, and the fake of the simulation.
tests/objectstore/test_files.py covers files; failures that not every implementation can produce are
in tests/tiering/store/test_process.py, test_s3.py and test_fake_store.py.

Covers: kafkawire.objectstore.url,
kafkawire.objectstore.s3.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from kafkawire.objectstore.errors import ConditionFailed, NoSuchObject, Refused, StoreError
from kafkawire.tiering.store.port import ObjectPart, ObjectStore
from tests.kit.tier.direct_store import DirectStore
from tests.kit.tier.stores import (
    MEMORY_BYTES,
    TEN,
    World,
    each_store,  # noqa: F401  (a fixture, by name)
    each_store_world,  # noqa: F401  (a fixture, by name)
    outcomes,
)

# Objects


async def test_put_object_can_be_read(store: ObjectStore) -> None:
    stored = await store.put("manifest/current", TEN)
    assert (stored.size_bytes, stored.requests) == (10, 1)
    assert await store.get("manifest/current") == (TEN, stored.etag)
    assert await store.head("manifest/current") == stored
    again = await store.put("manifest/current", b"other")
    assert again.etag != stored.etag
    assert await store.get("manifest/current") == (b"other", again.etag)


RANGES: list[tuple[int, int | None, bytes]] = [
    (0, None, TEN), (3, None, TEN[3:]), (3, 4, b"3456"), (0, 10, TEN), (9, 1, b"9"),
    (8, 100, b"89"), (0, 0, b""), (5, 0, b""),
    (10, None, b""), (10, 1, b""), (25, 5, b""),
    (-3, None, b"789"), (-10, None, TEN), (-30, None, TEN), (-3, 2, b"78"), (-3, 100, b"789"),
]  # fmt: skip


async def test_get_range(store: ObjectStore) -> None:
    stored = await store.put("k", TEN)
    for start, length, found in RANGES:
        assert await store.get("k", start, length) == (found, stored.etag), (start, length)


async def test_empty_object(store: ObjectStore, tmp_path: Path) -> None:
    stored = await store.put("k", b"")
    assert stored.size_bytes == 0
    for start, length in ((0, None), (0, 5), (3, 5), (-5, None)):
        assert await store.get("k", start, length) == (b"", stored.etag)
    with pytest.raises(StoreError) as caught:
        await store.read("k", [ObjectPart(0, 1, 0)])
    assert not isinstance(caught.value, NoSuchObject | Refused)
    assert (await store.download("k", str(tmp_path / "new"))).size_bytes == 0
    assert (tmp_path / "new").read_bytes() == b""


async def test_missing_object_is_no_such_object(store: ObjectStore, tmp_path: Path) -> None:
    await store.put("folder/k", TEN)
    for key in ("none", "folder/none", "folder/k/none", "folder"):
        asked: list[Awaitable[Any]] = [store.get(key), store.get(key, 2, 3), store.get(key, 0, 0)]
        asked += [
            store.head(key),
            store.read(key, [ObjectPart(0, 1, 0)]),
            store.download(key, str(tmp_path / "new")),
        ]
        assert [type(failure) for failure in await outcomes(asked)] == [NoSuchObject] * 6
    assert not (tmp_path / "new").exists()
    assert not NoSuchObject.retryable


async def test_delete(store: ObjectStore) -> None:
    await asyncio.gather(*(store.put(f"a/{n}", TEN) for n in range(4)))
    assert await store.delete(["a/0", "a/2", "none", "none/at/all"]) >= 1
    assert [found.key for found in await store.list("")] == ["a/1", "a/3"]
    assert await store.delete([]) == 0
    assert await store.delete(["a/0"]) == 1
    with pytest.raises(NoSuchObject):
        await store.get("a/0")


KEYS = [
    "with spaces in it", "Ünïcode/ß/日本/😀", "a+b&c=d?e#f%20g", "tilde~(and)'quotes'!*",
    "x" * 200, "deep/" * 20 + "k", "dots.in.it..and/k.", "-", "_/__",
]  # fmt: skip


async def test_unusual_keys(store: ObjectStore, tmp_path: Path) -> None:
    for number, key in enumerate(KEYS):
        new = str(tmp_path / str(number))
        stored = await store.put(key, TEN)
        assert await store.get(key, -3) == (b"789", stored.etag)
        assert await store.head(key) == stored
        await store.read(key, [ObjectPart(2, 3, 7)])
        assert bytes(store.memory[7:10]) == b"234"
        assert [found.key for found in await store.list(key[:3])] == [key]
        assert [found.key for found in await store.list("")] == [key]
        await store.download(key, new)
        await store.delete([key])
        assert await store.list("") == []
        await store.upload(key, new)
        assert await store.get(key) == (TEN, (await store.head(key)).etag)
        await store.delete([key])


NO_KEYS = ["", "/a", "a/", "a//b", "../a", "a/../b", ".", "a/.b", "line\nfeed", "\0", "x" * 1025]


async def test_invalid_keys_are_refused(world: World, tmp_path: Path) -> None:
    if not world.real:
        pytest.skip("the fake is asked by our own code only")
    store, path = world.store, str(tmp_path / "new")
    for key in NO_KEYS:
        asked: list[Awaitable[Any]] = [store.get(key), store.head(key), store.put(key, TEN)]
        asked += [store.delete(["a", key]), store.download(key, path), store.upload(key, __file__)]
        assert [type(failure) for failure in await outcomes(asked)] == [ValueError] * 6, key


# Conditions


async def test_put_if_absent(store: ObjectStore) -> None:
    await store.put("owner", b"first", if_absent=True)
    with pytest.raises(ConditionFailed) as caught:
        await store.put("owner", b"second", if_absent=True)
    assert not caught.value.retryable
    assert (await store.get("owner"))[0] == b"first"
    await store.delete(["owner"])
    await store.put("owner", b"third", if_absent=True)


async def test_put_if_match(world: World) -> None:
    store = world.store
    if not world.compares_etags:
        first = await store.put("owner", b"first")
        with pytest.raises(Refused):
            await store.put("owner", b"second", if_match=first.etag)
        assert await store.get("owner") == (b"first", first.etag)
        assert [found.key for found in await store.list("")] == ["owner"]
        return
    with pytest.raises(ConditionFailed):
        await store.put("owner", b"x", if_match="0123456789abcdef0123456789abcdef")
    first = await store.put("owner", b"first")
    second = await store.put("owner", b"second", if_match=first.etag)
    with pytest.raises(ConditionFailed):
        await store.put("owner", b"third", if_match=first.etag)
    assert await store.get("owner") == (b"second", second.etag)
    await store.delete(["owner"])
    with pytest.raises(ConditionFailed):
        await store.put("owner", b"fourth", if_match=second.etag)
    assert await store.list("") == []


async def test_one_of_concurrent_conditional_puts_succeeds(world: World) -> None:
    store = world.store
    await store.put("other", b"")  # the bucket exists
    made = await outcomes([store.put("owner", b"%d" % n, if_absent=True) for n in range(8)])
    (winner,) = [n for n, outcome in enumerate(made) if not isinstance(outcome, Exception)]
    assert (await store.get("owner"))[0] == b"%d" % winner
    etag = made[winner].etag
    changed: list[Any] = []
    if world.compares_etags:
        changed = await outcomes([store.put("owner", b"+%d" % n, if_match=etag) for n in range(8)])
        (winner,) = [n for n, outcome in enumerate(changed) if not isinstance(outcome, Exception)]
        assert (await store.get("owner"))[0] == b"+%d" % winner
    failed = [outcome for outcome in made + changed if isinstance(outcome, Exception)]
    assert {type(failure) for failure in failed} == {ConditionFailed}


# Listing


async def test_list_is_ordered_by_key(world: World) -> None:
    store = world.store
    keys = ["a-b/x", "a/b", "a/b/c0", "a/c", "a0", "ab", "b/1", "ä"]
    keys.remove("a/b")  # not every store allows an object and a folder of the same name
    stored = dict(zip(keys, [await store.put(key, key.encode()) for key in keys], strict=True))
    found = await store.list("")
    assert [one.key for one in found] == sorted(keys)
    assert {one.key: (one.size_bytes, one.etag) for one in found} == {
        key: (one.size_bytes, one.etag) for key, one in stored.items()
    }
    if world.real:
        assert all(abs(one.modified_ms - time.time() * 1000) < 86_400_000 for one in found)
    for prefix in ("a", "a/", "a/b", "a/b/", "a/b/c0", "a-", "b/1", "c", "a/b/c00", "ä"):
        expected = sorted(key for key in keys if key.startswith(prefix))
        assert [one.key for one in await store.list(prefix)] == expected, prefix
        for after in ("a", "a-b", "a/b/c", "a/b/c0", "a/zzz", "a0", "b/1", "b/2", "zz"):
            above = [key for key in expected if key > after]
            assert [one.key for one in await store.list(prefix, after)] == above, (prefix, after)
            assert [one.key for one in await store.list(prefix, after, 2)] == above[:2]


@pytest.mark.slow
async def test_list_is_paged_by_a_thousand(store: ObjectStore) -> None:
    keys = [f"segments/{n:05}" for n in range(1003)]
    await store.put(keys[0], TEN)
    for first in range(1, len(keys), 100):
        await asyncio.gather(*(store.put(key, b"") for key in keys[first : first + 100]))
    page = await store.list("segments/")
    assert [one.key for one in page] == keys[:1000]
    assert [one.key for one in await store.list("segments/", page[-1].key)] == keys[1000:]
    paged: list[str] = []
    while page := await store.list("segments/", paged[-1] if paged else "", 301):
        paged += [one.key for one in page]
    assert paged == keys
    await store.delete(keys[:1000])
    assert [one.key for one in await store.list("")] == keys[1000:]


async def test_request_bounds_are_enforced(world: World) -> None:
    if world.kind not in ("folder", "shared-folder", "s3", "azure"):
        with pytest.raises(ValueError, match="1001 "):
            await world.store.delete([str(n) for n in range(1001)])
    if world.kind.startswith("process"):
        for limit in (0, -1, 1001):
            with pytest.raises(ValueError, match="1 to 1000"):
                await world.store.list("", "", limit)


# Reading


async def test_read_into_memory(store: ObjectStore, tmp_path: Path) -> None:
    data = os.urandom(900_000)
    (tmp_path / "here").write_bytes(data)
    await store.upload("k", str(tmp_path / "here"))
    store.memory[:] = bytes(MEMORY_BYTES)
    await store.read(
        "k",
        [
            ObjectPart(100, 1000, 50_000),
            ObjectPart(1100, 300_000, 200_000),
            ObjectPart(301_100, 7, 0),
        ],
    )
    expected = bytearray(MEMORY_BYTES)
    expected[50_000:51_000] = data[100:1100]
    expected[200_000:500_000] = data[1100:301_100]
    expected[0:7] = data[301_100:301_107]
    assert bytes(store.memory) == bytes(expected)
    await store.read("k", [ObjectPart(899_990, 10, MEMORY_BYTES - 10)])
    assert bytes(store.memory[-10:]) == data[-10:]
    together = [store.read("k", [ObjectPart(n * 1000, 1000, n * 1000)]) for n in range(64)]
    await asyncio.gather(*together)
    assert bytes(store.memory[:64_000]) == data[:64_000]


async def test_object_shorter_than_requested_is_an_error(store: ObjectStore) -> None:
    await store.put("k", bytes(100_000))
    await store.read("k", [ObjectPart(99_999, 1, 0)])
    await store.put("k", bytes(50_000))  # it was truncated
    for start, length in ((0, 50_001), (49_999, 2), (50_000, 1), (99_999, 1)):
        with pytest.raises(StoreError) as caught:
            await store.read("k", [ObjectPart(start, length, 0)])
        assert not isinstance(caught.value, NoSuchObject | Refused)
    await store.read("k", [ObjectPart(0, 50_000, 0)])


async def test_invalid_parts_are_refused(world: World) -> None:
    if not world.kind.startswith("process"):
        pytest.skip("checked in the broker's end")
    await world.store.put("k", bytes(100))
    for parts in (
        [], [ObjectPart(0, 0, 0)], [ObjectPart(-1, 5, 0)],
        [ObjectPart(0, 5, 0), ObjectPart(6, 5, 5)],
        [ObjectPart(0, 5, MEMORY_BYTES - 4)], [ObjectPart(0, 5, -1)],
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"parts|Part"):
            await world.store.read("k", parts)


# The end


async def test_closed_store_refuses_calls(world: World) -> None:
    if isinstance(world.store, DirectStore):
        pytest.skip("a provider is not closed")
    await world.store.put("k", TEN)
    await world.store.close()
    await world.store.close()
    with pytest.raises(StoreError, match="Closed"):
        await world.store.get("k")
