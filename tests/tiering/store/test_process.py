"""The storage process: start and end, kill, hang, invalid messages, end of its broker.

tests/objectstore/test_object_store.py checks its contract as an ObjectStore,
test_process_given_up.py covers cancelled calls. Here its tier is a folder.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import uvloop

from kafkawire.childprocess import frames
from kafkawire.childprocess.parent_end import ChildProcess
from kafkawire.childprocess.process_thread import spawn
from kafkawire.objectstore.errors import NoSuchObject, SlowDown, StoreError
from kafkawire.objectstore.url import parse_tier
from kafkawire.tiering.store import process
from kafkawire.tiering.store import process as link
from kafkawire.tiering.store.port import ObjectPart
from kafkawire.tiering.store.process import StoreProcess
from kafkawire.tiering.store.process_protocol import (
    Hello,
    answer_of,
    failure_of,
    unpack_answer,
)
from tests.kit.tier.store_process import (
    MEMORY_BYTES,
    begun,
    folder_process,  # noqa: F401  (a fixture, by name)
    short_pause,
    stopped,
)
from tests.kit.waiting import until, wait_until
from tests.log.io.test_worker import gone

# Life cycle


async def test_process_is_started_once_for_concurrent_calls(store: StoreProcess) -> None:
    assert store.pid is None
    await asyncio.gather(*(store.put(f"k{n}", b"%d" % n) for n in range(50)))
    pid = store.pid
    assert pid is not None
    assert os.getpriority(os.PRIO_PROCESS, pid) >= min(19, os.nice(0) + process.NICE)
    found = await asyncio.gather(*(store.get(f"k{n}") for n in range(50)))
    assert [data for data, _ in found] == [b"%d" % n for n in range(50)]
    assert store.pid == pid


async def test_caller_that_started_process_may_cancel(store: StoreProcess) -> None:
    first, second = begun(store.put("a", b"1"), store.put("b", b"2"))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).size_bytes == 1


@pytest.mark.real
async def test_idle_process_is_stopped(tmp_path: Path) -> None:
    store = StoreProcess(parse_tier(f"{tmp_path}/tier"), idle_s=0.01)
    await store.put("k", b"x")
    await until(lambda: store.pid is None)
    assert (await store.get("k"))[0] == b"x"
    await store.close()
    assert store.pid is None


async def test_ctrl_c_of_terminal_does_not_reach_process(store: StoreProcess) -> None:
    """The process has a group of its own, and the broker decides when it ends."""
    await store.put("k", b"x")
    assert store.pid is not None
    assert os.getpgid(store.pid) == store.pid != os.getpgid(0)


async def test_killed_process_is_restarted(store: StoreProcess) -> None:
    pid = await stopped(store)
    before = bytes(store.memory)
    waiting = begun(
        store.get("k"),
        store.read("k", [ObjectPart(0, 10, 0)]),
        store.put("other", b""),
        store.list(""),
    )
    await short_pause()
    os.kill(pid, signal.SIGKILL)
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert type(outcome) is StoreError
        assert outcome.retryable
        assert str(outcome) == "ChildDied: the storage process ended with SIGKILL"
    assert bytes(store.memory) == before
    await store.read("k", [ObjectPart(5, 10, 3)])
    assert bytes(store.memory[3:13]) == bytes(range(5, 15))
    assert store.pid not in (None, pid)


@pytest.mark.real
async def test_process_that_ends_at_start_is_storage_error(
    store: StoreProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "STILLBORN_S", 3600.0)  # no pause of the machine is longer
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", "/bin/false")
        with pytest.raises(StoreError, match="ended with code 1"):
            await store.get("k")
        with pytest.raises(StoreError, match="ends as soon as it begins"):
            await store.get("k")
        store._not_before = 0.0  # simulates that the time has passed
        broken.setattr(sys, "executable", "/there/is/none")
        with pytest.raises(StoreError, match="no storage process can be started"):
            await store.get("k")
    with pytest.raises(NoSuchObject):
        await store.get("k")


@pytest.mark.real
async def test_hanging_process_is_killed(
    store: StoreProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = await stopped(store)
    with monkeypatch.context() as quick:
        quick.setattr(link, "PING_S", 0.05)
        await short_pause()
        assert store._child is not None
        store._child._watch()  # the watchdog that began before was slower
        with pytest.raises(StoreError, match="ended with SIGKILL"):
            await store.get("k")
    assert gone(pid)
    assert (await store.head("k")).size_bytes == 100


@pytest.mark.real
async def test_slow_call_does_not_count_as_hang(
    store: StoreProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await store.put("k", b"x")
    monkeypatch.setattr(link, "PING_S", 0.1)
    monkeypatch.setattr(link, "MAX_PINGS_MISSED", 30)  # a busy machine delays answers by a second
    (tmp_path / "here").write_bytes(bytes(8 << 20))
    began = time.monotonic()
    await store.upload("k", str(tmp_path / "here"), 2 << 20)
    assert time.monotonic() - began > 0.1 * 31  # it has responded in between


@pytest.mark.real
async def test_close_ends_calls_in_flight(store: StoreProcess, tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(bytes(4 << 20))
    await store.put("k", b"x")
    pid = store.pid
    assert pid is not None
    (upload,) = begun(store.upload("slow", str(tmp_path / "here"), 1 << 20))
    await short_pause()
    await store.close()
    with pytest.raises(StoreError):
        await upload
    assert gone(pid)
    assert not (tmp_path / "tier" / "slow").exists()
    assert list((tmp_path / "tier" / ".unfinished").iterdir()) == []
    with pytest.raises(StoreError, match="being closed"):
        await store.get("k")


@pytest.mark.real
async def test_close_does_not_wait_for_hanging_process(
    store: StoreProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "CLOSE_S", 0.1)
    pid = await stopped(store)
    (waiting,) = begun(store.get("k"))
    await short_pause()
    await store.close()
    with pytest.raises(StoreError, match="SIGKILL"):
        await waiting
    assert gone(pid)


# Messages


@pytest.mark.real
async def test_large_values(store: StoreProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.urandom(20 << 20)
    await store.put("k", data)
    assert (await store.get("k"))[0] == data
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 1 << 20)
    with pytest.raises(ValueError, match="is too large: 1048576 are allowed"):
        await store.put("k", data)
    assert (await store.get("k", 5, 10))[0] == data[5:15]  # its slot was released


PROGRAM = """
import sys
out = sys.stdout.buffer
{}
out.flush()
sys.stdin.buffer.read()
"""
NONSENSE = {
    "no pickle": "out.write(bytes([0, 0, 0, 5]) + b'12345')",
    "too long": "out.write(b'\\xff' * 100)",
    "no tuple": "import pickle; b = pickle.dumps(7); out.write(bytes([0, 0, 0, len(b)]) + b)",
    "no call": "import pickle; b = pickle.dumps((99, 'done', 1)); "
    "out.write(bytes([0, 0, 0, len(b)]) + b)",
    "no kind": "import pickle; b = pickle.dumps((1, 'what', 1)); "
    "out.write(bytes([0, 0, 0, len(b)]) + b)",
    "no value": "import pickle; b = pickle.dumps((1, 'done')); "
    "out.write(bytes([0, 0, 0, len(b)]) + b)",
}


@pytest.mark.parametrize("said", NONSENSE.values(), ids=NONSENSE.keys())
async def test_invalid_message_ends_process(
    store: StoreProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable}\n" + PROGRAM.format(said))
    program.chmod(0o755)
    with monkeypatch.context() as other:
        other.setattr(sys, "executable", str(program))
        with pytest.raises(StoreError, match="said what is no answer"):
            await store.get("k")
    assert store.pid is None


@pytest.mark.real
@pytest.mark.parametrize(
    "said",
    [
        b"", b"\0\0", b"\xff" * 10, b"\0\0\0\5hallo", b"".join(frames.pack(7)),
        b"".join(frames.pack((1, "polish", ()))),
    ],
)  # fmt: skip
def test_child_ends_at_end_of_input_and_at_invalid_message(said: bytes, tmp_path: Path) -> None:
    hello = Hello(parse_tier(str(tmp_path)), False, -1, 0, 1 << 20, {"rest": 1})
    command = [sys.executable, "-P", "-m", "kafkawire.tiering.store.process_main", str(os.getpid())]
    for given in (said, b"".join(frames.pack(hello)) + said):
        ended = subprocess.run(command, input=given, capture_output=True, timeout=60)
        assert (ended.returncode, ended.stdout) == (0, b"")


def test_child_does_not_start_without_broker() -> None:
    command = [sys.executable, "-P", "-m", "kafkawire.tiering.store.process_main", "0"]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, timeout=60).returncode == 1


def test_errors_are_passed_through_process_boundary() -> None:
    for failure in (
        SlowDown("503", "slow"), NoSuchObject("NoSuchKey", "k"), StoreError("x", "y"),
        FileNotFoundError(2, "none", "/a/b"),
    ):  # fmt: skip
        _, body = frames.pack(answer_of(7, failure))
        back = failure_of(unpack_answer(body))
        assert (type(back), str(back)) == (type(failure), str(failure))
    back = failure_of(unpack_answer(pickle.dumps(answer_of(7, KeyError("k")))))
    assert (type(back), str(back)) == (StoreError, "KeyError: 'k'")


# The broker


PARENT = """
import asyncio, sys
from kafkawire.tiering.store.open import parse_tier
from kafkawire.tiering.store.process import StoreProcess

async def main():
    store = StoreProcess(parse_tier(sys.argv[1] + "/tier"))
    await store.put("k", b"x")
    print(store.pid, flush=True)
    await store.upload("slow", sys.argv[1] + "/here", 1 << 20)

asyncio.run(main())
"""


@pytest.mark.real
def test_process_ends_with_broker(tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(bytes(8 << 20))
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        unfinished = tmp_path / "tier" / ".unfinished"
        wait_until(lambda: unfinished.exists() and any(unfinished.iterdir()), "an upload")
        parent.kill()
    asyncio.run(until(lambda: gone(pid)))
    assert list((tmp_path / "tier" / ".unfinished").iterdir()) == []


def test_broker_does_not_import_boto3() -> None:
    store = "kafkawire.tiering.store"
    program = f"import sys, {store}.process, {store}.open; print('boto' in str(sys.modules))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert said.stdout == b"False\n"


def test_process_under_uvloop(tmp_path: Path) -> None:
    async def roundtrip() -> None:
        store = StoreProcess(parse_tier(f"{tmp_path}/tier"), MEMORY_BYTES)
        await store.put("k", b"0123456789")
        await asyncio.gather(*(store.read("k", [ObjectPart(n, 1, n)]) for n in range(10)))
        assert bytes(store.memory[:10]) == b"0123456789"
        await store.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(roundtrip())


def test_call_to_closed_pipe_is_storage_error() -> None:
    """uvloop raises RuntimeError there, until the end of the process has been reported."""

    async def call_the_dead() -> None:
        dying = await ChildProcess.connect(partial(spawn, ("sleep", "100"), 0, ()))
        ended = link.StorageChild(dying, 10.0, lambda: None)
        assert ended.takes_calls
        number, given_up = ended.call("get", ("k", 0, None), lambda: None)
        dying.kill()
        await until(lambda: dying.is_closing)
        assert ended.alive
        assert not ended.takes_calls
        _, answer = ended.call("get", ("k", 0, None), lambda: None)
        safe = ended.cancel(number)
        ended.start(asyncio.ensure_future(ended.listen()))
        with pytest.raises(StoreError, match="ended with SIGKILL"):
            await answer
        assert (given_up.cancelled(), safe.done()) == (True, True)
        with pytest.raises(StoreError, match="ended with SIGKILL"):
            ended.call("get", ("k", 0, None), lambda: None)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(call_the_dead())
