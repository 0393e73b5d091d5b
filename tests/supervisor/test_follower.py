"""The follower of a machine: start, crash and restart, starts that fail, end."""

from __future__ import annotations

import asyncio
import errno
import logging
import pickle
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kafkawire.broker.options import ServeOptions
from kafkawire.log_lines import reason_of
from kafkawire.replication.options import FOLLOWER_FOLDER, IDENTITY
from kafkawire.server.listeners.addresses import AddressError
from kafkawire.supervisor import follower as module
from kafkawire.supervisor.follower import SupervisedFollower
from kafkawire.supervisor.plan import PlanError
from tests.kit.ports import free_port
from tests.kit.waiting import until


class Child:
    """A process that a test ends. `ready` is done when it serves, or fails as its pipe does."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[bytes] = loop.create_future()
        self.code: asyncio.Future[int] = loop.create_future()
        self.sent: list[Sequence[bytes]] = []
        self.calls: list[str] = []

    def send(self, frame: Sequence[bytes]) -> None:
        self.sent.append(frame)

    async def receive(self) -> bytes:
        return await self.ready

    async def wait(self) -> int:
        return await asyncio.shield(self.code)

    async def wait_or_kill(self, grace_s: float) -> int:
        return await self.wait()

    def kill(self) -> None:
        self.calls.append("kill")
        self.end(-9)

    def retire(self) -> None:
        self.calls.append("retire")
        self.end(0)

    def end(self, code: int) -> None:
        """End it; its pipe ends too."""
        if not self.ready.done():
            self.ready.set_exception(asyncio.IncompleteReadError(b"", 4))
        if not self.code.done():
            self.code.set_result(code)


class Machine:
    """A follower whose processes are `children`. `failures`: those of the next starts; `serves`:
    whether a process serves at once."""

    def __init__(self, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.children: list[Child] = []
        self.failures: list[Exception] = []
        self.serves = True
        self.identity = data / FOLLOWER_FOLDER / IDENTITY
        self.identity.parent.mkdir()
        self.identity.touch()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.follower = SupervisedFollower(ServeOptions([], {}, str(data), ""), [self.listener])
        monkeypatch.setattr(module, "ChildProcess", self)
        monkeypatch.setattr("kafkawire.childprocess.restarts.DELAYS_S", (0.0, 0.001, 0.002))

    async def start(self, name: str, nice: int, descriptors: Sequence[int]) -> Child:
        """Start a process, as ChildProcess.start."""
        assert (name, nice) == (module.MODULE, 0)
        assert descriptors == (self.listener.fileno(),)
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        self.children.append(Child(100 + len(self.children)))
        if self.serves:
            self.children[-1].ready.set_result(b"")
        return self.children[-1]

    async def child(self, number: int) -> Child:
        """Wait for a process that serves."""
        text = f"serves on port {self.follower.port} as process {100 + number}"
        await until(lambda: text in self.log.text, text)
        return self.children[number]

    log: pytest.LogCaptureFixture


@pytest.fixture
def machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[Machine]:
    made = Machine(tmp_path, monkeypatch)
    made.log = caplog
    with caplog.at_level(logging.INFO):
        yield made
    made.listener.close()


async def test_start_and_end(machine: Machine, tmp_path: Path) -> None:
    await machine.follower.start()
    (child,) = machine.children
    assert machine.log.messages == [
        f"the follower serves on port {machine.follower.port} as process 100"
    ]
    ((_, body),) = child.sent
    sent = pickle.loads(body)
    assert (sent.folder, sent.descriptors) == (
        str(tmp_path / FOLLOWER_FOLDER), (machine.listener.fileno(),)
    )  # fmt: skip
    await machine.follower.stop()
    assert child.calls == ["retire"]
    assert machine.listener.fileno() == -1
    assert len(machine.log.messages) == 1  # it is not started again


async def test_process_that_crashes_is_started_again(machine: Machine) -> None:
    await machine.follower.start()
    for number in range(4):
        (await machine.child(number)).end(1 if number else -11)
    await machine.child(4)
    found = [each for each in machine.log.messages if "ended" in each]
    text = (
        "the follower of this machine (replication.listener) has ended with {}: brokers of other "
        "machines have a replica less; it is started again {}"
    )
    assert found == [
        text.format("SIGSEGV", "now"),
        text.format("code 1", "in 0.001 s"),
        text.format("code 1", "in 0.002 s"),
        text.format("code 1", "in 0.002 s"),
    ]
    await machine.follower.stop()
    assert machine.children[4].calls == ["retire"]


@pytest.mark.parametrize(
    "failure", [OSError(errno.EAGAIN, "no process"), RuntimeError("can't start new thread")]
)
async def test_process_that_cannot_be_created_is_tried_again(
    machine: Machine, failure: Exception
) -> None:
    machine.failures = [failure] * 2
    await machine.follower.start()  # the workers start meanwhile
    await machine.child(0)
    machine.failures = [failure]
    machine.children[0].end(-9)
    await machine.child(1)
    words = reason_of(failure)
    found = [each for each in machine.log.messages if f"could not be created ({words})" in each]
    assert len(found) == 3
    await machine.follower.stop()


async def test_follower_that_ends_before_it_serves_does_not_keep_workers_from_starting(
    machine: Machine,
) -> None:
    machine.serves = False
    starting = asyncio.create_task(machine.follower.start())
    await until(lambda: len(machine.children) == 1, "the process")
    machine.children[0].end(1)
    await starting
    await until(lambda: len(machine.children) == 2, "the second process")
    assert "has ended with code 1 before it served, for the reason in its own message" in (
        machine.log.text
    )
    machine.serves = True
    machine.children[1].end(1)
    await machine.child(2)
    await machine.follower.stop()
    assert machine.children[2].calls == ["retire"]


async def test_follower_that_never_serves_is_killed_and_tried_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READY_S", 0.01)
    machine.serves = False
    await machine.follower.start()
    assert machine.children[0].calls == ["kill"]
    assert "SIGKILL because it did not serve within 0.01 s" in machine.log.text
    machine.serves = True
    number = len(machine.children)
    await machine.child(number)
    await machine.follower.stop()


async def test_follower_that_cannot_be_killed_does_not_keep_workers_from_starting(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READY_S", 0.01)
    monkeypatch.setattr(module, "GRACE_S", 0.01)
    monkeypatch.setattr(Child, "kill", lambda child: None)
    machine.serves = False
    await machine.follower.start()
    assert "hangs in its start and cannot be killed" in machine.log.text
    machine.children[0].end(-9)
    await machine.follower.stop()


async def test_end_during_a_start(machine: Machine) -> None:
    machine.serves = False
    starting = asyncio.create_task(machine.follower.start())
    await until(lambda: len(machine.children) == 1, "the process")
    await until(lambda: bool(machine.children[0].sent), "its options")
    await machine.follower.stop()
    assert machine.children[0].calls == ["retire"]
    assert len(machine.children) == 1
    starting.cancel()


async def test_pipe_that_is_closed_is_a_failed_start(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(child: Child, frame: Sequence[bytes]) -> None:
        child.end(1)
        raise ConnectionResetError("the pipe is closed")

    with monkeypatch.context() as broken:
        broken.setattr(Child, "send", fail)
        await machine.follower.start()
    assert "has ended with code 1 before it served" in machine.log.text
    await until(lambda: "serves on port" in machine.log.text, "the next start")
    await machine.follower.stop()


async def test_first_start_that_succeeds_after_the_workers_needs_a_restart(
    machine: Machine,
) -> None:
    """Workers have stored no address of the follower, because it had no identity."""
    machine.identity.unlink()
    machine.failures = [OSError(errno.EAGAIN, "no process")]
    await machine.follower.start()
    await machine.child(0)
    machine.children[0].end(1)
    await machine.child(1)
    assert machine.log.text.count("until this `kafkawire serve` is restarted") == 1
    await machine.follower.stop()


def of(tmp_path: Path, listener: str) -> SupervisedFollower | None:
    settings = {"replication.listener": listener}
    return SupervisedFollower.bind_address(ServeOptions([], {}, str(tmp_path), "", settings))


async def test_address_is_bound_before_the_start(tmp_path: Path) -> None:
    assert of(tmp_path, " ") is None
    port = free_port()
    follower = of(tmp_path, f"127.0.0.1:{port}")
    assert follower is not None
    assert follower.port == port
    with pytest.raises(AddressError, match=rf"replication.listener=127.0.0.1:{port}: another"):
        of(tmp_path, f"127.0.0.1:{port}")
    await follower.stop()


@pytest.mark.parametrize("text", ["9099", "127.0.0.1:0", "NAME://127.0.0.1:9099", "host:99999"])
def test_malformed_address_is_a_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(PlanError, match=r"it must be HOST:PORT, not port 0"):
        of(tmp_path, text)
