"""Files uploaded to any object store and downloaded; copies between stores.

Covers: kafkawire.objectstore.staging, kafkawire.objectstore.url.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kafkawire.objectstore.errors import NoSuchObject, StoreError
from kafkawire.tiering.store.port import ObjectPart, ObjectStore
from tests.kit.tier.stores import (
    PART_BYTES,
    TEN,
    World,
    each_store,  # noqa: F401  (a fixture, by name)
    each_store_world,  # noqa: F401  (a fixture, by name)
    opened,
)

# Files


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES + 12345])
async def test_files_round_trip(store: ObjectStore, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "here").write_bytes(data)
    stored = await store.upload("segments/k", str(tmp_path / "here"))
    assert stored.size_bytes == size
    assert stored.requests >= 1
    found = await store.head("segments/k")
    assert (found.etag, found.size_bytes) == (stored.etag, size)
    back = await store.download("segments/k", str(tmp_path / "back"))
    assert (back.etag, back.size_bytes) == (stored.etag, size)
    assert (tmp_path / "back").read_bytes() == data
    length = min(size, 300_000)
    if length:
        await store.read("segments/k", [ObjectPart(size - length, length, 5)])
    assert bytes(store.memory[5 : 5 + length]) == data[size - length :]


async def test_unreadable_and_unwritable_files_are_errors(world: World, tmp_path: Path) -> None:
    store, path = world.store, tmp_path / "here"
    await store.put("k", TEN)
    path.write_bytes(b"do not touch")
    with pytest.raises(FileExistsError) as exists:
        await store.download("k", str(path))
    assert path.read_bytes() == b"do not touch"
    with pytest.raises(FileNotFoundError) as missing:
        await store.upload("k", str(tmp_path / "none"))
    assert missing.value.filename == str(tmp_path / "none")
    assert exists.value.filename == str(path)
    with pytest.raises(FileNotFoundError):
        await store.download("k", str(tmp_path / "none" / "new"))
    assert await store.get("k", 0, 2) == (b"01", (await store.head("k")).etag)


@pytest.mark.real
async def test_upload_rate_is_limited(world: World, tmp_path: Path) -> None:
    if not world.real:
        pytest.skip("the fake's time is the loop's")
    (tmp_path / "here").write_bytes(bytes(3 << 20))
    began = time.monotonic()
    await world.store.upload("k", str(tmp_path / "here"), 8 << 20)
    await world.store.download("k", str(tmp_path / "back"), 8 << 20)
    assert time.monotonic() - began > 0.3  # 6 MiB at 8 MiB/s, less what was not used before
    assert (tmp_path / "back").read_bytes() == bytes(3 << 20)


# Other tiers


async def test_copies_from_another_tier(world: World, tmp_path: Path) -> None:
    data = os.urandom(PART_BYTES + 4711)
    (tmp_path / "here").write_bytes(data)
    other = world.other()
    try:
        await other.upload("segments/a", str(tmp_path / "here"))
        await other.put("small", TEN)
        stored = await world.store.copy_from(world.beside, "segments/b", len(data), "segments/a")
        assert stored.size_bytes == len(data)
        assert stored.etag == (await world.store.head("segments/b")).etag
        await world.store.download("segments/b", str(tmp_path / "back"))
        assert (tmp_path / "back").read_bytes() == data
        await world.store.copy_from(world.beside, "small", 10)
        assert (await world.store.get("small"))[0] == TEN
        with pytest.raises(NoSuchObject):
            await world.store.copy_from(world.beside, "none", 10)
        for size in (9, 11):
            with pytest.raises(StoreError) as caught:
                await world.store.copy_from(world.beside, "wrong", size, "small")
            assert caught.value.retryable
    finally:
        await other.close()


@pytest.mark.real
@pytest.mark.parametrize("into", ["folder", "process-s3"])
async def test_copies_between_providers(tier_url: str, tmp_path: Path, into: str) -> None:
    urls = {"folder": f"{tmp_path}/tier", "process-s3": tier_url}
    kinds = [into, *(kind for kind in urls if kind != into)]
    target, source = (opened(kind, urls[kind]) for kind in kinds)
    data = os.urandom(2 * PART_BYTES + 4711)
    (tmp_path / "here").write_bytes(data)
    try:
        await source.upload("a", str(tmp_path / "here"))
        stored = await target.copy_from(urls[kinds[1]], "b", len(data), "a")
        assert stored == (await target.head("b"))._replace(requests=stored.requests)
        await target.download("b", str(tmp_path / "back"))
        assert (tmp_path / "back").read_bytes() == data
        with pytest.raises(NoSuchObject):
            await target.copy_from(urls[kinds[1]], "c", 10, "none")
    finally:
        await source.close()
        await target.close()
