"""The connections that write, one for each log: a new one replaces the one before it.

A broker that lost its connection opens another one, of which the follower may be notified earlier
than of the loss.
"""

from __future__ import annotations

import contextlib
import socket
from threading import Event, Lock

from kafkawire.replication.failures import FollowerError
from kafkawire.replication.message_socket import shut_down

REPLACED_S = 10.0
"""How long to wait for the end of the former connection, which may be in an fsync."""


class Writers:
    """The writing connections by node id and epoch. Thread-safe."""

    def __init__(self, replaced_s: float = REPLACED_S) -> None:
        self._replaced_s = replaced_s
        self._lock = Lock()
        self._current: dict[tuple[int, int], LogWriter] = {}

    def set_writer(self, writer: LogWriter) -> None:
        """Make a connection the one that writes its log, after the former one has ended. Raises
        FollowerError if that does not end."""
        # Until the thread of the former one has ended: both would write at the same log position.
        while True:
            with self._lock:
                former = self._current.setdefault(writer.log, writer)
            if former is writer:
                return
            # Without the lock, which the former one needs for its end.
            if not former.stop_within(self._replaced_s):
                raise FollowerError(
                    f"the former connection for this log has not ended within "
                    f"{self._replaced_s:g} s: the disk may be slow or hang"
                )

    def remove_writer(self, writer: LogWriter) -> None:
        with self._lock:
            # Not if it never began, as it waited for a former one.
            if self._current.get(writer.log) is writer:
                del self._current[writer.log]
        writer.set_ended()


class LogWriter:
    """One connection that writes the log (node id, epoch)."""

    def __init__(self, log: tuple[int, int], connection: socket.socket) -> None:
        self.log = log
        self._connection = connection
        self._ended = Event()

    def stop_within(self, within_s: float) -> bool:
        """Shut the connection down, and return whether it has ended within a time."""
        with contextlib.suppress(OSError):  # it is closed already
            shut_down(self._connection, socket.SHUT_RDWR)
        return self._ended.wait(within_s)

    def set_ended(self) -> None:
        self._ended.set()
