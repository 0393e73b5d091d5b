"""A network between processes that fails on request: TCP proxies on this machine.

with Network() as network:
    port = network.link("broker 1", "postgresql", ("127.0.0.1", 5432))
    network.silence("broker 1")

Each link (source, destination) has a port of its own, which the source connects to; or links from
several sources have one port, if all must know the destination by one address. A link may delay
bytes, hold them, reset connections or refuse new ones. A silent link is like a network that
loses packets: both ends keep their connections, and what was sent arrives once the link has healed.

Not done: the kernel accepts a connection at once, even if the link is silent; so connecting itself
never takes long.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType

Address = tuple[str, int]

CHUNK_BYTES = 256 << 10
MAX_CHUNKS = 64
"""Chunks of a direction between reading and writing: 16 MiB, more than a connection of 100 MB/s has
on its way at a delay of 100 ms. Then the sender has to wait."""
RESET = struct.pack("ii", 1, 0)
"""The option SO_LINGER that makes close() send RST."""


@dataclass
class Direction:
    """The state of one direction. `delay_s`: from the arrival of bytes to their departure;
    `bytes_per_s`: the rate of one connection, 0: unlimited; `flowing`: cleared while silent."""

    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    flowing: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.flowing.set()

    def due(self, last: float, now: float, size: int) -> float:
        """The time when a chunk that is read now is passed on; `last`: that of the one before."""
        at = max(last, now + self.delay_s)
        return at + size / self.bytes_per_s if self.bytes_per_s else at


class Link:
    """A proxy in the running loop, whose methods are called there: see `Network` for threads.
    `forth`: to the target, `back`: from it; `connect_s`: a delay of new connections."""

    def __init__(self, target: Address, connect_s: float = 0.0) -> None:
        self.forth = Direction()
        self.back = Direction()
        self.connect_s = connect_s
        self.refusing = False
        self.accepted = 0
        self._target = target
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}

    async def start(self) -> int:
        """Listen on a port chosen by the system, and return it."""
        self._server = await asyncio.start_server(self.accept, "127.0.0.1", 0, limit=CHUNK_BYTES)
        return _port(self._server)

    async def serve_forever(self) -> None:
        assert self._server is not None
        await self._server.serve_forever()

    async def close(self) -> None:
        """Listen no more, and reset all connections."""
        self.refuse()  # connections that the kernel has accepted already
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.gather(*self._open, return_exceptions=True)

    def cut(self) -> None:
        """Reset all connections, at both ends."""
        for task, writers in self._open.items():
            for writer in writers:
                _reset(writer)
            task.cancel()

    def silence(self, forth: bool = True, back: bool = True) -> None:
        """Hold what is sent in these directions. New connections are accepted, but reach the target
        only once `forth` has healed."""
        if forth:
            self.forth.flowing.clear()
        if back:
            self.back.flowing.clear()

    def delay(self, forth_s: float, back_s: float) -> None:
        """Delay bytes by these seconds."""
        self.forth.delay_s, self.back.delay_s = forth_s, back_s

    def refuse(self) -> None:
        """Reset new connections; those that are open remain."""
        self.refusing = True

    def heal(self) -> None:
        """Pass everything on at once, starting with what was held."""
        self.refusing = False
        self.delay(0.0, 0.0)
        self.forth.flowing.set()
        self.back.flowing.set()

    async def accept(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        """Serve a new connection until it ends."""
        self.accepted += 1
        if self.refusing:
            _reset(to_near)
            return
        task = asyncio.current_task()
        assert task is not None
        writers = self._open[task] = [to_near]
        ended = False
        try:
            # Reset by one end, or by `cut`: asyncio's own callback fails for a cancelled task.
            with contextlib.suppress(OSError, ExceptionGroup, asyncio.CancelledError):
                await self._pass_on(near, to_near, writers)
                ended = True
        finally:
            del self._open[task]
            for writer in writers:
                writer.close() if ended else _reset(writer)

    async def _pass_on(
        self,
        near: asyncio.StreamReader,
        to_near: asyncio.StreamWriter,
        writers: list[asyncio.StreamWriter],
    ) -> None:
        """Copy both directions until both have ended; the first error ends the other one."""
        await self.forth.flowing.wait()
        await asyncio.sleep(self.connect_s)
        far, to_far = await asyncio.open_connection(*self._target, limit=CHUNK_BYTES)
        writers.append(to_far)
        ways = (near, to_far, self.forth), (far, to_near, self.back)
        async with asyncio.TaskGroup() as tasks:
            for reader, writer, direction in ways:
                chunks: Chunks = asyncio.Queue(MAX_CHUNKS)
                tasks.create_task(_read(reader, direction, chunks))
                tasks.create_task(_write(writer, direction, chunks))


SourceOf = Callable[[Address], str | None]
"""Returns the source that has a connection from this address, None: no source any more. Blocks."""


class SharedPort:
    """One port of links from several sources. `links` by source."""

    def __init__(self, links: Mapping[str, Link], source_of: SourceOf) -> None:
        self._links = links
        self._source_of = source_of
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen on a port chosen by the system, and return it."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=CHUNK_BYTES)
        return _port(self._server)

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _accept(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        address = to_near.get_extra_info("peername")[:2]
        source = await asyncio.to_thread(self._source_of, address)
        if source is None:
            _reset(to_near)
        else:
            await self._links[source].accept(near, to_near)


Chunks = asyncio.Queue[tuple[float, bytes | OSError]]
"""Chunks with the times when they are due: an empty one is the end of the stream, an error that of
the connection."""


async def _read(reader: asyncio.StreamReader, direction: Direction, chunks: Chunks) -> None:
    now = asyncio.get_running_loop().time
    due, last = 0.0, False
    while not last:
        chunk: bytes | OSError
        try:
            chunk = await reader.read(CHUNK_BYTES)
        except OSError as failure:
            chunk = failure
        size = 0 if isinstance(chunk, OSError) else len(chunk)
        last = size == 0
        due = direction.due(due, now(), size)
        await chunks.put((due, chunk))


async def _write(writer: asyncio.StreamWriter, direction: Direction, chunks: Chunks) -> None:
    now = asyncio.get_running_loop().time
    while True:
        due, chunk = await chunks.get()
        if (wait_s := due - now()) > 0:
            await asyncio.sleep(wait_s)
        await direction.flowing.wait()
        if isinstance(chunk, OSError):
            raise chunk
        if not chunk:
            writer.write_eof()
            return
        writer.write(chunk)
        await writer.drain()


def _port(server: asyncio.Server) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with RST."""
    found = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):  # it is closed already
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()


class Network:
    """Links by source and destination, in a thread of their own. Where a method has the names of
    both, an empty one stands for all; a method returns when its effect is there."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, str], Link] = {}
        self._shared: list[SharedPort] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Network:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        """Close all links, and wait for connections that were just being accepted: the loop would
        leave them open."""
        for port in self._shared:
            port.close()
        for each in self._links.values():
            await each.close()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)

    def link(self, source: str, destination: str, target: Address) -> int:
        """Start a link to an address, and return the port of 127.0.0.1 to connect to instead."""
        assert (source, destination) not in self._links

        async def start() -> int:
            made = self._links[source, destination] = Link(target)
            return await made.start()

        return asyncio.run_coroutine_threadsafe(start(), self._loop).result()

    def links(
        self, sources: Collection[str], destination: str, target: Address, source_of: SourceOf
    ) -> int:
        """Start links from several sources to an address, and return the port of 127.0.0.1 to which
        all of them connect instead."""
        made = {source: Link(target) for source in sources}
        pairs = {(source, destination): link for source, link in made.items()}
        assert self._links.keys().isdisjoint(pairs)

        async def start() -> int:
            self._links.update(pairs)
            shared = SharedPort(made, source_of)
            self._shared.append(shared)
            return await shared.start()

        return asyncio.run_coroutine_threadsafe(start(), self._loop).result()

    def accepted(self, source: str = "", destination: str = "") -> int:
        """Return how many connections were accepted."""
        return sum(each.accepted for each in self._chosen(source, destination))

    def cut(self, source: str = "", destination: str = "") -> None:
        """Reset all connections; new ones are possible."""
        self._run(source, destination, Link.cut)

    def silence(
        self, source: str = "", destination: str = "", *, forth: bool = True, back: bool = True
    ) -> None:
        """Hold what is sent, in one direction or both, and new connections."""
        self._run(source, destination, lambda link: link.silence(forth, back))

    def delay(
        self, source: str = "", destination: str = "", *, forth_s: float, back_s: float
    ) -> None:
        """Delay what is sent by these seconds."""
        self._run(source, destination, lambda link: link.delay(forth_s, back_s))

    def refuse(self, source: str = "", destination: str = "") -> None:
        """Reset new connections; with `cut` before, as if no server were there."""
        self._run(source, destination, Link.refuse)

    def heal(self, source: str = "", destination: str = "") -> None:
        """End all of these faults; what was held arrives."""
        self._run(source, destination, Link.heal)

    @contextmanager
    def silent(self, source: str = "", destination: str = "") -> Iterator[None]:
        """Silence for the duration of a `with` statement."""
        self.silence(source, destination)
        try:
            yield
        finally:
            self.heal(source, destination)

    def _chosen(self, source: str, destination: str) -> list[Link]:
        found = [
            link
            for (one, other), link in self._links.items()
            if source in ("", one) and destination in ("", other)
        ]
        assert found, f"there is no link from {source or 'any'} to {destination or 'any'}"
        return found

    def _run(self, source: str, destination: str, change: Callable[[Link], None]) -> None:
        chosen = self._chosen(source, destination)

        async def run() -> None:
            for link in chosen:
                change(link)

        asyncio.run_coroutine_threadsafe(run(), self._loop).result()
