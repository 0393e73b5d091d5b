"""The parent's end of the fork server (kafkawire.forkserver), which starts brokers for tests.

Messages on its connection: one byte for the kind of request, its content as a frame
(kafkawire.childprocess.frames), and a frame with the reply. START comes with two descriptors, for
the output of the process and for commands to it (kafkawire.testing.control), and is answered with
its pid; POLL has a pid and is answered with its exit code, or None while it runs.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

from kafkawire.childprocess.frames import pack, read_frame, write_frame

START, POLL = b"S", b"P"
ANSWER_S = 60.0
"""How long an answer may take: it imports the broker before the first, on a busy machine."""
END_S = 10.0
"""How long the end of the fork server may take before it is killed: it only has to be scheduled."""


class Start(NamedTuple):
    """The process to fork: `kafkawire` with these arguments, in this folder. `manual_clock`: with a
    clock that the test moves (kafkawire.testing.commands). `brokers`: how many brokers it has, with
    the ports that those after the first one had before (kafkawire.testing.brokers)."""

    arguments: Sequence[str]
    environ: Mapping[str, str]
    folder: str
    manual_clock: bool = False
    brokers: int = 1
    ports: Mapping[int, Mapping[str, int]] | None = None


class ForkServerFailed(RuntimeError):
    """The fork server did not start or has ended; the text has its output."""


class ForkServer:
    """A process that forks others. Used from any thread of the process that created it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Start the process, which takes a moment to be ready; requests wait for it."""
        self.owner = os.getpid()
        self._connection, other = socket.socketpair()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by close)
        command = [sys.executable, "-P", "-m", "kafkawire.forkserver"]
        with other:
            self._process = subprocess.Popen(
                [*command, str(other.fileno()), str(self.owner)],
                env={**environ, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[other.fileno()],
                start_new_session=True,  # Ctrl-C in a terminal reaches only the parent
            )
        self._lock = threading.Lock()

    @property
    def usable(self) -> bool:
        """Whether it runs, and was started by this process rather than by one that forked it."""
        return self.owner == os.getpid() and self._process.poll() is None

    def start(self, start: Start) -> Forked:
        """Fork a process. Raises ForkServerFailed."""
        reading, writing = os.pipe()
        control, other = socket.socketpair()
        try:
            pid = self._ask(START, start, [writing, other.fileno()])
        except BaseException:
            os.close(reading)
            control.close()
            raise
        finally:
            os.close(writing)
            other.close()
        return Forked(self, pid, open(reading, encoding="utf-8", errors="replace"), control)

    def poll(self, pid: int) -> int | None:
        """Return the exit code of a forked process, None while it runs."""
        try:
            found: int | None = self._ask(POLL, pid, [])
        except ForkServerFailed:
            if self._process.poll() is None:
                raise
            return -signal.SIGKILL  # it was killed with the fork server
        return found

    def _ask(self, kind: bytes, content: object, fds: list[int]) -> Any:
        if self.owner != os.getpid():
            raise ForkServerFailed(f"these brokers belong to process {self.owner}")
        with self._lock:
            try:
                socket.send_fds(self._connection, [kind], fds)
                write_frame(self._connection.fileno(), *pack(content))
                if select.select([self._connection], [], [], ANSWER_S)[0]:
                    body = read_frame(self._connection.fileno())
                    if body is not None:
                        return pickle.loads(body)
            except OSError as failure:
                raise ForkServerFailed(self._failure(str(failure))) from failure
            # An answer that came later would be taken for that of another request.
            self._connection.close()
        raise ForkServerFailed(self._failure(f"no answer in {ANSWER_S:g} s"))

    def _failure(self, reason: str) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            reason = f"it ended with {self._process.wait(END_S)}"  # its pipe ends a moment earlier
        self._errors.seek(0)
        output = self._errors.read().decode(errors="replace")
        return f"the process that starts brokers failed: {reason}\n{output}"

    def close(self) -> None:
        """End the process and all that it forked. No effect in a process that was forked."""
        if self.owner != os.getpid():
            return
        self._connection.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


class Forked:
    """A forked process, with the methods of subprocess.Popen."""

    def __init__(
        self, server: ForkServer, pid: int, output: IO[str], control: socket.socket
    ) -> None:
        self._server = server
        self.pid = pid
        self.output = output
        """The pipe from its standard output and standard error."""
        self.control = control
        """The connection for commands."""
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.poll(self.pid)
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for its end and return its exit code. Raises TimeoutError."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = 0.001
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"process {self.pid} has not ended in {timeout_s:g} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.02)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


_shared: ForkServer | None = None
_sharing = threading.Lock()


def inherited_environ() -> dict[str, str]:
    """Return the environment for brokers: this process's own, without settings of a broker."""
    return {name: text for name, text in os.environ.items() if not name.startswith("KAFKAWIRE_")}


def find_or_start_server() -> ForkServer:
    """Return the fork server of this process, which is started at the first call and ends with the
    process."""
    global _shared
    with _sharing:
        if _shared is None or not _shared.usable:
            _shared = ForkServer(inherited_environ())
        return _shared


@atexit.register
def close_shared() -> None:
    """End the shared fork server and its brokers."""
    global _shared
    with _sharing:
        if _shared is not None:
            _shared.close()
            _shared = None
