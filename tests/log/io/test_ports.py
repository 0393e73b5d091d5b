"""The contract of kafkawire.log.io.ports, checked for the real disk and the one in memory."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import random
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kafkawire.log.io.disk import DiskFile, DiskFileSystem, DiskLock, ThreadOffload, real_env
from kafkawire.log.io.gathered_write import MAX_IOV, write_whole
from kafkawire.log.io.ports import Env, FileSystem, Offload
from tests.kit.env import InlineOffload, memory_env, sim_env
from tests.kit.memfs import MemFileSystem
from tests.kit.simloop import Deadlock, SimLoop, run


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    if request.param == "disk":
        return DiskFileSystem(), str(tmp_path)
    fs = MemFileSystem()
    fs.makedirs("/data")
    return fs, "/data"


def test_gathered_writes_are_read_back(place: tuple[FileSystem, str]) -> None:
    fs, folder = place
    file = fs.open(f"{folder}/f", create=True)
    assert file.pwritev([b"ab", bytearray(b"cd"), memoryview(b"ef")], 3) == 6
    assert file.size() == 9
    assert file.pread(100, 0) == b"\0\0\0abcdef"
    assert file.pread(2, 4) == b"bc"
    assert file.pread(2, 9) == b""
    file.close()
    assert fs.open(f"{folder}/f").pread(3, 3) == b"abc"


def test_bytes_just_read_are_cached(place: tuple[FileSystem, str]) -> None:
    fs, folder = place
    file = fs.open(f"{folder}/f", create=True)
    file.pwritev([bytes(300_000)], 0)
    file.sync()
    file.pread(300_000, 0)
    assert file.is_cached(300_000, 0)
    assert file.is_cached(1, 299_999)


def test_bytes_evicted_from_page_cache_are_not_cached() -> None:
    """Answered by a replacement of the kernel: file systems differ in which pages they drop."""
    asked: list[int] = []

    def preadv(fd: int, buffers: list[bytearray], position: int, flags: int) -> int:
        asked.append(position)
        if position >= 200_000:
            raise BlockingIOError
        return 1

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("os.preadv", preadv)
        patched.setattr("os.RWF_NOWAIT", 8, raising=False)
        file = DiskFile(-1)
        assert file.is_cached(200_000, 0)
        assert max(asked) == 199_999
        assert not file.is_cached(200_000, 1)
        assert not file.is_cached(1 << 20, 0)
    fs = MemFileSystem()
    fs.makedirs("/data")
    fs.cold = True
    assert not fs.open("/data/f", create=True).is_cached(1, 0)


def test_file_can_be_dropped_from_page_cache_unless_in_use(place: tuple[FileSystem, str]) -> None:
    fs, folder = place
    file = fs.open(f"{folder}/f", create=True)
    file.pwritev([bytes(range(256)) * 400], 0)
    if isinstance(fs, MemFileSystem):
        assert file.drop_cached()
        fs.in_use = True
        assert not file.drop_cached()
        return
    ours, client = socket.socketpair()
    with ours, client:
        ours.setblocking(False)
        sent = file.send(ours.fileno(), 8192, 4096)
        assert sent
        # Its pages are in the socket until the client has read them.
        assert not file.drop_cached()
        assert len(client.recv(1 << 20)) == sent
    # True where the file system and the system can tell.
    if file.drop_cached():
        assert file.pread(256, 4096) == bytes(range(256))


def test_bytes_are_sent_to_a_socket_that_takes_what_it_can(place: tuple[FileSystem, str]) -> None:
    fs, folder = place
    file = fs.open(f"{folder}/f", create=True)
    data = random.Random(1).randbytes(2_000_000)
    file.pwritev([data], 0)
    ours, client = socket.socketpair()
    with ours, client:
        ours.setblocking(False)
        assert file.send(ours.fileno(), 10, 3) == 10
        assert client.recv(100) == data[3:13]
        assert file.send(ours.fileno(), 10, len(data) - 4) == 4
        assert file.send(ours.fileno(), 10, len(data)) == 0
        client.recv(100)
        at = 0
        with suppress(BlockingIOError):
            while at < len(data):
                at += file.send(ours.fileno(), 700_000, at)
        assert 0 < at < len(data)
        assert client.recv(at, socket.MSG_WAITALL) == data[:at]
        client.close()
        with pytest.raises(ConnectionError):
            file.send(ours.fileno(), 10, 0)


def test_more_buffers_than_one_call_accepts(place: tuple[FileSystem, str]) -> None:
    fs, folder = place
    file = fs.open(f"{folder}/f", create=True)
    parts = [b"%04d" % n for n in range(2 * MAX_IOV + 5)]
    write_whole(file, list(parts), 8, 4 * len(parts))
    assert file.pread(4 * len(parts), 8) == b"".join(parts)


def test_allocate_extends_file_and_keeps_bytes(place: tuple[FileSystem, str]) -> None:
    fs, folder = place
    file = fs.open(f"{folder}/f", create=True)
    file.pwritev([b"abc"], 0)
    file.allocate(10)
    assert file.pread(10, 0) == b"abc" + bytes(7)
    file.allocate(5)
    assert file.size() == 10
    file.truncate(2)
    assert file.pread(10, 0) == b"ab"


def test_mapping_shows_later_writes_and_outlives_handle(
    place: tuple[FileSystem, str],
) -> None:
    fs, folder = place
    file = fs.open(f"{folder}/f", create=True)
    file.allocate(4096)
    view = file.map(4096)
    file.pwritev([b"later"], 100)
    file.close()
    assert bytes(view[100:105]) == b"later"
    assert view.readonly
    with pytest.raises(ValueError, match="length"):
        fs.open(f"{folder}/f").map(5000)


def test_rename_remove_and_list(place: tuple[FileSystem, str]) -> None:
    fs, folder = place
    with pytest.raises(FileNotFoundError):
        fs.open(f"{folder}/absent")
    with pytest.raises(FileNotFoundError):
        fs.listdir(f"{folder}/absent")
    fs.makedirs(f"{folder}/a/b")
    fs.makedirs(f"{folder}/a/b")
    for name in ("two", "one"):
        fs.open(f"{folder}/{name}", create=True).pwritev([name.encode()], 0)
    fs.rename(f"{folder}/two", f"{folder}/one")
    fs.sync_dir(folder)
    assert fs.listdir(folder) == ["a", "one"]
    assert fs.open(f"{folder}/one").pread(3, 0) == b"two"
    fs.remove(f"{folder}/one")
    fs.remove(f"{folder}/one")
    assert fs.listdir(folder) == ["a"]
    total, free = fs.free_bytes(folder)
    assert 0 < free <= total
    assert fs.identity(folder) == fs.identity(folder) != fs.identity(f"{folder}/a")


def test_copies_of_a_folder_have_other_identities(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    fs = DiskFileSystem()
    here, link, copy = (fs.identity(f"{tmp_path}/{name}") for name in ("data", "link", "copy"))
    assert here == link != copy


def test_lock_is_exclusive(place: tuple[FileSystem, str]) -> None:
    fs, folder = place
    lock = fs.lock(f"{folder}/lock")
    with pytest.raises(BlockingIOError):
        fs.lock(f"{folder}/lock")
    lock.release()
    lock.release()
    fs.lock(f"{folder}/lock").release()


def test_file_is_sparse_if_disk_cannot_reserve_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (errno.ENOSPC, errno.EOPNOTSUPP):

        def refuse(*_: object, number: int = number) -> None:
            raise OSError(number, "no")

        monkeypatch.setattr("os.posix_fallocate", refuse)
        file = DiskFileSystem().open(str(tmp_path / str(number)), create=True)
        file.allocate(10_000)
        assert file.size() == 10_000


@pytest.fixture(params=[ThreadOffload, InlineOffload])
def offload(request: pytest.FixtureRequest) -> Offload:
    make: Callable[[], Offload] = request.param
    return make()


async def test_offloaded_calls_return_on_loop_in_order(offload: Offload) -> None:
    done: list[int] = []
    futures = [offload.submit("write", done.append, n) for n in range(20)]
    await asyncio.gather(*futures)
    assert done == list(range(20))
    assert await offload.submit("read", divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await offload.submit("commit", divmod, 7, 0)
    offload.close()


@pytest.mark.parametrize("make", [real_env, memory_env])
async def test_tasks_have_names_and_references(make: Callable[[], Env]) -> None:
    env = make()

    async def work() -> int:
        await env.sleep(0)
        return 5

    task = env.spawn(work(), "work")
    assert (task.get_name(), env.tasks) == ("work", {task: None})
    assert await task == 5
    await asyncio.sleep(0)
    assert not env.tasks
    seen: list[int] = []
    env.call_soon(seen.append, 1)
    env.call_later(0, seen.append, 2)
    env.call_later(60, seen.append, 3).cancel()
    await env.sleep(0.01)
    assert seen == [1, 2]
    assert env.clock.now_ms() > 1_600_000_000_000
    assert env.clock.monotonic() <= env.clock.monotonic()
    assert len(env.random.randbytes(16)) == 16
    assert 0 <= env.random.random() < 1
    assert 0 <= env.random.getrandbits(8) < 256


def test_crash_loses_unsynced_bytes() -> None:
    lost = kept = 0
    for seed in range(40):
        fs = MemFileSystem(random.Random(seed))
        fs.makedirs("/d")
        file = fs.open("/d/f", create=True)
        fs.sync_dir("/d")
        file.pwritev([b"s" * 2000], 0)
        file.sync()
        file.pwritev([b"u" * 2000], 1000)
        fs.open("/d/unsynced name", create=True)
        fs.crash()
        with pytest.raises(OSError, match="crashed"):
            file.pread(1, 0)
        data = fs.open("/d/f").pread(3000, 0)
        assert data[:1000] == b"s" * 1000
        assert set(data[1000:2000]) <= set(b"su")
        lost += data[1000:] == b"s" * 1000 + bytes(1000)
        kept += data[1000:] == b"u" * 2000
    assert lost
    assert kept


def test_killed_process_loses_no_written_bytes() -> None:
    fs = MemFileSystem()
    fs.makedirs("/d")
    fs.open("/d/f", create=True).pwritev([b"abc"], 0)
    fs.kill()
    assert fs.open("/d/f").pread(3, 0) == b"abc"


def test_virtual_time_jumps_and_a_deadlock_ends() -> None:
    loop = SimLoop()
    env = sim_env(loop, random.Random(0), MemFileSystem())

    async def main() -> float:
        await env.sleep(86_400)
        return env.clock.monotonic()

    assert run(loop, main()) == pytest.approx(86_400)

    async def stuck() -> None:
        await asyncio.get_running_loop().create_future()

    loop = SimLoop()
    task = loop.create_task(stuck())
    with pytest.raises(Deadlock):
        loop.run_until_complete(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


def test_tasks_left_in_virtual_time_are_cancelled_in_order_of_their_start() -> None:
    loop, cancelled = SimLoop(), list[int]()

    async def wait(number: int) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.append(number)

    async def main() -> None:
        env = sim_env(loop, random.Random(0), MemFileSystem())
        tasks = [env.spawn(wait(number), "waiting") for number in range(200)]
        assert list(env.tasks) == tasks
        await env.sleep(1)

    run(loop, main())
    assert cancelled == list(range(200))


def test_lock_on_file_that_was_removed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removed it between open and lock: a new file has a lock of its own."""
    path = tmp_path / "lock"
    flock = fcntl.flock

    def slow(descriptor: int, kind: int) -> None:
        path.unlink()
        flock(descriptor, kind)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", slow)
        with pytest.raises(BlockingIOError):
            DiskLock(str(path))
    DiskLock(str(path)).release()


def test_only_empty_folders_are_removed(place: tuple[FileSystem, str]) -> None:
    fs, folder = place
    fs.makedirs(f"{folder}/a/b")
    with pytest.raises(OSError, match="not empty"):
        fs.remove_folder(f"{folder}/a")
    fs.remove_folder(f"{folder}/a/b")
    fs.remove_folder(f"{folder}/a")
    assert fs.listdir(folder) == []
