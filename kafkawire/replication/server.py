"""The listening sockets of a follower, and a thread for each connection.

Threads, because each connection waits for the disk: a thread that waits for an fsync does not delay
the others.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import ssl
from collections.abc import Callable, Sequence
from threading import Event, Lock, Thread, current_thread

from kafkawire.log_lines import LineLimit
from kafkawire.replication.connection import BrokerConnection, TimeLimits
from kafkawire.replication.failures import DiskFailed, Fenced, FollowerError
from kafkawire.replication.follower import Follower
from kafkawire.replication.message_socket import shut_down
from kafkawire.replication.messages import ErrorMessage, FencedMessage, Message, WireError
from kafkawire.replication.wire import encode
from kafkawire.replication.writers import Writers

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
"""Each has a thread and up to 2 MiB of received bytes, together 128 MiB. A broker has one, and a
few more while another machine takes it over."""
SILENT_S = 30.0
"""A connection ends if the other machine does not confirm sent bytes within this time."""
LINES_AT_ONCE, LINES_PER_S = 20, 1.0
"""Limit for log lines about connections that ended, which anyone can cause."""
ACCEPT_PAUSE_S = 0.1
"""After a failed accept, as without free descriptors: the connection waits in the backlog."""


class FollowerServer:
    """Serves brokers on listening sockets, in threads that do not keep the process alive.

    `fatal` is called with a sentence when nothing may be acknowledged any more, or no connection be
    accepted. `cluster_id`: empty for brokers of any cluster; `context`: for TLS, None without.
    """

    def __init__(
        self,
        follower: Follower,
        listeners: Sequence[socket.socket],
        cluster_id: str,
        clock: Callable[[], float],
        fatal: Callable[[str], object],
        limits: TimeLimits = TimeLimits(),  # noqa: B008  (it cannot be changed)
        max_connections: int = MAX_CONNECTIONS,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._follower = follower
        self._listeners = listeners
        self._cluster_id = cluster_id
        self._clock = clock
        self._fatal = fatal
        self._limits = limits
        self._max_connections = max_connections
        self._context = context
        self._writers = Writers()
        self._lock = Lock()
        self._connections: dict[Thread, socket.socket] = {}
        self._lines = LineLimit(clock, LINES_AT_ONCE, LINES_PER_S)
        self._wake, self._woken = socket.socketpair()
        self._acceptor = Thread(target=self._accept_all, name="follower-accept", daemon=True)

    def start(self) -> None:
        self._acceptor.start()

    def close(self) -> None:
        """Close the listening sockets and all connections, and wait for their threads."""
        self._wake.close()
        self._acceptor.join()
        with self._lock:
            connections = dict(self._connections)
        for thread, connection in connections.items():
            with contextlib.suppress(OSError):  # it has ended
                shut_down(connection, socket.SHUT_RDWR)
            thread.join()

    def _accept_all(self) -> None:
        """Accept connections until `close`. The program of its thread."""
        # A follower that accepts nothing would look alive to its supervisor: it ends instead.
        try:
            self._accept_until_closed()
        except Exception as failure:
            logger.exception("no more connections can be accepted")
            self._fatal(
                f"no more connections can be accepted ({failure!r}): this follower ends, and "
                "accepts them after its next start"
            )

    def _accept_until_closed(self) -> None:
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as opened:
            opened.enter_context(self._woken)
            selector.register(self._woken, selectors.EVENT_READ)
            for listener in self._listeners:
                opened.enter_context(listener)
                listener.setblocking(False)
                selector.register(listener, selectors.EVENT_READ, listener)
            while True:
                for key, _ in selector.select():
                    if key.data is None:  # `close` was called
                        return
                    self._accept(key.data)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, address = listener.accept()
        except BlockingIOError:  # the connection has ended
            return
        except OSError as failure:
            self._log(logging.ERROR, "no connection can be accepted: %s", failure)
            Event().wait(ACCEPT_PAUSE_S)
            return
        self._begin(connection, f"{address[0]}:{address[1]}")

    def _begin(self, connection: socket.socket, peer: str) -> None:
        """Serve a connection in a thread, or refuse it."""
        with self._lock:
            if len(self._connections) >= self._max_connections:
                reason = (
                    f"this follower has {self._max_connections} connections, and accepts no more"
                )
            else:
                thread = Thread(target=self._serve, args=(connection, peer), daemon=True)
                # Before it starts: it removes itself at its end.
                self._connections[thread] = connection
                try:
                    thread.start()
                    return
                except RuntimeError as failure:
                    del self._connections[thread]
                    reason = f"this follower cannot start a thread for the connection: {failure}"
        self._log(logging.WARNING, "connection from %s refused: %s", peer, reason)
        with connection, contextlib.suppress(OSError):
            connection.setblocking(False)  # the text fits into the buffer of a new connection
            connection.sendall(encode(ErrorMessage(reason)))

    def _serve(self, connection: socket.socket, peer: str) -> None:
        """Serve a connection. The program of its thread."""
        try:
            connection = self._wrap_in_tls(connection)
            broker = BrokerConnection(
                connection, peer, self._follower, self._writers, self._cluster_id, self._clock,
                self._limits,
            )  # fmt: skip
            reason = self._run(broker, connection, peer)
            if reason is not None:
                broker.refuse(reason)
        except OSError as failure:
            self._log(logging.WARNING, "connection from %s has no valid TLS: %s", peer, failure)
        finally:
            connection.close()
            with self._lock:
                del self._connections[current_thread()]

    def _wrap_in_tls(self, connection: socket.socket) -> socket.socket:
        """Return the connection with TLS, after its handshake, if the follower has that. Raises
        OSError."""
        if self._context is None:
            return connection
        connection.settimeout(self._limits.handshake_s)
        secured = self._context.wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False
        )
        # Before the handshake, which `close` may have to end. The plain socket is detached.
        with self._lock:
            self._connections[current_thread()] = secured
        try:
            secured.do_handshake()
        except BaseException:
            secured.close()
            raise
        return secured

    def _run(
        self, broker: BrokerConnection, connection: socket.socket, peer: str
    ) -> Message | None:
        """Serve a connection until it ends; return the reason to send to the broker."""
        try:
            set_options(connection)
            broker.run()
            self._log(logging.INFO, "connection from %s ended", peer)
        # Final: after a failed fsync nothing may be acknowledged any more, on any connection.
        except DiskFailed as failure:
            self._fatal(str(failure))
        except Fenced as refusal:
            self._log(logging.WARNING, "connection from %s %s", peer, refusal)
            return FencedMessage(refusal.higher)
        except (FollowerError, WireError, TimeoutError) as failure:
            self._log(logging.WARNING, "connection from %s closed: %s", peer, failure)
            return ErrorMessage(str(failure))
        except OSError as failure:
            self._log(logging.INFO, "connection from %s lost: %s", peer, failure)
        except Exception as failure:
            logger.exception("connection from %s failed", peer)
            return ErrorMessage(f"the follower has failed: {failure!r}")
        return None

    def _log(self, level: int, text: str, *arguments: object) -> None:
        with self._lock:
            omitted = self._lines.admit()
        if omitted is not None:
            more = f" (and {omitted:,} lines like this one)" if omitted else ""
            logger.log(level, text + more, *arguments)


def set_options(connection: socket.socket) -> None:
    """Send small messages at once, and notice when the other machine is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = int(SILENT_S * 1000)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
