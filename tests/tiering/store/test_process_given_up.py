"""Calls to the storage process that are cancelled, queued, or slow."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from kafkawire.objectstore.errors import StoreError
from kafkawire.objectstore.port import FileRange
from kafkawire.tiering.store import process as link
from kafkawire.tiering.store import process_protocol as calls
from kafkawire.tiering.store.port import ObjectPart
from kafkawire.tiering.store.process import StoreProcess
from tests.kit.tier.store_process import (
    begun,
    folder_process,  # noqa: F401  (a fixture, by name)
    short_pause,
    stopped,
)
from tests.kit.waiting import until


async def test_cancelled_call_releases_slot_and_response(store: StoreProcess) -> None:
    pid = await stopped(store)
    waiting = begun(*(store.get("k") for _ in range(100)))
    await short_pause()
    for task in waiting:
        task.cancel()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {asyncio.CancelledError}
    behind = begun(*(store.get("k", n, 1) for n in range(50)))
    os.kill(pid, signal.SIGCONT)
    assert [data for data, _ in await asyncio.gather(*behind)] == [bytes([n]) for n in range(50)]
    assert store.pid == pid


async def test_cancelled_read_ends_when_its_memory_is_free(store: StoreProcess) -> None:
    pid = await stopped(store)
    reading, waiting = begun(store.read("k", [ObjectPart(0, 50, 0)]), store.get("k"))
    await short_pause()
    reading.cancel()
    await short_pause()
    reading.cancel()  # a second cancellation has no effect
    await short_pause()
    assert not reading.done()
    os.kill(pid, signal.SIGCONT)
    with pytest.raises(asyncio.CancelledError):
        await reading
    store.memory[:50] = b"x" * 50
    await waiting
    await store.get("k")
    assert bytes(store.memory[:50]) == b"x" * 50


async def test_cancelled_read_ends_when_child_dies(store: StoreProcess) -> None:
    pid = await stopped(store)
    (reading,) = begun(store.read("k", [ObjectPart(0, 50, 0)]))
    await short_pause()
    reading.cancel()
    await short_pause()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(asyncio.CancelledError):
        await reading


@pytest.mark.real
async def test_cancelled_upload_ends(store: StoreProcess, tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(bytes(8 << 20))
    await store.put("k", b"x")
    (upload,) = begun(store.upload("slow", str(tmp_path / "here"), 1 << 20))
    await short_pause()
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    unfinished = tmp_path / "tier" / ".unfinished"
    await until(lambda: not list(unfinished.iterdir()))
    assert [one.key for one in await store.list("")] == ["k"]


@pytest.mark.real
async def test_killed_upload_leaves_nothing(store: StoreProcess, tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(bytes(8 << 20))
    await store.put("k", b"x")
    (upload,) = begun(store.upload("slow", str(tmp_path / "here"), 1 << 20))
    unfinished = tmp_path / "tier" / ".unfinished"
    await until(lambda: bool(list(unfinished.iterdir())))
    assert store.pid is not None
    os.kill(store.pid, signal.SIGKILL)
    with pytest.raises(StoreError, match="SIGKILL"):
        await upload
    await store.put("k", b"y")
    assert list(unfinished.iterdir()) == []


async def test_number_of_waiting_calls_is_bounded(
    store: StoreProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "MAX_WAITING", 5)
    pid = await stopped(store)
    in_child = calls.REST_THREADS * calls.CALLS_PER_THREAD
    waiting = begun(*(store.get("k") for _ in range(in_child + 5)))
    await short_pause()
    with pytest.raises(StoreError, match="Busy: 5 calls wait"):
        await store.get("k")
    (read,) = begun(store.read("k", [ObjectPart(0, 1, 0)]))  # has a lane of its own
    os.kill(pid, signal.SIGCONT)
    await asyncio.gather(read, *waiting)
    await store.get("k")


async def test_slow_call_does_not_delay_others(store: StoreProcess, tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(bytes(8 << 20))
    await store.put("k", b"x")
    uploads = begun(*(store.upload(f"u{n}", str(tmp_path / "here"), 1 << 20) for n in range(12)))
    await short_pause()
    for _ in range(10):
        await store.read("k", [ObjectPart(0, 1, 0)])
        await store.put("k", b"y")
    assert not any(task.done() for task in uploads)
    for task in uploads:
        task.cancel()
    await asyncio.gather(*uploads, return_exceptions=True)


async def test_log_objects_do_not_wait_for_other_calls(store: StoreProcess, tmp_path: Path) -> None:
    """Every other lane is full of calls that do not end."""
    await store.put("k", b"x")
    os.mkfifo(tmp_path / "tier" / "slow")  # opening it waits for a writer
    (tmp_path / "here").write_bytes(bytes(100))
    slow = begun(
        *(store.upload(f"u{n}", str(tmp_path / "tier" / "slow")) for n in range(20)),
        *(store.get("slow") for _ in range(20)),
        *(store.read("slow", [ObjectPart(0, 1, 0)]) for _ in range(40)),
    )
    await short_pause()
    ranges = [FileRange(str(tmp_path / "here"), 0, 100)]
    for number in range(20):
        await store.put_ranges(f"log/{number}", b"", ranges)
    assert not any(call.done() for call in slow)
    writer = os.open(tmp_path / "tier" / "slow", os.O_RDWR)
    try:
        for call in slow:
            call.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
    finally:
        os.close(writer)
    assert (await store.get("log/19"))[0] == bytes(104)
