"""The follower process of this machine: its starts and its end (kafkawire.replication).

It keeps copies of the logs of other machines' brokers. It may end at any time without loss: brokers
continue where its copies end. It is started before the workers, which store its address in SQL, but
they do not depend on it: a follower that cannot be started is tried again while they serve.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time

from kafkawire.broker.options import ServeOptions
from kafkawire.childprocess.frames import FrameError, pack
from kafkawire.childprocess.parent_end import ChildProcess, exit_words
from kafkawire.childprocess.restarts import Restarts
from kafkawire.client.address import split_address
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log_lines import reason_of
from kafkawire.replication.options import FOLLOWER_FOLDER, IDENTITY, SSL, FollowerOptions
from kafkawire.supervisor.plan import PlanError
from kafkawire.supervisor.sockets import Sockets, bind, port_of

logger = logging.getLogger(__name__)

MODULE = "kafkawire.replication.main"
READY_S = 60.0
"""Time limit of a start, which reads the ends of its copies."""
GRACE_S = 5.0
"""Time limit of its end: it finishes what it is writing."""


class SupervisedFollower:
    """The follower over all its starts. `port`: the one that it listens on; `_tried`: its first
    start has succeeded or failed; `_is_known`: workers find its identity when they start."""

    def __init__(self, options: ServeOptions, sockets: Sockets) -> None:
        self._options = options
        self._sockets = sockets
        self._restarts = Restarts()
        self._folder = os.path.join(options.data, FOLLOWER_FOLDER)
        self._child: ChildProcess | None = None
        self._run: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        self._is_known = True
        self.port = port_of(sockets)

    @classmethod
    def bind_address(cls, options: ServeOptions) -> SupervisedFollower | None:
        """Bind the address of replication.listener; return None without one. Raises AddressError,
        PlanError."""
        config = BrokerConfig(options.settings)
        text = config.replication_listener.strip()
        if not text:
            return None
        address = split_address(text)
        if address is None or address[0] is not None or not address[2]:
            raise PlanError(f"replication.listener={text}: it must be HOST:PORT, not port 0")
        _, host, port = address
        backlog = config.socket_listen_backlog_size
        return cls(options, bind("replication.listener", host, port, backlog))

    async def start(self) -> None:
        """Start it; return when it serves, or could not be started. From then on it is started
        again whenever it does not run."""
        self._run = asyncio.create_task(self._watch())
        try:
            async with asyncio.timeout(READY_S + 2 * GRACE_S):
                await self._tried.wait()
        except TimeoutError:
            logger.error(
                "the follower of this machine hangs in its start and cannot be killed, as with a "
                "disk that does not respond: the workers are started without it"
            )
        self._is_known = self._has_identity()

    async def stop(self) -> None:
        """End it."""
        if self._run is not None:
            self._run.cancel()
            await asyncio.gather(self._run, return_exceptions=True)
        if self._child is not None:
            self._child.retire()
            await self._child.wait_or_kill(GRACE_S)
        for each in self._sockets:
            each.close()

    def _has_identity(self) -> bool:
        return os.path.exists(os.path.join(self._folder, IDENTITY))

    async def _watch(self) -> None:
        """Start the process again whenever it does not run."""
        while True:
            why, served_s = await self._live()
            self._tried.set()
            delay_s = self._restarts.next_delay_s(served_s)
            logger.error(
                "the follower of this machine (replication.listener) %s: brokers of other machines "
                "have a replica less; it is started again %s",
                why, f"in {delay_s:g} s" if delay_s else "now",
            )  # fmt: skip
            await asyncio.sleep(delay_s)

    async def _live(self) -> tuple[str, float]:
        """Start the process and wait for its end. Return why it does not run, and for how long it
        has served."""
        descriptors = tuple(each.fileno() for each in self._sockets)
        try:
            child = self._child = await ChildProcess.start(MODULE, 0, descriptors)
        except (OSError, RuntimeError) as failure:  # RuntimeError: there can be no more threads
            return (
                f"cannot be started, its process could not be created ({reason_of(failure)})",
                0.0,
            )
        failure_words = await self._prepare(child, descriptors)
        began_s = time.monotonic()
        if not failure_words:
            self._tried.set()
            self._report_ready(child)
        code = await (child.wait_or_kill(GRACE_S) if failure_words else child.wait())
        self._child = None
        return f"has ended with {exit_words(code)}{failure_words}", time.monotonic() - began_s

    async def _prepare(self, child: ChildProcess, descriptors: tuple[int, ...]) -> str:
        """Send the options and wait until it serves; return words for a failure, else none."""
        config = BrokerConfig(self._options.settings)
        options = FollowerOptions(
            self._folder, descriptors, "", config.replication_security_protocol == SSL,
            self._options.log_level, self._options.log_format,
        )  # fmt: skip
        try:
            child.send(pack(options))
            async with asyncio.timeout(READY_S):
                await child.receive()
        except TimeoutError:
            child.kill()
            return f" because it did not serve within {READY_S:g} s"
        except (ConnectionError, asyncio.IncompleteReadError, FrameError):
            return " before it served, for the reason in its own message"
        return ""

    def _report_ready(self, child: ChildProcess) -> None:
        logger.info("the follower serves on port %d as process %s", self.port, child.pid)
        if not self._is_known:
            logger.warning(
                "the follower of this machine has started for the first time, after the workers: "
                "brokers do not use it until this `kafkawire serve` is restarted"
            )
            self._is_known = True  # one warning
