"""The console of `kafkawire serve --console`: a process with the pages, started again when it ends.

A thread starts it and waits for its end; the event loop has no part in it. Linux ends the process
with that thread, so with the broker.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from kafkawire.broker.options import SecurityProtocol, ServeOptions
from kafkawire.childprocess.parent_end import exit_words
from kafkawire.childprocess.process_thread import spawn
from kafkawire.childprocess.restarts import Restarts
from kafkawire.client.address import split_address
from kafkawire.log_lines import address_of, reason_of
from kafkawire.server.listeners.addresses import AddressError, cannot_bind

logger = logging.getLogger(__name__)

NICE = 10
"""Its pages may wait, clients of the broker may not."""
BACKLOG = 128
STOP_S = 5.0
"""How long its requests may last after the broker has stopped."""


class ConsoleProcess:
    """The console over all its starts, or none. `url`: where its pages are, or empty."""

    def __init__(self, accepting: socket.socket | None, listener: str) -> None:
        """`accepting`: listens at the address of the pages; None: there is no console; `listener`:
        the one of the broker that the console connects to."""
        self._accepting = accepting
        self._listener = listener
        self._server = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafkawire-console", daemon=True)
        self.url = ""
        if accepting is not None:
            self.url = f"http://{address_of(*accepting.getsockname()[:2])}/"

    @classmethod
    def bind_address(cls, options: ServeOptions) -> ConsoleProcess:
        """Bind the address of --console, if it is given. Raises AddressError."""
        found = split_address(options.console)
        if found is None:
            return cls(None, "")
        _, host, port = found
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            accepting = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            if error.errno is not None and error.errno > 0:  # the text of `socket` has the address
                error.strerror = os.strerror(error.errno)
            raise cannot_bind("console", host, port, error) from None
        return cls(accepting, listener_of(options))

    def start(self, listeners: Mapping[str, tuple[str, int]]) -> None:
        """Start it; `listeners`: the addresses of the broker, by name. Called once it serves."""
        if self._accepting is not None:
            self._server = address_of(*listeners[self._listener])
            self._thread.start()

    def stop(self) -> None:
        """Request its end. Returns immediately."""
        self._stopping.set()
        if (process := self._process) is not None:
            process.terminate()

    def close(self) -> None:
        """Wait for its end, for STOP_S at most, and close its address. Blocks."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(STOP_S)
            if self._thread.is_alive() and (process := self._process) is not None:
                process.kill()
                self._thread.join()
        if self._accepting is not None:
            self._accepting.close()

    def _run(self) -> None:
        """Start the process again whenever it does not run. The program of the thread."""
        restarts = Restarts()
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                why = f"has ended with {exit_words(self._live())}"
            except OSError as failure:
                why = f"cannot be started ({reason_of(failure)})"
            if self._stopping.is_set():
                return
            delay_s = restarts.next_delay_s(time.monotonic() - began_s)
            when = f"in {delay_s:g} s" if delay_s else "now"
            logger.error("the console at %s %s: it is started again %s", self.url, why, when)
            self._stopping.wait(delay_s)

    def _live(self) -> int:
        """Run the process until its end; return its exit code. OSError."""
        assert self._accepting is not None
        number = self._accepting.fileno()
        process = self._process = spawn(self._command(number), NICE, [number])
        if self._stopping.is_set():  # `stop` may have come before it was known
            process.terminate()
        process.communicate()  # until it ends; it prints its address only
        self._process = None
        return process.returncode

    def _command(self, number: int) -> Sequence[str]:
        child = f"{os.getpid()},{number}"
        words = ("console", "--server", self._server, "--child", child)
        return (sys.executable, "-P", "-m", "kafkawire", *words)


def listener_of(options: ServeOptions) -> str:
    """Return the name of the listener that a console connects to: the first without log-in and
    encryption. Raises AddressError if there is none: a console with a log-in of the broker's own
    would give the rights of that to every user of this machine."""
    for each in options.listeners:
        if each.protocol is SecurityProtocol.PLAINTEXT:
            return each.name
    raise AddressError(
        f"console={options.console}: the broker has no PLAINTEXT listener that a console without "
        "a log-in can use; run `kafkawire --command-config FILE console` as a user with the "
        "rights that its readers may have"
    )
