"""Writes of write batches: at once while they are fast, else in the writer thread."""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.log.append import commit_log as module
from kafkawire.log.append.commit_log import JournalWriter
from tests.kit.env import InlineOffload, memory_env
from tests.kit.waiting import until


class Disk:
    """Says how long each write took. `failure`: of the next one."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.writes = 0
        self.failure: OSError | None = None

    def write_all(self, writes: Any, monotonic: Any) -> float:
        if self.failure is not None:
            raise self.failure
        self.writes += 1
        return self.seconds


pytestmark = pytest.mark.interpreted


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(module, "write_all", disk.write_all)
    return disk


async def test_slow_write_moves_the_next_one_to_the_thread(disk: Disk) -> None:
    env = memory_env()
    offload = env.offload
    assert isinstance(offload, InlineOffload)
    writer = JournalWriter(env, slow_s=0.005)
    landed: list[BaseException | None] = []
    assert writer.write([], landed.append)
    assert (writer.slow, writer.busy_s()) == (False, 0.0)
    disk.seconds = 0.1
    assert writer.write([], landed.append)
    assert writer.slow
    offload.hold("write")
    assert not writer.write([], landed.append)
    assert (writer.flying, disk.writes, landed) == (True, 2, [])
    disk.seconds = 0.001
    offload.release("write")
    await until(lambda: bool(landed))
    assert (landed, writer.slow, disk.writes) == ([None], False, 3)
    writer.note_applied()
    assert not writer.flying
    assert writer.write([], landed.append)


async def test_failure_in_the_thread_is_passed_on(disk: Disk) -> None:
    writer = JournalWriter(memory_env(), slow_s=0.005)
    landed: list[BaseException | None] = []
    writer.slow = True
    disk.failure = OSError("no space left on device")
    assert not writer.write([], landed.append)
    await until(lambda: bool(landed))
    assert landed == [disk.failure]
    assert writer.slow
    writer.note_applied()
    with pytest.raises(OSError, match="no space"):
        JournalWriter(memory_env(), slow_s=0.005).write([], landed.append)
