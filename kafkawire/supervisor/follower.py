"""The follower process of this machine: its starts and its end (kafkawire.replication).

It keeps copies of the logs of other machines' brokers, and is started before the workers. It may
end at any time without loss: brokers continue where its copies end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time

from kafkawire.broker.options import ServeOptions
from kafkawire.childprocess.frames import FrameError, pack
from kafkawire.childprocess.parent_end import ChildProcess, exit_words
from kafkawire.client.address import split_address
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.replication.options import FOLLOWER_FOLDER, FollowerOptions
from kafkawire.supervisor.plan import PlanError
from kafkawire.supervisor.restarts import Restarts
from kafkawire.supervisor.sockets import Sockets, bind, port_of

logger = logging.getLogger(__name__)

MODULE = "kafkawire.replication.main"
READY_S = 60.0
"""How long a start may take: it reads the ends of its copies."""
GRACE_S = 5.0
"""How long it may take to end: it finishes what it is writing."""


class FollowerStartError(Exception):
    """The follower cannot be started: one sentence."""


class SupervisedFollower:
    """The follower over all its starts. `port`: the one that it listens on."""

    def __init__(self, options: ServeOptions, sockets: Sockets) -> None:
        self._options = options
        self._sockets = sockets
        self._restarts = Restarts()
        self._child: ChildProcess | None = None
        self._run: asyncio.Task[None] | None = None
        self.port = port_of(sockets)

    @classmethod
    def of(cls, options: ServeOptions) -> SupervisedFollower | None:
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
        """Start it and return when it serves; from then on it is started again whenever it ends.
        Raises FollowerStartError."""
        if not await self._begin():
            raise FollowerStartError(
                "the follower of this machine (replication.listener) cannot be started: its own "
                "message above says why"
            )
        self._run = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """End it."""
        if self._run is not None:
            self._run.cancel()
            await asyncio.gather(self._run, return_exceptions=True)
        if self._child is not None:
            self._child.retire()
            await self._child.ended(GRACE_S)
        for each in self._sockets:
            each.close()

    async def _begin(self) -> bool:
        """Start the process; return whether it serves."""
        descriptors = tuple(each.fileno() for each in self._sockets)
        child = await ChildProcess.start(MODULE, 0, descriptors)
        folder = os.path.join(self._options.data, FOLLOWER_FOLDER)
        options = FollowerOptions(
            folder, descriptors, "", self._options.log_level, self._options.log_format
        )
        try:
            child.send(pack(options))
            async with asyncio.timeout(READY_S):
                await child.receive()
        except (ConnectionError, asyncio.IncompleteReadError, FrameError, TimeoutError):
            code = await child.ended(GRACE_S)
            logger.error("the follower has ended with %s before it served", exit_words(code))
            return False
        self._child = child
        logger.info("the follower serves on port %d as process %s", self.port, child.pid)
        return True

    async def _watch(self) -> None:
        """Start the process again whenever it has ended."""
        while True:
            began = time.monotonic()
            if self._child is not None:
                code = await self._child.wait()
                logger.error(
                    "the follower has ended with %s: brokers of other machines have a replica less "
                    "until it is started again", exit_words(code),
                )  # fmt: skip
                self._child = None
            await asyncio.sleep(self._restarts.next_delay_s(time.monotonic() - began))
            await self._begin()
