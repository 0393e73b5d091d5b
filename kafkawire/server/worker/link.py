"""The worker's end of its connection to the supervisor, a pair of Unix sockets with lines of text.

The worker sends `beat` each second while its event loop runs, and `ready` once it serves. Then it
gets a line with the node ids of the workers that serve, whenever one more does: it gives them new
partitions at once, without having seen their heartbeats rise, and answers `knows` with the same
ids. It gets `open` once all know of all: then it accepts clients at the shared addresses, too, so
that none of them creates a topic that the first worker alone leads. With cluster.takeover.enable it
sends `absent` with the brokers that this machine is to start, each as node id and broker epoch with
a colon between; `removed` when its broker has removed itself from the cluster, so that it is not
started again. The end of the connection says that the supervisor has ended: the worker then stops
as after SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker


logger = logging.getLogger(__name__)

READY, BEAT, KNOWS, ABSENT, REMOVED = b"ready", b"beat", b"knows", b"absent", b"removed"
OPEN = b"open"
BEAT_S = 1.0
"""Interval of beats; the supervisor kills a worker that has sent none for ten of its own."""
LINE_BYTES_MAX = 4096
"""Maximum line: the node ids of 64 workers have 704 bytes."""


class SupervisorLink:
    """The connection. `close` it before the event loop ends."""

    def __init__(self, descriptor: int, stop: Callable[[], object]) -> None:
        """`stop` is called when the supervisor has ended."""
        self._loop = asyncio.get_running_loop()
        self._stop = stop
        self._broker: Broker | None = None
        self._open: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._received = b""
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket.fileno(), self._read)
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def send_ready(self, broker: Broker, opened: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Report that the broker serves; `opened` is called when it is to accept at the shared
        addresses."""
        self._broker, self._open = broker, opened
        self._send(READY)

    def send_absent(self, epochs: Mapping[int, int]) -> None:
        """Report brokers of other machines that this machine is to start, with their epochs."""
        self._send(b" ".join([ABSENT, *(b"%d:%d" % each for each in sorted(epochs.items()))]))

    def send_removed(self) -> None:
        """Report that the broker is not in the cluster any more."""
        self._send(REMOVED)

    def _beat(self) -> None:
        self._send(BEAT)
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def _send(self, line: bytes) -> None:
        """Send without waiting: a supervisor that is stopped does not hold up the worker, and one
        that has ended is noticed by `_read`."""
        with contextlib.suppress(OSError):
            self._socket.send(line + b"\n")

    def _read(self) -> None:
        try:
            data = self._socket.recv(LINE_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            logger.error("the supervisor of the workers has ended, so this worker stops")
            self._loop.remove_reader(self._socket.fileno())
            self._stop()
            return
        *lines, self._received = (self._received + data).split(b"\n")
        broker, known = self._broker, [line for line in lines if line != OPEN]
        if broker is None:
            return
        if known:  # the last line has all of them
            nodes = frozenset(int(word) for word in known[-1].split())
            broker.env.spawn(self._learn(broker, nodes), "learn of workers")
        if len(known) < len(lines) and self._open is not None:
            broker.env.spawn(self._open(), "open the shared addresses")
            self._open = None

    async def _learn(self, broker: Broker, nodes: frozenset[int]) -> None:
        # They have just been registered: also if this worker knows of no other broker yet.
        with contextlib.suppress(OSError):  # MetadataError: the next poll reads them
            await broker.topics.lock.apply_changes()
        broker.liveness.running(nodes)
        self._send(b" ".join([KNOWS, *(b"%d" % node for node in sorted(nodes))]))

    def close(self) -> None:
        """Close the connection."""
        self._timer.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()


async def accept_on(
    descriptors: Iterable[int], protocol: Callable[[], asyncio.BaseProtocol], backlog: int
) -> list[asyncio.Server]:
    """Accept connections on sockets that other processes may accept on, too. Closing what is
    returned closes this process's descriptors; the sockets listen as long as the supervisor runs.
    """
    loop = asyncio.get_running_loop()
    return [
        await loop.create_server(protocol, sock=socket.socket(fileno=each), backlog=backlog)
        for each in descriptors
    ]
