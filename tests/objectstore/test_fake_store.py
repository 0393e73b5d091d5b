"""The faults of the object store in memory, which no real provider can be asked to produce."""

from __future__ import annotations

import asyncio
import random

import pytest

from kafkawire.objectstore.errors import NoSuchObject, Refused, SlowDown, StoreError
from kafkawire.tiering.store.port import ObjectPart
from tests.kit.memfs import MemFileSystem
from tests.kit.simloop import SimLoop, run
from tests.kit.tier.fake_bucket import FakeBucket, StoreFaults
from tests.kit.tier.fake_store import FakeStore


def bucket(**faults: float | bool | str | tuple[float, float]) -> FakeBucket:
    return FakeBucket(random.Random(1), StoreFaults(**faults))  # type: ignore[arg-type]


async def code_of(store: FakeStore, key: str = "k") -> str:
    """The error code of a PUT; empty if it succeeded."""
    try:
        await store.put(key, b"data")
    except StoreError as failure:
        return failure.code
    return ""


def test_delays_take_virtual_time_only() -> None:
    loop = SimLoop()
    store = FakeStore(bucket(delay_s=(3600.0, 3600.0)))
    run(loop, store.put("k", b"data"))
    assert loop.now == pytest.approx(7200)
    assert [(call.kind, call.key, call.code) for call in store.bucket.calls] == [("put", "k", "")]


async def test_each_fault_raises_its_error() -> None:
    store = FakeStore(bucket(error_rate=1.0))
    assert await code_of(store) == "InternalError"
    store.bucket.faults = StoreFaults(slow_down_rate=1.0)
    with pytest.raises(SlowDown):
        await store.put("k", b"data")
    store.bucket.faults = StoreFaults(refused="InvalidAccessKeyId")
    with pytest.raises(Refused):
        await store.put("k", b"data")
    store.bucket.faults = StoreFaults(down=True, timeout_s=0.0)
    assert await code_of(store) == "EndpointConnectionError"
    assert not store.objects
    assert store.requests["put"] == 4


async def test_completed_request_may_be_reported_as_failed() -> None:
    store = FakeStore(bucket(lost_rate=1.0))
    with pytest.raises(StoreError) as caught:
        await store.put("k", b"data", if_absent=True)
    assert caught.value.retryable
    assert store.objects == {"k": b"data"}
    store.bucket.faults.lost_rate = 0.0
    assert await store.get("k") == (b"data", store.bucket.held["k"].etag)


async def test_body_ends_early() -> None:
    store = FakeStore(bucket(partial_rate=1.0))
    store.bucket.store("k", b"0123456789")
    with pytest.raises(StoreError):
        await store.read("k", [ObjectPart(0, 5, 0), ObjectPart(5, 5, 5)])
    assert bytes(store.memory[:10]) == b"01234" + bytes(5)
    with pytest.raises(StoreError):
        await store.get("k")


async def test_objects_can_be_lost_and_truncated() -> None:
    store = FakeStore(bucket())
    for key in ("a", "b"):
        await store.put(key, b"0123456789")
    store.bucket.forget("a")
    store.bucket.truncate("b", 4)
    with pytest.raises(NoSuchObject):
        await store.read("a", [ObjectPart(0, 10, 0)])
    with pytest.raises(StoreError):
        await store.read("b", [ObjectPart(0, 10, 0)])
    assert store.bucket.harmed == {"a", "b"}


@pytest.mark.parametrize("how", ["crash", "cancel"])
def test_sent_request_may_complete_after_cancellation(how: str) -> None:
    done = set()
    for seed in range(20):
        loop, world = SimLoop(), bucket(delay_s=(0.1, 0.1))
        world.rng.seed(seed)
        store = FakeStore(world)

        async def main(store: FakeStore = store) -> None:
            call = asyncio.ensure_future(store.put("k", b"data"))
            await asyncio.sleep(0.05)
            if how == "cancel":
                call.cancel()
                await asyncio.sleep(0.1)
            else:
                store.crash()

        run(loop, main())
        done.add("k" in store.objects)
    assert done == ({True} if how == "cancel" else {True, False})


async def test_hook_is_called_at_every_moment_and_files_are_in_memory() -> None:
    fs, world = MemFileSystem(), bucket()
    fs.makedirs("/data")
    file = fs.open("/data/a", create=True)
    file.pwritev([b"content"], 0)
    seen = []
    world.hook = lambda moment, kind, key: seen.append((moment, kind, key, key in world.held))
    store = FakeStore(world, fs)
    await store.upload("k", "/data/a")
    assert seen == [
        ("call", "put", "k", False),
        ("done", "put", "k", True),
        ("answer", "put", "k", True),
    ]
    await store.download("k", "/data/b")
    assert bytes(fs.files["/data/b"].data) == b"content"
    with pytest.raises(FileNotFoundError):
        await store.upload("k", "/data/c")
