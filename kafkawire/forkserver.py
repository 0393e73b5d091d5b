"""`python -m kafkawire.forkserver SOCKET PARENT`: a process that forks brokers for tests.

It imports the broker once, so a forked broker starts without importing anything: a tenth of the CPU
time of a new Python process. `SOCKET` is the descriptor of a connection to the process `PARENT`,
whose end is kafkawire.testing.forks; that module documents the messages. It has one thread and no
event loop, which makes forking safe.

It ends when its parent closes the connection or ends in any way, and kills its brokers then. If it
is killed itself, Linux kills them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import pkgutil
import select
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from kafkawire.childprocess.child_end import kill_with_parent
from kafkawire.childprocess.frames import pack, read_frame, write_frame
from kafkawire.testing.forks import POLL, START, Start

PARENT_CHECK_S = 1.0
"""Interval of the check whether the parent has ended while another process holds the connection
open, as one does that the parent has forked."""
MODULES = (
    "kafkawire.cli.main",
    "kafkawire.cli.serving.run",
    "kafkawire.server.run",
    "uvloop",
    "greenlet",
    "encodings.idna",
    "kafkawire.offsets.catalog.sql.storage",
    "kafkawire.log.local_manifest.service",
    "kafkawire.log.local_manifest.job",
    "kafkawire.log.local_manifest.maintenance",
    "kafkawire.testing.commands",
)
PACKAGES = ("messages", "broker", "coordination", "groups", "transactions", "handlers")
"""Imported before the first broker is forked: what a broker needs at its start and for its first
requests. Optional parts (tier, RocksDB, PostgreSQL, metrics) are left to the brokers that use
them."""


def modules_to_import() -> Iterator[str]:
    """Yield the names of these modules."""
    yield from MODULES
    for package in PACKAGES:
        path = importlib.import_module(f"kafkawire.{package}").__path__
        yield from (each.name for each in pkgutil.walk_packages(path, f"kafkawire.{package}."))


class ForkServerLoop:
    """The connection to the parent, and the brokers that were forked."""

    def __init__(self, connection: socket.socket, parent: int) -> None:
        self._connection = connection
        self._parent = parent
        self._children: set[int] = set()
        self.control: socket.socket | None = None
        """In a forked process: the connection for commands."""

    def serve(self) -> Start | None:
        """Handle requests until the parent ends. In a forked process: return what it is to run."""
        while True:
            if not select.select([self._connection], [], [], PARENT_CHECK_S)[0]:
                if os.getppid() != self._parent:
                    return None
                continue
            kind, descriptors, _, _ = socket.recv_fds(self._connection, 1, 2)
            if kind == START:
                start: Start = self._request()
                if self._fork(*descriptors):
                    return start
            elif kind == POLL:
                self._reply(self._status_of(self._request()))
            else:
                return None

    def kill_all(self) -> None:
        """Kill all brokers."""
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _request(self) -> Any:
        """Return the content of a request. Raises ConnectionError if the connection ends in it."""
        body = read_frame(self._connection.fileno())
        if body is None:
            raise ConnectionResetError("the parent has ended")
        return pickle.loads(body)

    def _reply(self, message: object) -> None:
        write_frame(self._connection.fileno(), *pack(message))

    def _fork(self, output: int, control: int) -> bool:
        """Fork a broker that writes to the descriptor `output`, and reads commands from `control`;
        return True in the broker."""
        server = os.getpid()
        pid = os.fork()
        if pid:
            os.close(output)
            os.close(control)
            self._children.add(pid)
            self._reply(pid)
            return False
        self._children.clear()
        kill_with_parent()
        if os.getppid() != server:
            os._exit(1)
        self._connection.close()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        os.set_inheritable(control, False)
        self.control = socket.socket(fileno=control)
        return True

    def _status_of(self, pid: int) -> int | None:
        """Return the exit code of an ended broker as subprocess does, None while it runs. It stays
        a zombie until this is called, so its pid is not used for another process before."""
        found, status = os.waitpid(pid, os.WNOHANG)
        if not found:
            return None
        self._children.discard(pid)
        return os.waitstatus_to_exitcode(status)


def leave(code: object) -> NoReturn:
    """End this process with the code of a SystemExit. The interpreter's own end would release all
    modules first, which takes as long as the start of a broker."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def main() -> NoReturn:
    """Serve the parent; in a forked process, run the broker."""
    descriptor, parent = map(int, sys.argv[1:])
    gc.disable()
    for name in modules_to_import():
        with contextlib.suppress(ImportError):  # of an optional dependency; uvloop: without a wheel
            importlib.import_module(name)
    gc.freeze()  # collections of a broker do not copy these pages
    server = ForkServerLoop(socket.socket(fileno=descriptor), parent)
    try:
        start = server.serve()
    except OSError:  # the parent has ended
        start = None
    if start is None:
        server.kill_all()
        leave(0)
    os.environ.clear()
    os.environ.update(start.environ)
    os.chdir(start.folder)
    sys.argv = ["kafkawire", *start.arguments]
    from kafkawire.cli.main import main as run
    from kafkawire.server.run import ServeHooks, use_hooks
    from kafkawire.testing.brokers import Brokers
    from kafkawire.testing.commands import MovableClock, obey

    assert server.control is not None
    brokers = Brokers(start.brokers, start.ports)
    obeys = ServeHooks(started=partial(obey, server.control, brokers), stopping=brokers.close)
    clock = MovableClock()
    manual = replace(obeys, env=clock.env, loop=clock.loop)
    use_hooks(manual if start.manual_clock else obeys)
    try:
        run()
    except SystemExit as ended:
        leave(ended.code)
    leave(0)


if __name__ == "__main__":
    main()
