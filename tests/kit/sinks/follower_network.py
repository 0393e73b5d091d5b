"""Followers and their connections in virtual time, without sockets and threads.

`SimFollower` is the follower of a machine: the copies of kafkawire.replication on files in memory,
served in the event loop as kafkawire.replication.connection does in threads. `SimNetwork` is the
network of one broker process (kafkawire.log.followers.network). Bytes arrive late, connections are
cut or silent, and what a process has sent may arrive after its end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from random import Random

from kafkawire.offsets.catalog.replica_sets import FollowerRow
from kafkawire.replication.failures import DiskFailed, Fenced, FollowerError
from kafkawire.replication.messages import (
    VERSION,
    AckMessage,
    BeginMessage,
    BytesMessage,
    ChallengeMessage,
    CopyMessage,
    ErrorMessage,
    FencedMessage,
    FenceMessage,
    ForgetMessage,
    HaveMessage,
    HelloMessage,
    ListMessage,
    MarkMessage,
    Message,
    Purpose,
    ReadMessage,
    WireError,
)
from kafkawire.replication.node_copies import NO_EPOCH, NodeCopies
from kafkawire.replication.wire import WireDecoder, encode, encode_bytes, proof
from tests.kit.simloop import SimLoop, drifting
from tests.replication.memory_files import Crashed, MemoryFiles

FOLDER = "/replicas"
NODE = 1
"""The broker whose log is copied."""
IDLE_S = 30.0
REPLACED_S = 10.0
BUFFERED_BYTES = 5000
"""Bytes of a connection after which the broker is to send no more."""
WRITER_MESSAGES: tuple[type[Message], ...] = (
    BeginMessage, BytesMessage, MarkMessage, ForgetMessage,
)  # fmt: skip
READER_MESSAGES: tuple[type[Message], ...] = (
    FenceMessage, ListMessage, ReadMessage, ForgetMessage,
)  # fmt: skip


class SimFollower:
    """The follower of machine `node_id`: its disk, and a process that runs if `copies` is there.
    `delay_s`: how long its disk takes; `silent_until`: when bytes arrive again; `rate`: how fast
    its clock runs; `received`: called after what a process has sent of an epoch."""

    def __init__(
        self,
        loop: SimLoop,
        rng: Random,
        node_id: int,
        rate: float = 1.0,
        received: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.received = received
        self.loop, self.rng, self.node_id = loop, rng, node_id
        self.context = drifting(rate)
        self.id = rng.randbytes(16)
        self.key = rng.randbytes(32)
        self.files = MemoryFiles()
        self.files.make_folder(FOLDER)
        self.copies: NodeCopies | None = None
        self.connections: list[SimConnection] = []
        self.writers: dict[int, ServedConnection] = {}
        self.delay_s = 0.002
        self.silent_until = 0.0
        self.lost = False
        self.start()

    @property
    def replica_id(self) -> str:
        return self.id.hex()

    @property
    def row(self) -> FollowerRow:
        """The row with which brokers find it."""
        return FollowerRow(self.replica_id, self.node_id, f"machine-{self.node_id}", 9099, self.key)

    def start(self) -> None:
        """Start the process; a supervisor does so again if that fails."""
        if self.lost or self.copies is not None:
            return
        try:
            self.copies = NodeCopies(self.files, f"{FOLDER}/{NODE}", NODE)
        except Crashed:
            self.end("power")
        except (OSError, DiskFailed):
            self.end("kill")

    def end(self, how: str, restart_s: float = 1.0) -> None:
        """End the process ("kill"), or the machine ("power"); it starts again later."""
        self.copies = None
        self.files.crash_at = None
        if how == "power":
            self.files.power_failure(self.rng)
        else:
            self.files.kill()
        for each in list(self.connections):
            each.cut()
        self.writers.clear()
        self.loop.call_later(restart_s, self.start)

    def lose(self) -> None:
        """End for good: the disk is lost."""
        self.lost = True
        self.end("power")

    def heal(self) -> None:
        """Have no failures any more."""
        self.files.crash_at, self.files.failing_syncs = None, 0
        self.files.room_bytes, self.files.free = None, 1 << 40
        self.delay_s, self.silent_until = 0.002, 0.0

    async def work(self) -> None:
        """Wait for the disk."""
        await asyncio.sleep(self.delay_s * self.rng.random())


class SimNetwork:
    """The network of one process. `silent_until`: when it receives and sends again, by replica id,
    empty for all; `over`: the process has ended, so none of its callbacks runs. `hook` is called
    with what it is about to do, or has received."""

    def __init__(
        self,
        loop: SimLoop,
        rng: Random,
        followers: Callable[[], Iterable[SimFollower]],
        hook: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.loop, self.rng, self.hook = loop, rng, hook
        self._followers = followers
        self.silent_until: dict[str, float] = {}
        self.connections: list[SimConnection] = []
        self.over = False

    async def connect(
        self,
        factory: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        certificate: str = "",
    ) -> asyncio.Transport:
        self.hook("connect")
        await asyncio.sleep(self.rng.random() * 0.002)
        while True:
            follower = next((f for f in self._followers() if f.row.host == host), None)
            if follower is None or follower.copies is None or self.over:
                raise ConnectionRefusedError("no follower listens there")
            silent_s = self.silent_s(follower)
            if silent_s <= 0:
                return SimConnection(self, follower, factory())
            await self._until(self.loop.now + silent_s)

    async def _until(self, now: float) -> None:
        """Wait for a moment of virtual time."""
        come = asyncio.Event()
        timer = self.loop.call_when(now, come.set)
        try:
            await come.wait()
        finally:
            timer.cancel()

    def silent_s(self, follower: SimFollower) -> float:
        """Return for how long nothing arrives between this process and a follower."""
        ends = [self.silent_until.get(each, 0.0) for each in ("", follower.replica_id)]
        return max(*ends, follower.silent_until) - self.loop.now

    def end(self) -> None:
        """End with the process; what it has sent may still arrive."""
        self.over = True
        for each in list(self.connections):
            each.abort()


class Direction:
    """Bytes on their way in one direction; None is the end of the connection. They are delivered in
    `context`, that of the process that receives them."""

    def __init__(
        self,
        connection: SimConnection,
        deliver: Callable[[bytes | None], None],
        context: Context,
    ) -> None:
        self._connection = connection
        self._deliver = deliver
        self._context = context
        self._scheduled = False
        self.parts: deque[bytes | None] = deque()

    def put(self, part: bytes | None) -> None:
        self.parts.append(part)
        if not self._scheduled:
            self._schedule(self._connection.network.rng.random() * 0.002)

    def _schedule(self, delay_s: float) -> None:
        self._scheduled = True
        loop = self._connection.network.loop
        loop.call_when(loop.now + delay_s, self._arrive, context=self._context)

    def _arrive(self) -> None:
        network = self._connection.network
        silent_s = network.silent_s(self._connection.follower)
        if silent_s > 0:
            self._schedule(silent_s)
            return
        self._scheduled = False
        if not self.parts:
            return
        part = self.parts.popleft()
        while part is not None and self.parts and network.rng.random() < 0.5:
            more = self.parts.popleft()
            if more is None:
                self.parts.appendleft(None)
                break
            part += more
        self._deliver(part)
        if self.parts and not self._scheduled:
            self._schedule(network.rng.random() * 0.002)


class SimConnection(asyncio.Transport):
    """A connection: the end of the broker, and `served`, that of the follower."""

    def __init__(
        self, network: SimNetwork, follower: SimFollower, protocol: asyncio.Protocol
    ) -> None:
        super().__init__()
        self.network, self.follower = network, follower
        self._protocol = protocol
        self._closing = self._paused = False
        self._unsent = 0
        self._context = copy_context()
        self._to_follower = Direction(self, self._at_follower, follower.context)
        self._to_broker = Direction(self, self._at_broker, self._context)
        network.connections.append(self)
        follower.connections.append(self)
        protocol.connection_made(self)
        self.served = ServedConnection(self)

    # the broker's end

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        self.network.hook("send")
        self._unsent += len(data)
        self._to_follower.put(bytes(data))
        if self._unsent > BUFFERED_BYTES and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def write_eof(self) -> None:
        self._to_follower.put(None)

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self._closing:
            return
        if self.network.rng.random() < 0.5:
            self._to_follower.parts.clear()
        self._to_follower.put(None)
        self._lose(None)

    def _lose(self, failure: Exception | None) -> None:
        """The broker's end is closed."""
        if not self._closing:
            self._closing = True
            self.network.connections.remove(self)
            if not self.network.over:
                lost = self._protocol.connection_lost
                self.network.loop.call_soon(lost, failure, context=self._context)

    def _at_broker(self, part: bytes | None) -> None:
        if self._closing or self.network.over:
            return
        self.network.hook("receive")
        if part is None:
            self._lose(None)
        else:
            self._protocol.data_received(part)

    # the follower's end

    def _at_follower(self, part: bytes | None) -> None:
        if part is not None:
            self._unsent -= len(part)
            if self._paused and self._unsent < BUFFERED_BYTES // 4 and not self._closing:
                self._paused = False
                self._protocol.resume_writing()
        self.served.receive(part)

    def send(self, data: bytes) -> None:
        """Send bytes to the broker."""
        self._to_broker.put(data)

    def end(self) -> None:
        """The follower's end is closed."""
        if self in self.follower.connections:
            self.follower.connections.remove(self)
        self._to_broker.put(None)

    def cut(self) -> None:
        """Lose the connection, and what is on its way."""
        self._to_follower.parts.clear()
        self._to_broker.parts.clear()
        self._lose(ConnectionResetError("the connection was cut"))
        self.served.stop()


class ServedConnection:
    """The follower's end of a connection, as kafkawire.replication.connection serves it."""

    def __init__(self, connection: SimConnection) -> None:
        self._connection = connection
        self._follower = follower = connection.follower
        self._decoder = WireDecoder((HelloMessage,))
        self._received: deque[bytes | None] = deque()
        self._woken = asyncio.Event()
        self.ended = asyncio.Event()
        assert follower.copies is not None, "it listens"
        self._copies = follower.copies
        self._task = follower.loop.create_task(self._run(), context=follower.context)

    def receive(self, part: bytes | None) -> None:
        self._received.append(part)
        self._woken.set()

    def stop(self) -> None:
        """End at once, unless it is this connection that ends its process."""
        if self._task is not asyncio.current_task(self._follower.loop):
            self._task.cancel()

    async def _run(self) -> None:
        try:
            await self._serve()
        except Fenced as refusal:
            self._send(FencedMessage(refusal.higher))
        except (FollowerError, WireError, TimeoutError) as failure:
            self._send(ErrorMessage(str(failure)))
        except DiskFailed:
            self._follower.end("kill")
        except Crashed:
            self._follower.end(self._follower.rng.choice(("kill", "power")))
        finally:
            self.ended.set()
            self._connection.end()

    def _send(self, message: Message) -> None:
        self._connection.send(encode(message))

    async def _more(self) -> bool:
        """Wait for bytes; return False at the end of the connection."""
        async with asyncio.timeout(IDLE_S):
            while not self._received:
                self._woken.clear()
                await self._woken.wait()
        part = self._received.popleft()
        if part is not None:
            self._decoder.feed(part)
        return part is not None

    async def _serve(self) -> None:
        follower = self._follower
        nonce = follower.rng.randbytes(16)
        self._send(ChallengeMessage(VERSION, nonce, follower.id))
        while (hello := self._decoder.next()) is None:
            if not await self._more():
                return
        assert isinstance(hello, HelloMessage)
        wanted = proof(
            follower.key, nonce, hello.purpose, hello.node_id, hello.epoch, hello.cluster_id
        )
        assert wanted == hello.proof
        if hello.purpose is Purpose.READ:
            self._decoder.accept(READER_MESSAGES)
            await self._serve_reads(hello.epoch)
            return
        self._decoder.accept(WRITER_MESSAGES)
        try:
            await self._serve_writes(hello.epoch)
        finally:
            if follower.writers.get(hello.epoch) is self:
                del follower.writers[hello.epoch]

    async def _serve_writes(self, epoch: int) -> None:
        copies, has_more = self._copies, True
        while has_more:
            is_due = False
            for message in self._decoder:
                if isinstance(message, BeginMessage):
                    await self._replace_former(epoch)
                    end = copies.start_epoch(epoch, message.continues, message.at, message.first)
                    self._send(HaveMessage(end))
                elif isinstance(message, BytesMessage):
                    copies.write(epoch, message.position, message.data)
                    is_due = True
                elif isinstance(message, MarkMessage):
                    copies.mark(epoch, message.committed, message.first)
                    is_due = True
                elif isinstance(message, ForgetMessage):
                    copies.delete_earlier_copies(epoch)
            if is_due:
                await self._follower.work()
                self._send(AckMessage(copies.sync(epoch)))
                self._follower.received(epoch)
            has_more = await self._more()

    async def _replace_former(self, epoch: int) -> None:
        """Become the connection that writes a log, after the former one has ended."""
        await self._follower.work()
        while (former := self._follower.writers.setdefault(epoch, self)) is not self:
            former.stop()
            async with asyncio.timeout(REPLACED_S):
                await former.ended.wait()

    async def _serve_reads(self, epoch: int) -> None:
        copies, listed, has_more = self._copies, NO_EPOCH, True
        while has_more:
            for message in self._decoder:
                await self._follower.work()
                if isinstance(message, FenceMessage):
                    self._send(FencedMessage(self._fence(epoch)))
                elif isinstance(message, ListMessage):
                    listed = message.epoch
                    found = copies.listing(listed)
                    self._send(CopyMessage(found.end, found.committed, found.files))
                elif isinstance(message, ReadMessage):
                    data = copies.read(listed, message.position, message.length)
                    self._connection.send(b"".join(encode_bytes(message.position, data)))
                elif isinstance(message, ForgetMessage):
                    copies.delete_earlier_copies(epoch)
            has_more = await self._more()

    def _fence(self, epoch: int) -> int:
        try:
            self._copies.fence(epoch)
        except Fenced as refusal:
            return refusal.higher
        return epoch
