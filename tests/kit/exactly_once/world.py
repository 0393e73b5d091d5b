"""A whole broker in a simulation: requests are bytes that go through its handlers, in virtual time.

`World` is what outlives a process (disk, SQL, bucket, clients); `SimBroker` is one life, put
together like kafkawire.broker.broker; `SimNet` is the network of one client, which delays requests
and loses answers. Clients and all lives share one event loop: a life that ends leaves tasks and
timers, which are cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from struct import pack, unpack
from typing import Any

from kafkawire.broker.broker import Broker
from kafkawire.broker.new_topics import INTERNAL_TOPICS
from kafkawire.codec.compile import decode, encode
from kafkawire.codec.types import Buffer
from kafkawire.log.io.file_span import FileSpan
from kafkawire.log.manager import Log
from kafkawire.messages.registry import APIS, response_class
from kafkawire.server.connection import Connection
from kafkawire.server.host import Host
from tests.kit.env import EPOCH_MS
from tests.kit.exactly_once.history import History
from tests.kit.exactly_once.producer import Lost
from tests.kit.log.logs import FOLDER
from tests.kit.simloop import SimLoop
from tests.kit.tier.crash_points import Died, Points
from tests.kit.tier.fake_bucket import StoreFaults
from tests.kit.tier.world import CLUSTER_NODE, PointStorage, TierProcess, TierWorld

KEYS = {f"{spec.name}Request": key for key, spec in APIS.items()}
TIMEOUT_S = 2.0
"""When a client does not wait for an answer any longer."""
BURY_ROUNDS = 20
ONLY_ON_TIME = {26: 4, 28: 4}
"""EndTxn and TxnOffsetCommit of version 1, which the network must not repeat late: where the epoch
stays the same, they act on the producer's next transaction. A flaw of the protocol, which version 2
repairs (KIP-890)."""


def kind_of(path: str) -> str:
    """Every file is a crash point here."""
    return path.rsplit("/", 2)[-2]


class World(TierWorld):
    """`late`: the share of requests that the network delays for seconds. `how`: what a crash point
    does, "kill" or "power"."""

    def __init__(self, seed: int, **values: Any) -> None:
        small = {
            "transaction_state_log_num_partitions": 2,
            "offsets_topic_num_partitions": 2,
            "transaction_abort_timed_out_transaction_cleanup_interval_ms": 300,
            "transaction_max_timeout_ms": 60_000,
        }
        super().__init__(seed, **{**small, **values})
        self.loop = SimLoop()
        self.history = History()
        self.late = 0.0
        self.how = "kill"
        self.points = Points()
        self.broker: SimBroker | None = None
        self.ended = asyncio.Event()
        self.serving = asyncio.Event()
        self.clients: set[asyncio.Task[Any]] = set()
        self.timers: set[asyncio.TimerHandle] = set()
        self.bucket.faults = StoreFaults(delay_s=(0.001, 0.01))
        self.crashes = 0

    # -- clients --------------------------------------------------------------------------

    def spawn(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task that outlives brokers."""
        task = self.loop.create_task(coro)
        self.clients.add(task)
        return task

    async def sleep(self, seconds: float) -> None:
        """Pause a client."""
        done = asyncio.Event()
        self.later(seconds, done.set)
        await done.wait()

    def later(self, seconds: float, fn: Callable[[], object]) -> None:
        """Run something of a client's later, whatever happens to brokers meanwhile."""

        def act() -> None:
            self.timers.discard(handle)
            fn()

        handle = self.loop.call_later(seconds, act)
        self.timers.add(handle)

    # -- lives ----------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run to the end of `main`, which starts and ends brokers. Raises what clients raise."""
        asyncio.set_event_loop(None)
        task = self.spawn(main)
        try:
            while not task.done():
                try:
                    self.loop.run_until_complete(task)
                except Died:
                    assert self.broker is not None
                    self.broker.end(self.how)
            task.result()
        finally:
            left = self.loop.tasks()
            for each in left:
                each.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left, timeout=1))
            self.loop.close()

    async def start(self) -> bool:
        """Start a broker; False if it has ended meanwhile."""
        self.ended.clear()
        if self.points.dead:
            self.points = Points()
        self.broker = broker = SimBroker(self)
        starting = broker.env.spawn(broker.start(), "start")
        ended = self.spawn(self.ended.wait())
        await asyncio.wait([starting, ended], return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not broker.over and isinstance(starting.exception(), OSError):
            broker.end("kill")  # the disk failed; an operator starts it again
        if broker.over:
            await self.bury()
            return False
        starting.result()
        self.serving.set()
        return True

    async def life(self, seconds: float, how: str) -> None:
        """Let the broker live for a while, or until a crash point, and end it: by "kill", "power"
        or "close"."""
        ended = self.spawn(self.ended.wait())
        await asyncio.wait([ended, self.spawn(self.sleep(seconds))], return_when="FIRST_COMPLETED")
        ended.cancel()
        broker = self.broker
        assert broker is not None
        if not broker.over:
            if how == "close":
                self.serving.clear()
                await self._close(broker)
            if not broker.over:
                broker.end(how)
        await self.bury()

    async def _close(self, broker: SimBroker) -> None:
        closing = broker.env.spawn(broker.close(), "close")
        ended = self.spawn(self.ended.wait())
        await asyncio.wait([closing, ended], return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not broker.over:
            closing.result()

    async def bury(self) -> None:
        """Cancel what a dead process has left."""
        self.crashes += 1
        self.serving.clear()
        scheduled: list[asyncio.TimerHandle] = self.loop._scheduled  # type: ignore[attr-defined]
        for handle in list(scheduled):
            if handle not in self.timers:
                handle.cancel()
        for _ in range(BURY_ROUNDS):
            left = [task for task in self.loop.tasks() if task not in self.clients]
            if not left:
                break
            for task in left:
                task.cancel()
            await self.sleep(0.001)
        self.loop.failures.clear()


class SimBroker(TierProcess):
    """One life of a whole broker."""

    world: World
    parts: Broker
    host: Host

    def __init__(self, world: World) -> None:
        super().__init__(world, world.points, loop=world.loop, kind_of=kind_of)
        self.links: dict[Link, None] = {}

    async def start(self) -> None:
        world, metadata = self.world, self.metadata
        self.catalog = await metadata.open()
        await metadata.register_broker(CLUSTER_NODE, {}, None)
        rows = world.database.offsets
        self.storage = PointStorage(
            rows,
            CLUSTER_NODE,
            self.env.clock.now_ms,
            world.database.leader_of,
            pause=self.sql_pause,
        )
        self.storage.process = self
        metadata._storages.append(self.storage)
        self.log = await Log.open(
            self.env, FOLDER, world.config, self.catalog, self.storage, metadata, CLUSTER_NODE,
            pinned_topics=INTERNAL_TOPICS,
        )  # fmt: skip
        sql: Any = metadata
        self.parts = Broker(
            self.env, sql, self.storage, self.catalog, world.config, {}, self.log,
            {"PLAINTEXT": ("simulated", 9092)}, FOLDER,
        )  # fmt: skip
        await self.parts._start_tiering(self.store)
        self.host = Host(self.parts)
        await self.parts._start_coordinators()

    async def close(self) -> None:
        """End cleanly, like Server.close."""
        self.world.fs.faults.room_bytes = None
        for api in self.host.apis.values():
            if api.hot is not None:
                api.hot.close()
        await self.parts.close()
        self.end("kill")

    def end(self, how: str) -> None:
        """End here and now; clients lose their connections."""
        self.die(how)
        links, self.links = self.links, {}
        for link in links:
            link.broken()
        self.world.ended.set()


class Link:
    """One connection of a client, as the socket of the broker's side. One request at a time."""

    def __init__(self, broker: SimBroker) -> None:
        self.broker = broker
        self.world = broker.world
        self.waiting: asyncio.Future[bytes] | None = None
        self.open = True
        self._in = bytearray()
        self._connection = Connection(broker.host, self, "127.0.0.1", "PLAINTEXT")
        broker.host.connections.add(self._connection)
        broker.links[self] = None

    # -- as a client sees it --------------------------------------------------------------

    def send(self, raw: bytes, delay_s: float) -> asyncio.Future[bytes]:
        """Send a frame that arrives after `delay_s`; the frame of the answer. Raises Lost."""
        self.waiting = self.world.loop.create_future()
        self.world.later(delay_s, lambda: self._arrived(raw))
        return self.waiting

    def leave(self) -> None:
        """Wait no longer: what was sent may still arrive, its answer will not."""
        self.waiting = None

    def broken(self) -> None:
        """Tell the client that the connection has ended."""
        self.open = False
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(Lost("the connection ended"))

    def _arrived(self, raw: bytes) -> None:
        if self.open and not self.broker.over:
            at = 0
            while at < len(raw) and self.open:
                room = self._connection.get_buffer(-1)
                count = min(len(room), len(raw) - at)
                room[:count] = raw[at : at + count]
                at += count
                self._connection.buffer_updated(count)

    # -- as the connection sees it --------------------------------------------------------

    def write(self, parts: list[Buffer]) -> None:
        self._in += b"".join(bytes(part) for part in parts)
        while len(self._in) >= 4:
            (size,) = unpack(">i", self._in[:4])
            if len(self._in) < 4 + size:
                return
            answer = bytes(self._in[4 : 4 + size])
            del self._in[: 4 + size]
            delay_s = self.world.rng.random() * 0.004
            self.world.later(delay_s, lambda answer=answer: self._answered(answer))  # type: ignore[misc]

    def _answered(self, answer: bytes) -> None:
        if self.open and self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(answer)

    def send_file(self, span: FileSpan) -> bool:
        self.write([span.read(0, len(span))])
        return True

    def unsent_bytes(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self, reason: str | None) -> None:
        self.broken()
        assert reason is None or self.broker.over, f"the broker closed a connection: {reason}"


class SimNet:
    """The network of one client."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng: Random = world.rng
        self._link: Link | None = None
        self._next = 0

    def now(self) -> float:
        return self.world.loop.now

    def now_ms(self) -> int:
        return EPOCH_MS + int(self.now() * 1000) + self.world.clock_ms

    async def sleep(self, seconds: float) -> None:
        await self.world.sleep(seconds)

    async def call(self, request: Any, version: int) -> Any:
        """Send a request once a broker serves; raises Lost."""
        await self.world.serving.wait()
        broker = self.world.broker
        assert broker is not None
        link = self._link
        if link is None or not link.open or link.broker is not broker:
            link = self._link = Link(broker)
        key = KEYS[type(request).__name__]
        delay_s = self.rng.random() * 0.003
        if self.rng.random() < self.world.late and version > ONLY_ON_TIME.get(key, -1):
            delay_s = self.rng.random() * 5
        answered = link.send(self._frame(key, version, request), delay_s)
        self.world.later(TIMEOUT_S, lambda: _give_up(answered))
        try:
            answer = await answered
        except Lost:
            link.leave()
            self._link = None
            raise
        flexible_from = APIS[key].flexible_from
        tags = flexible_from is not None and version >= flexible_from
        return decode(response_class(key), version, answer[5 if tags else 4 :])

    def _frame(self, key: int, version: int, request: Any) -> bytes:
        self._next += 1
        head = pack(">hhih", key, version, self._next, 3) + b"sim"
        flexible_from = APIS[key].flexible_from
        if flexible_from is not None and version >= flexible_from:
            head += b"\0"
        body = head + encode(request, version)
        return pack(">i", len(body)) + body


def _give_up(answered: asyncio.Future[bytes]) -> None:
    if not answered.done():
        answered.set_exception(Lost("no answer in time"))
