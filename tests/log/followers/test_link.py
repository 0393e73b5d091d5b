"""The link to one follower: what it accepts of a follower's answers, and its log lines."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from kafkawire.log.followers.link import FollowerLink, ReplicatedLog
from kafkawire.offsets.catalog.replica_sets import FollowerRow
from kafkawire.replication.messages import (
    FROM_BROKER,
    VERSION,
    AckMessage,
    BeginMessage,
    BytesMessage,
    ChallengeMessage,
    ErrorMessage,
    FencedMessage,
    HaveMessage,
    Message,
)
from kafkawire.replication.wire import WireDecoder, encode
from tests.kit.env import sim_env
from tests.kit.memfs import MemFileSystem
from tests.kit.simloop import SimLoop, run
from tests.replication.model import at

REPLICA = b"r" * 16
ROW = FollowerRow(REPLICA.hex(), 2, "two.test", 9099, b"k" * 32)
NAME = "the follower of broker 2 at two.test:9099"
AFTER = (
    "It receives nothing of the log of broker 1 until another connection succeeds, which is tried "
    "every 2 s"
)


class Connection(asyncio.Transport):
    """The follower's end of a connection: `received` are the messages of the link."""

    def __init__(self, loop: SimLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._decoder = WireDecoder(FROM_BROKER)
        self.received: list[Message] = []
        self.aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def is_closing(self) -> bool:
        return self.aborted

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._decoder.feed(bytes(data))
        for each in self._decoder:
            self.received.append(
                BytesMessage(each.position, bytes(each.data))
                if isinstance(each, BytesMessage)
                else each
            )

    def abort(self) -> None:
        if not self.aborted:
            self.aborted = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    def send(self, *messages: Message) -> None:
        """Send messages to the link, in one piece."""
        self._protocol.data_received(b"".join(map(encode, messages)))


class Events:
    """Notes what a link reports."""

    def __init__(self) -> None:
        self.all: list[tuple[str, int]] = []

    def note_connected(self, replica_id: str, end: int) -> None:
        self.all.append(("connected", end))

    def note_disconnected(self, replica_id: str) -> None:
        self.all.append(("disconnected", 0))

    def note_refused(self, replica_id: str) -> None:
        self.all.append(("refused", 0))

    def note_acknowledged(self, replica_id: str, end: int) -> None:
        self.all.append(("acknowledged", end))

    def note_fenced(self, replica_id: str, epoch: int) -> None:
        self.all.append(("fenced", epoch))


class World:
    """A link to a follower that a test plays. The log of the broker is journal 5 with 300 bytes and
    journal 6 with 200. `failures`: those of the next attempts to connect."""

    link: FollowerLink

    def __init__(self) -> None:
        self.loop = SimLoop()
        self.env = sim_env(self.loop, random.Random(1), MemFileSystem())
        self.connections: asyncio.Queue[Connection] = asyncio.Queue()
        self.failures: list[Exception] = []
        self.events = Events()
        by_number = {
            number: SimpleNamespace(
                number=number,
                end=end,
                view=memoryview(bytes(end)),
                pins=0,
                read=lambda fs, spans: [bytes(length) for _, length in spans],
            )
            for number, end in ((5, 300), (6, 200))
        }
        self.journals: Any = SimpleNamespace(by_number=by_number, active=by_number[6])

    async def connect(
        self,
        factory: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        certificate: str = "",
    ) -> asyncio.Transport:
        assert (host, port, certificate) == (ROW.host, ROW.port, ROW.certificate)
        if self.failures:
            raise self.failures.pop(0)
        protocol = factory()
        made = Connection(self.loop, protocol)
        protocol.connection_made(made)
        self.connections.put_nowait(made)
        return made

    async def connected(self, *messages: Message) -> Connection:
        """Send messages over the next connection, after its greeting."""
        made = await self.connections.get()
        made.send(ChallengeMessage(VERSION, b"n" * 16, REPLICA))
        assert made.received[-1] == BeginMessage(2, at(6, 100), 5)
        made.received.clear()
        made.send(*messages)
        await self.env.sleep(0.1)
        return made

    def run(self, play: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a test with the link."""

        async def main() -> None:
            origin = ReplicatedLog("c", 1, 3, 2, at(6, 100))
            self.link = FollowerLink(self.env, self, self.journals, ROW, origin, self.events)
            await play()
            await self.link.close()

        run(self.loop, main())


@pytest.fixture
def world() -> World:
    return World()


def test_log_is_sent_from_the_end_of_the_copy(world: World) -> None:
    async def play() -> None:
        connection = await world.connected(HaveMessage(at(5, 250)))
        sent = [each for each in connection.received if isinstance(each, BytesMessage)]
        assert [(each.position, len(each.data)) for each in sent] == [
            (at(5, 250), 50), (at(6, 0), 200),
        ]  # fmt: skip
        assert world.link.failing_s is None
        connection.send(AckMessage(at(6, 200)))
        assert world.events.all == [("connected", at(5, 250)), ("acknowledged", at(6, 200))]

    world.run(play)


@pytest.mark.parametrize("end", [at(6, 201), at(5, 301), at(7, 0)])
def test_copy_that_ends_after_the_log_is_not_used(
    world: World, end: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is of another process, so nothing of it counts."""

    async def play() -> None:
        connection = await world.connected(HaveMessage(end), AckMessage(end))
        assert connection.aborted
        assert connection.received == []
        assert world.events.all == []
        assert world.link.failing_s is not None

    world.run(play)
    assert f"{NAME} cannot be used: its copy of the log of epoch 3 ends at byte " in caplog.text
    assert (
        "written it in the same epoch. Restart the broker, which then has a higher" in caplog.text
    )


@pytest.mark.parametrize("end", [at(5, 0), at(6, 0), at(6, 200), at(4, 7)])
def test_copy_that_ends_in_the_log_is_used(world: World, end: int) -> None:
    """Journal 4, which is not needed any more, is not sent."""

    async def play() -> None:
        connection = await world.connected(HaveMessage(end))
        assert not connection.aborted
        assert world.events.all == [("connected", end)]

    world.run(play)


def test_acknowledgement_of_what_was_not_sent_does_not_count(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        connection = await world.connected(HaveMessage(at(6, 100)))
        connection.send(AckMessage(at(6, 201)), AckMessage(at(6, 200)))
        await world.env.sleep(0.01)
        assert world.events.all == [("connected", at(6, 100)), ("disconnected", 0)]

    world.run(play)
    assert "it acknowledges byte 201 of journal 6, which it was not sent" in caplog.text


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def test_each_failure_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A later one with another reason is logged, too."""
    refused = ConnectionRefusedError(111, "Connect call failed")
    world.failures = [refused, refused, refused, TimeoutError()]
    world.failures[3:3] = [OSError(113, "No route to host")] * 2

    async def play() -> None:
        other = "the broker speaks version 1 of the replication protocol"
        await world.connected(ErrorMessage(other))
        connection = await world.connected(HaveMessage(at(6, 200)))
        await world.env.sleep(5)
        connection.abort()
        await world.connected(HaveMessage(at(6, 200)))

    world.run(play)
    reasons = [
        "kafkawire does not run there, or does not listen there ([Errno 111] Connect call failed)",
        "[Errno 113] No route to host",
        "no answer within 20 s",
        "the broker speaks version 1 of the replication protocol",
    ]
    found = warnings(caplog)
    assert found[:-1] == [f"{NAME} cannot be used: {each}. {AFTER}" for each in reasons]
    assert found[-1] == f"the connection to {NAME} has ended: the follower has closed it. {AFTER}"
    assert world.events.all.count(("refused", 0)) == 3


def test_failure_that_repeats_after_each_connection_is_logged_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a follower whose disk is full."""

    async def play() -> None:
        for _ in range(4):
            await world.connected(HaveMessage(at(5, 0)), ErrorMessage("no space left"))

    world.run(play)
    assert warnings(caplog) == [f"the connection to {NAME} has ended: no space left. {AFTER}"]


def test_fenced_link_reports_the_epoch(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        await world.connected(FencedMessage(9))
        assert world.events.all == [("fenced", 9)]

    world.run(play)
    assert f"{NAME} cannot be used: epoch 9 of this broker has begun" in caplog.text


def test_defect_does_not_end_the_link(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A link that ended would neither connect again nor be replaced by another follower's."""
    world.failures = [KeyError("a defect")]

    async def play() -> None:
        await world.connected(HaveMessage(at(6, 200)))
        assert world.events.all == [("connected", at(6, 200))]

    world.run(play)
    assert f"a defect: the link to {NAME} has failed; it is tried again" in caplog.text


def test_silent_follower_is_disconnected(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        connection = await world.connected(HaveMessage(at(6, 200)))
        for _ in range(25):
            await world.env.sleep(0.5)
            world.link.mark(0)
        assert connection.aborted

    world.run(play)
    assert f"the connection to {NAME} has ended: it has not answered for 10 s. " in caplog.text
