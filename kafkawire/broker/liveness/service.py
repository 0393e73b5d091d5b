"""Raises this broker's heartbeat in SQL, and tells the catalog which brokers are silent.

Nothing is read or written while no other broker is registered. See `watcher` for who is silent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Protocol

from kafkawire.broker.liveness.takeover import AbsenceWatcher
from kafkawire.broker.liveness.watcher import HeartbeatWatcher
from kafkawire.log.io.ports import Env
from kafkawire.metadata.catalog import Catalog
from kafkawire.metadata.store import BrokerSuperseded

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
"""Between two heartbeats: a fifth of the lease, so a few lost ones do not matter."""
MIN_PAUSE_S = 0.1
"""After a heartbeat that took longer than the interval: other tasks of this broker also use the
database."""
MAX_DECIDE_S = 3 * INTERVAL_S
"""How long a new topic waits for brokers that may have been started just now: they are known by
their second heartbeat. One that is not there is known by the lease, for which no client waits."""
MAX_GAP_S = 3 * INTERVAL_S
"""Between two reads that count as continuous: one heartbeat may take twice the limits of its
connection (kafkawire.metadata.database) without being late."""


class Heartbeats(Protocol):
    """The part of the metadata store that has the heartbeats."""

    async def beat(self, node_id: int, starting: bool = False) -> dict[int, int]:
        """Raise the heartbeat of a broker; return those of all. Raises MetadataError,
        BrokerSuperseded."""

    async def end_heartbeats(self, node_id: int) -> None:
        """Delete the heartbeat of a broker that ends. Raises MetadataError."""


class Liveness:
    """The heartbeats of one broker, and what it knows of the others."""

    def __init__(
        self, env: Env, store: Heartbeats, catalog: Catalog, node_id: int, lease_ms: int
    ) -> None:
        self._env = env
        self._store = store
        self._catalog = catalog
        self._node_id = node_id
        self._lease_ms = lease_ms
        self._watcher = HeartbeatWatcher(node_id, lease_ms / 1000, MAX_GAP_S, INTERVAL_S)
        self._absence = AbsenceWatcher(node_id, lease_ms / 1000)
        self._absent: Callable[[dict[int, int]], None] | None = None
        self._when_superseded: list[Callable[[str], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._stored_s: float | None = None
        self._failing = False
        self._stored = False

    def start(self) -> None:
        """Begin to raise the heartbeat, as soon as there is another broker."""
        self._task = self._env.spawn(self._run(), "heartbeats")

    def may_lead(self) -> list[int]:
        """Return the brokers that new partitions are given to, in order: this one, and those whose
        heartbeats this one has seen to rise."""
        registered = self._catalog.brokers.keys()
        return sorted({self._node_id, *(self._watcher.beating & registered)})

    async def wait_until_decided(self) -> None:
        """Return when each registered broker is known to beat or to be silent, after MAX_DECIDE_S
        at most: otherwise this broker would get all new partitions itself."""
        clock = self._env.clock
        until_s = clock.monotonic() + MAX_DECIDE_S
        while self._task is not None and clock.monotonic() < until_s:
            known = {self._node_id, *self._watcher.beating, *self._watcher.silent}
            if self._catalog.brokers.keys() <= known:
                return
            await self._env.sleep(INTERVAL_S / 10)

    def running(self, nodes: Collection[int]) -> None:
        """Take these brokers, which the catalog has, as beating: they are known to run from another
        source than their heartbeats."""
        before = self._watcher.silent
        self._watcher.running(nodes)
        if self._watcher.silent != before:
            self._report(before, self._watcher.silent, {})
            self._catalog.set_silent(self._watcher.silent)

    def when_absent(self, fn: Callable[[dict[int, int]], None]) -> None:
        """Call `fn` after each heartbeat with the brokers that this machine is to start, and their
        epochs (kafkawire.broker.liveness.takeover)."""
        self._absent = fn

    def when_superseded(self, fn: Callable[[str], None]) -> None:
        """Call `fn` with the reason once another process was started as this broker: this one has
        to end."""
        self._when_superseded.append(fn)

    async def close(self) -> None:
        """Stop, and delete the heartbeat, so that others need not wait for the lease. Never raises
        for SQL. Calling it again does nothing."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if self._stored:
            try:
                await self._store.end_heartbeats(self._node_id)
            except OSError as failure:
                logger.warning(
                    "cannot delete the heartbeat of this broker, others wait for the lease of "
                    "%s ms: %s",
                    self._lease_ms,
                    failure,
                )

    async def beat(self) -> None:
        """Raise the heartbeat once and apply what the others did."""
        catalog = self._catalog
        if len(catalog.brokers) < 2:
            return
        self._stored = True
        try:
            heartbeats = await self._store.beat(self._node_id)
        except BrokerSuperseded as why:
            for fn in self._when_superseded:
                fn(str(why))
            return
        except OSError as failure:
            self._watcher.note_read_failure()
            now_s = self._env.clock.monotonic()
            since_s = self._stored_s = now_s if self._stored_s is None else self._stored_s
            if not self._failing and now_s - since_s >= self._lease_ms / 2000:
                self._failing = True
                logger.warning(
                    "cannot store the heartbeat of this broker, others take it for stopped after "
                    "their lease.ms: %s",
                    failure,
                )
            return
        self._stored_s = self._env.clock.monotonic()
        if self._failing:
            logger.info("heartbeats are stored again")
        self._failing = False
        before = self._watcher.silent
        self._watcher.observe(self._env.clock.monotonic(), heartbeats, catalog.brokers)
        if self._watcher.silent != before:
            self._report(before, self._watcher.silent, heartbeats)
            catalog.set_silent(self._watcher.silent)
        if self._absent is not None:
            self._find_absent(self._absent, heartbeats)

    def _find_absent(
        self, fn: Callable[[dict[int, int]], None], heartbeats: dict[int, int]
    ) -> None:
        silent = self._watcher.silent - self._watcher.starting
        ended = silent - heartbeats.keys()
        # One that has handed over what it led needs no other machine, unless it is to leave: then
        # only a process of it deletes what it has stored.
        catalog = self._catalog
        idle = {node for node in ended if not catalog.leads(node)}
        silent -= {node for node in idle if not catalog.is_decommissioned(node)}
        epochs = {node: info.epoch for node, info in self._catalog.brokers.items()}
        now_s = self._env.clock.monotonic()
        due = self._absence.observe(now_s, epochs, silent, ended & silent)
        if due:
            fn({node: epochs[node] for node in due})

    def _report(
        self, before: frozenset[int], silent: frozenset[int], heartbeats: dict[int, int]
    ) -> None:
        for node in sorted(silent - before):
            why = f"has stored no heartbeat for {self._lease_ms} ms"
            if node not in heartbeats:
                why = "has shut down"
            elif node in self._watcher.starting:
                why = "is being started"
            logger.warning(
                "broker %s %s: clients are not sent to it, %snew partitions go to others until it "
                "is back",
                node,
                why,
                "its partitions have no leader, and " if self._catalog.leads(node) else "and ",
            )
        for node in sorted(before - silent):
            logger.info("broker %s is back", node)

    async def _run(self) -> None:
        """Beat at a constant rate, however long a heartbeat takes: one that failed because the
        database was locked is repeated at once."""
        clock = self._env.clock
        while True:
            begun_s = clock.monotonic()
            await self.beat()
            await self._env.sleep(max(begun_s + INTERVAL_S - clock.monotonic(), MIN_PAUSE_S))
