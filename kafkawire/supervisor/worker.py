"""One worker process: its starts, its beats, its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from kafkawire.broker.options import WorkerRole
from kafkawire.childprocess.parent_end import exit_words
from kafkawire.childprocess.restarts import SILENT_TICKS, Beats, Restarts
from kafkawire.server.service_manager import SUPERSEDED_CODE
from kafkawire.server.worker.link import ABSENT, KNOWS, OPEN, READY, REMOVED
from kafkawire.supervisor.plan import WorkerPlan
from kafkawire.supervisor.sockets import descriptors

logger = logging.getLogger(__name__)

TICK_S = 1.0
REFUSED = (1, 2)
"""Exit codes of a start that failed, after which the worker has printed why."""

LINE_BYTES_MAX = 4096
"""Maximum line from a worker; more without a line end is discarded."""
RoleOf = Callable[[WorkerPlan, int], WorkerRole]
"""Makes the role of a worker from its plan and the descriptor of its connection to us."""


class SupervisedWorker:
    """A worker over all its starts. `run` it in a task of its own.

    `ready`: whether it serves; `started` is set when it first does; `knows`: the workers that it
    knows to serve; `absent`: brokers of other machines that it last said are to be started here,
    with their epochs; `drained`: whether it has handed over what it led, and is not started again;
    `removed`: whether that is because its broker is not in the cluster any more.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        arguments: Sequence[str],
        role_of: RoleOf,
        changed: Callable[[SupervisedWorker], None],
        *,
        returns: bool = False,
    ) -> None:
        """`arguments`: the command line of `kafkawire serve` without what is of this worker;
        `changed` is called when it begins to serve, and with more that it knows; `returns`: after
        another machine has taken its broker over it is started again, and waits for the broker."""
        self._returns = returns
        self.plan = plan
        self.ready = False
        self.started = asyncio.Event()
        self.knows: frozenset[int] = frozenset()
        self.absent: dict[int, int] = {}
        self._changed = changed
        self._link: socket.socket | None = None
        self._received = b""
        self.restarts = Restarts()
        self.drained = self.removed = False
        self._arguments = arguments
        self._role_of = role_of
        self._stopping = asyncio.Event()
        self._process: Process | None = None
        self._beats = Beats()

    @property
    def pid(self) -> int | None:
        """The process id; None while it does not run."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if self._process is not None and running else None

    async def run(self) -> int:
        """Run the worker until it is stopped, drained or removed (0), its first start is refused or
        its broker was started elsewhere (the exit code). Start it again whenever it ends
        otherwise."""
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                code = await self._live()
            except (OSError, RuntimeError) as failure:  # RuntimeError: there can be no more threads
                logger.error("worker %d: its process cannot be created: %s", self._node, failure)
                code = REFUSED[0]
            if self._stopping.is_set():
                break
            if self.removed:
                self.drained = True
                break
            if self.plan.after >= 0:  # of another machine: if it is absent again, it is reported
                return code
            if code == 0 and self.plan.drain:
                self.drained = True
                self.started.set()
                logger.info("broker %d has handed over what it led and has ended", self._node)
                break
            if code in REFUSED and not self.started.is_set():
                return code
            if code == SUPERSEDED_CODE and not self._returns:
                logger.error(
                    "broker %d was started elsewhere, its worker has ended and is not started again"
                    ": to have the broker here, stop the other process and restart this one",
                    self._node,
                )
                return code
            await self._pause(code, self.restarts.next_delay_s(time.monotonic() - began))
        return 0

    @property
    def _node(self) -> int:
        return self.plan.node_id

    async def _live(self) -> int:
        """Start the process and return its exit code when it has ended."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                role = self._role_of(self.plan, theirs.fileno())
                role = replace(role, restarted=self.started.is_set())
                self._process = await _spawn(self._command(role), descriptors(role))
            ours.setblocking(False)
            logger.info("started worker %d as process %d", self._node, self._process.pid)
            if self._stopping.is_set():  # since before it was started
                self.signal(signal.SIGTERM)
            self._beats, self._link, self._received = Beats(), ours, b""
            loop = asyncio.get_running_loop()
            loop.add_reader(ours.fileno(), self._read, ours)
            timer = asyncio.create_task(self._tick())
            try:
                code = await self._process.wait()
                self._read(ours)  # its last line, which says whether it is to be started again
                return code
            finally:
                timer.cancel()
                loop.remove_reader(ours.fileno())
        finally:
            self.ready, self.knows, self._link = False, frozenset(), None
            ours.close()

    def _command(self, role: WorkerRole) -> list[str]:
        own = ["--set", f"node.id={self._node}", "--worker", role.option_value()]
        return [sys.executable, "-P", "-m", "kafkawire", *self._arguments, *own]

    def _read(self, ours: socket.socket) -> None:
        """Take what the worker reports: kafkawire.server.worker.link has the messages."""
        try:
            data = ours.recv(LINE_BYTES_MAX)
        except OSError:
            data = b""
        if not data:  # it ends, or has lost its end of the connection: beats decide
            asyncio.get_running_loop().remove_reader(ours.fileno())
            return
        *lines, rest = (self._received + data).split(b"\n")
        self._received = rest[:LINE_BYTES_MAX]
        for line in lines:
            self._beats.beat()
            try:
                self._take(*line.split())
            except ValueError:
                logger.error("worker %d sent a line that cannot be read: %.100r", self._node, line)

    def _take(self, word: bytes = b"", *nodes: bytes) -> None:
        if word == READY:
            self.ready = True
            self.started.set()
        elif word == KNOWS:
            self.knows = frozenset(int(node) for node in nodes)
        elif word == ABSENT:
            pairs = (each.split(b":") for each in nodes)
            self.absent = {int(node): int(epoch) for node, epoch in pairs}
        elif word == REMOVED:
            self.removed = True
            return
        else:
            return
        self._changed(self)

    def take_absent(self) -> dict[int, int]:
        """Return `absent` and empty it."""
        absent, self.absent = self.absent, {}
        return absent

    def inform(self, nodes: Iterable[int]) -> None:
        """Send it the node ids of the workers that serve."""
        self._send(b" ".join(b"%d" % node for node in nodes))

    def open(self) -> None:
        """Let it accept clients at the addresses of all workers."""
        self._send(OPEN)

    def _send(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # it is stopped or ends: its next process gets another
            if self._link is not None:
                self._link.send(line + b"\n")

    async def _tick(self) -> None:
        """Kill the process if it serves and sends no beats."""
        while True:
            await asyncio.sleep(TICK_S)
            if self.ready and self._beats.tick():
                logger.error(
                    "worker %d (process %s) has not responded for %d seconds: it is killed and "
                    "started again", self._node, self.pid, SILENT_TICKS,
                )  # fmt: skip
                self.signal(signal.SIGKILL)
                return

    async def _pause(self, code: int, delay_s: float) -> None:
        """Log an end, and wait before the next start unless the worker is stopped."""
        when = f"in {delay_s:g} s" if delay_s else "now"
        logger.error(
            "worker %d has ended with %s: its partitions are not served; it is started again %s",
            self._node, exit_words(code), when,
        )  # fmt: skip
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._stopping.wait()

    def stop(self) -> None:
        """Request its end, and do not start it again."""
        self._stopping.set()
        self.signal(signal.SIGTERM)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal if it runs."""
        if self.pid is not None and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


async def _spawn(command: Sequence[str], inherited: Sequence[int]) -> Process:
    """Start a process that inherits descriptors. It has a process group of its own, since Ctrl-C in
    a terminal is for the supervisor, which stops the workers; and what it reports to systemd is
    reported by the supervisor for all."""
    environ = {name: text for name, text in os.environ.items() if name != "NOTIFY_SOCKET"}
    return await asyncio.create_subprocess_exec(
        *command, stdin=DEVNULL, pass_fds=inherited, env=environ, process_group=0
    )
