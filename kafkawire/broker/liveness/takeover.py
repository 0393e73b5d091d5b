"""Decides when this broker's machine starts a broker whose own machine seems to be gone. Pure.

A broker that is gone is started by the machine of the next living broker by node id, first in the
ring after it; the second one waits for one lease more, the third for two, because the first may
have no supervisor that does it. Only one of them can succeed: SQL takes a start only with the epoch
of the broker that was seen here (kafkawire.metadata, `register_broker`), so nothing rests on these
times.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kafkawire.broker.liveness.watcher import HeartbeatWatcher
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.ports import Env
from kafkawire.metadata import heartbeats
from kafkawire.metadata.catalog import BROKER_RESOURCE, Catalog, ConfigChange
from kafkawire.metadata.session import Session
from kafkawire.metadata.store import SqlStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Absent:
    """A silent broker: its epoch, and from when on its absence counts."""

    epoch: int
    since_s: float


class AbsenceWatcher:
    """Remembers since when brokers are silent, as seen by broker `node_id`."""

    def __init__(self, node_id: int, lease_s: float) -> None:
        self._node_id = node_id
        self._lease_s = lease_s
        self._absent: dict[int, _Absent] = {}

    def observe(
        self,
        now_s: float,
        epochs: Mapping[int, int],
        silent: Collection[int],
        ended: Collection[int],
    ) -> list[int]:
        """Return the silent brokers that this broker's machine is to start now.

        `epochs`: of all registered brokers; `silent`: without those that are being started;
        `ended`: the silent ones that deleted their heartbeat. These get a lease more, since a
        broker that was stopped is usually started again.
        """
        for node in self._absent.keys() - set(silent):
            del self._absent[node]
        due = []
        for node in sorted(set(silent) & epochs.keys()):
            known = self._absent.get(node)
            if known is None or known.epoch != epochs[node]:
                since_s = now_s + (self._lease_s if node in ended else 0.0)
                known = self._absent[node] = _Absent(epochs[node], since_s)
            rank = _rank(node, self._node_id, epochs.keys() - set(silent))
            if now_s - known.since_s >= rank * self._lease_s:
                due.append(node)
        return due


def _rank(absent: int, me: int, alive: Iterable[int]) -> int:
    """Return how many living brokers are before `me` in the ring that begins after `absent`."""
    ring = sorted({*alive, me}, key=lambda node: (node < absent, node))
    return ring.index(me)


# Waits until a broker that runs on another machine has ended there.
#
# Of a machine whose broker was taken over: its data folder is superseded, so there is no lock by
# which the start would know that the broker does not run any more. It is taken for ended if its
# heartbeat is deleted, or was not seen to change for the lease; a start there stores heartbeats,
# too. After `return_delay_s` it is asked to return: the broker setting RETURNING has it end, also
# if it is still starting.
#
# Two machines may wait here for each other's processes, so no wait may need what the other side
# does only afterwards: `meanwhile` registers the follower of this machine, which the broker that is
# waited for, and others, may need; a start elsewhere, which may wait for what only this machine
# has, ends when it is asked to (kafkawire.broker.liveness.starting); and the broker is left to
# others until this start can get what it has acknowledged (`copies`).
# tests/broker/liveness/test_waits.py walks through all waits of machines for each other.


RETURNING = "broker.returning"
"""The setting of a broker that runs on another machine than its own, and is to end there."""
INTERVAL_S = 0.5
"""Between two reads of the heartbeat: a part of the second in which it rises."""
SEARCH_S = 2.0
"""Between two searches for a copy, which connect to followers that may not be there."""
MAX_GAP_S = 3.0
"""Between two reads that count as continuous."""
WITHDRAW_S = 5.0
"""Maximum time for which a start that is stopped waits for SQL."""
NOBODY = -1
"""The node id that the watcher leaves out: it is to watch the broker itself."""


class Copies(Protocol):
    """Finds what a broker has acknowledged (kafkawire.broker.followers.install)."""

    async def finds(self, *, lost: bool) -> bool:
        """Return whether there is a copy, or none is needed; `lost` if it is known that there is
        none. Raises what SQL raises."""


def is_returning(catalog: Catalog, node_id: int) -> bool:
    """Return whether a broker is to end, since its own machine is to run it again."""
    return catalog.broker_configs(node_id).get(RETURNING, "").lower() == "true"


def read_returning(session: Session, node_id: int) -> bool:
    """Return the same as `is_returning`, from SQL."""
    found = session.rows(
        "SELECT value FROM configs WHERE resource_type = ? AND resource = ? AND name = ?",
        (BROKER_RESOURCE, str(node_id), RETURNING),
    )
    return bool(found) and str(found[0][0]).lower() == "true"


async def wait_until_ended(
    env: Env,
    metadata: SqlStore,
    config: BrokerConfig,
    meanwhile: Callable[[], Awaitable[None]],
    copies: Copies,
) -> int:
    """Return when the broker of these settings runs nowhere, and this start can get what it has
    acknowledged; return its broker epoch then. `meanwhile` is awaited once if that is not so at
    once. Raises what SQL raises at first; later failures of SQL are waited for."""
    try:
        return await _wait_until_ended(env, metadata, config, meanwhile, copies)
    except asyncio.CancelledError:
        # A start that is stopped takes back its request: the broker that runs need not end any
        # more, and a later start of it elsewhere would end at once. Another machine that waits
        # for the same broker asks again within a lease.
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(WITHDRAW_S):
                if await metadata.transact(lambda session: read_returning(session, config.node_id)):
                    await _ask(metadata, config.node_id, None)
        raise


async def _wait_until_ended(
    env: Env,
    metadata: SqlStore,
    config: BrokerConfig,
    meanwhile: Callable[[], Awaitable[None]],
    copies: Copies,
) -> int:
    node_id, lease_s = config.node_id, config.lease_ms / 1000
    return_delay_s = config.cluster_return_delay_ms / 1000
    watcher = HeartbeatWatcher(NOBODY, lease_s, MAX_GAP_S, INTERVAL_S)
    ask_s = env.clock.monotonic() + return_delay_s
    search_s, waits, lacks_copy, prepared = 0.0, False, False, False
    asked_epoch, warned = -1, False
    while True:
        try:
            if (waits or lacks_copy) and not prepared:
                await meanwhile()
                prepared = True
            epoch, number = await metadata.transact(
                lambda session: heartbeats.read(session, node_id)
            )
            now_s = env.clock.monotonic()
            watcher.observe(now_s, {} if number is None else {node_id: number}, [node_id])
            ended = number is None or node_id in watcher.silent - watcher.starting
            if (ended or (waits and now_s >= ask_s)) and now_s >= search_s:
                if not await copies.finds(lost=ended):
                    search_s, lacks_copy = now_s + SEARCH_S, True
                elif ended:
                    return epoch
                else:
                    await _ask(metadata, node_id, "true")
                    ask_s = now_s + lease_s  # a start elsewhere since the last time has removed it
                    if epoch == asked_epoch and not warned:
                        warned = True
                        logger.warning(
                            "broker %d has not ended %g s after it was asked to: this start waits; "
                            "if another machine has node.id=%d too, stop this start and give it a "
                            "node.id of its own",
                            node_id, lease_s, node_id,
                        )  # fmt: skip
                    asked_epoch = epoch
        except OSError:
            if not (waits or lacks_copy):
                raise
            watcher.note_read_failure()
        if not waits and node_id in watcher.beating | watcher.starting:
            waits = True
            logger.warning(
                "broker %d runs already, on a machine that took it over or has the same node.id: "
                "waiting until it ends there; it is asked to in %g s",
                node_id,
                return_delay_s,
            )
        await env.sleep(INTERVAL_S)


async def end_returning(metadata: SqlStore, catalog: Catalog, node_id: int) -> None:
    """Note that a broker runs on its own machine again. Raises what SQL raises."""
    if is_returning(catalog, node_id):
        await _ask(metadata, node_id, None)


async def _ask(metadata: SqlStore, node_id: int, value: str | None) -> None:
    await metadata.alter_configs([ConfigChange(BROKER_RESOURCE, str(node_id), RETURNING, value)])
