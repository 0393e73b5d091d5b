"""Loads what other brokers change in the tables of security, and waits until they have done so.

A broker that has changed access rules, users, quotas or tokens answers when all others that are
alive enforce the change: each acknowledges in SQL what it has loaded (kafkawire.security.versions).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING

from kafkawire.log.io.shared_load import SharedLoad
from kafkawire.metadata.store import MetadataError
from kafkawire.security import versions

if TYPE_CHECKING:
    from kafkawire.log.io.ports import Env
    from kafkawire.metadata.store import Transactions

logger = logging.getLogger(__name__)

POLL_S = 0.2
"""Between two reads of the versions, as of the catalog: a change waits for the next one."""
ALONE_POLL_S = 1.0
"""Without another broker: tools change tables of a stopped broker only."""
WAIT_POLL_S = 0.05
"""Between two reads of what others have acknowledged."""
MAX_WAIT_S = 2.0
"""For brokers that do not acknowledge: one may be stopped, or cannot reach SQL, and enforces the
change when it can."""

Refresh = Callable[[int], Awaitable[None]]
"""Loads a table unless it has the version; raises MetadataError."""


class Following:
    """Of broker `node_id`. `refresh`: by table; `others` returns the other living brokers."""

    def __init__(
        self,
        env: Env,
        store: Transactions,
        refresh: Mapping[str, Refresh],
        node_id: int,
        others: Callable[[], Collection[int]],
    ) -> None:
        self._env = env
        self._store = store
        self._refresh = refresh
        self._node_id = node_id
        self._others = others
        self._stored: dict[str, int] = {}
        self._reading = SharedLoad(env, "read what brokers have seen", self._read, WAIT_POLL_S)

    async def run(self) -> None:
        """Load what others have changed, until cancelled."""
        failing = False
        loaded: int | None = None
        while True:
            await self._env.sleep(POLL_S if self._others() else ALONE_POLL_S)
            commits = self._store.commits()
            if commits is not None and commits == loaded:
                continue
            try:
                await self._load()
                failing, loaded = False, commits
            except MetadataError as failure:
                if not failing:
                    logger.error(
                        "access rules, users, delegation tokens and quotas cannot be refreshed, "
                        "changes by other brokers are not enforced here until that succeeds: %s",
                        failure,
                    )
                failing = True

    async def _load(self) -> None:
        stored = await self._store.transact(versions.versions)
        for name, refresh in self._refresh.items():
            await refresh(stored.get(name, 0))
        number, node_id = versions.changes(stored), self._node_id
        if self._others() and versions.find_seen_version(stored, node_id) != number:
            await self._store.transact(
                lambda session: versions.acknowledge(session, node_id, number)
            )

    async def wait(self) -> None:
        """Return when all others have loaded what was changed until now, after MAX_WAIT_S at
        most."""
        clock = self._env.clock
        until_s, number = clock.monotonic() + MAX_WAIT_S, -1
        while others := self._others():
            try:
                await self._reading.again()
            except MetadataError:
                pass  # it is tried again; the change itself is stored
            else:
                if number < 0:
                    number = versions.changes(self._stored)
                if all(versions.find_seen_version(self._stored, each) >= number for each in others):
                    return
            if clock.monotonic() >= until_s:
                logger.warning(
                    "a change of access rules, users, tokens or quotas is answered, although not "
                    "all brokers have confirmed within %g s that they enforce it: %s",
                    MAX_WAIT_S, ", ".join(map(str, sorted(others))),
                )  # fmt: skip
                return

    async def _read(self) -> None:
        self._stored = await self._store.transact(versions.versions)

    async def close(self) -> None:
        """End what `wait` has begun."""
        await self._reading.close()
