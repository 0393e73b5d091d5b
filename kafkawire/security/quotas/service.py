"""The quotas of a broker: stored ones in memory, changes, and sensors.

Nothing is measured while there is no quota: `of_clients` and `of_requests` are False then, which is
all that the path of a request reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from kafkawire.codec.errors import KafkaError
from kafkawire.log.io import slices
from kafkawire.log_lines import shorten_for_log
from kafkawire.metadata.session import Row, Session
from kafkawire.metadata.store import Transactions
from kafkawire.security.quotas.alterations import (
    CLIENT_KEYS,
    CONNECTIONS,
    REQUESTS,
    Alteration,
    Entity,
    Planner,
    QuotaChange,
    entity_of,
    entity_text,
)
from kafkawire.security.quotas.arithmetic import SampleWindow
from kafkawire.security.quotas.rules import Rules
from kafkawire.security.quotas.sensors import ClientQuotas, Sensors
from kafkawire.security.versions import CLIENT_QUOTAS, increment_version, version_of

logger = logging.getLogger(__name__)


# The stored quotas: functions inside a transaction (`Transactions.transact`).


def load_quotas(session: Session) -> tuple[int, list[list[Row]]]:
    """Return the version of the table and all quotas, for `rules_of`."""
    version = version_of(session, CLIENT_QUOTAS)
    return version, session.checked_portions("client_quotas", "entity, key, value")


async def rules_of(rows: list[list[Row]], give_way: Callable[[], Awaitable[None]]) -> Rules:
    """Return the quotas of rows, which are removed; in slices."""
    rules = Rules()
    async for text, key, value in slices.drain_slowly(rows, give_way):
        rules.apply([QuotaChange(entity_of(text), key, value)])
    return rules


class Statements:
    """The rows of some changes, for `apply`."""

    def __init__(self) -> None:
        self.removed: list[Row] = []
        self.set: list[Row] = []

    def add(self, change: QuotaChange) -> None:
        """Add a change."""
        entity, key, value = change
        if value is None:
            self.removed.append((entity_text(entity), key))
        else:
            self.set.append((entity_text(entity), key, value))


def apply_quotas(session: Session, changes: Statements) -> int:
    """Store changes, all or none; return the new version of the table."""
    version = increment_version(session, CLIENT_QUOTAS)
    session.many("DELETE FROM client_quotas WHERE entity = ? AND key = ?", changes.removed)
    session.many(
        "INSERT INTO client_quotas (entity, key, value) VALUES (?, ?, ?)"
        " ON CONFLICT (entity, key) DO UPDATE SET value = excluded.value",
        changes.set,
    )
    return version


class Quotas:
    """`of_clients`: whether any client has a quota; `of_requests`: whether one is of the time of
    requests; `of_connections`: whether an address has one."""

    def __init__(
        self,
        metadata: Transactions,
        now: Callable[[], float],
        window: SampleWindow,
        of_mutations: SampleWindow,
        give_way: Callable[[], Awaitable[None]],
    ) -> None:
        """`now`: the monotonic clock in seconds; `give_way` is awaited between quotas."""
        self._metadata = metadata
        self._give_way = give_way
        self._changing = asyncio.Lock()
        self._version = 0
        self.rules = Rules()
        self.sensors = Sensors(self.rules, window, of_mutations, lambda: int(now() * 1000))
        self.of_clients = self.of_requests = self.of_connections = False

    async def start(self) -> None:
        """Load the stored quotas. Raises MetadataError."""
        await self.refresh()

    async def refresh(self) -> None:
        """Load the stored quotas again, because another broker may have changed them."""
        async with self._changing:
            await self._load()

    async def refresh_from(self, version: int) -> None:
        """Load the stored quotas again if `version`, the one in SQL, is not the one in memory."""
        if version != self._version:
            await self.refresh()

    async def _load(self) -> None:
        """Read all quotas and replace those in memory in one step."""
        version, rows = await self._metadata.transact(load_quotas)
        other = await rules_of(rows, self._give_way)
        self._version = version
        self.rules.swap(other)
        self._note()
        while other.entities:  # free the old ones in slices
            other.popitem()
            await self._give_way()

    async def alter(
        self,
        alterations: Iterable[Alteration],
        give_way: Callable[[], Awaitable[None]],
        *,
        validate_only: bool,
        sender: str,
    ) -> dict[Entity, KafkaError | None]:
        """Change quotas; return an error or None for each entity. All valid changes are stored in
        one transaction. Raises MetadataError. `sender`: who asked, for the log."""
        async with self._changing:
            planner = Planner(self.rules.entities, self.rules.count)
            for alteration in alterations:
                planner.add(alteration)
                await give_way()
            changes = planner.changes
            if changes and not validate_only:
                await self._store(changes)
                _log(changes, sender)
        return planner.outcomes

    async def _store(self, changes: Sequence[QuotaChange]) -> None:
        rows = Statements()
        for change in changes:
            rows.add(change)
            await self._give_way()
        version = await self._metadata.transact(lambda session: apply_quotas(session, rows))
        if version == self._version + 1:
            self._version = version
            for change in changes:  # each is independent of the others
                self.put([change])
                await self._give_way()
        else:  # another broker has changed some meanwhile
            await self._load()

    def put(self, changes: Iterable[QuotaChange]) -> None:
        """Apply changes that are stored."""
        self.rules.apply(changes)
        self._note()

    def of_client(self, last: ClientQuotas | None, user: str, client_id: str) -> ClientQuotas:
        """Return the quotas of a client: `last`, the previous result, until any have changed."""
        if last is not None and last.generation == self.sensors.generation:
            return last
        return self.sensors.of_client(user, client_id)

    def _note(self) -> None:
        has = self.rules.has
        self.of_clients = any(map(has, CLIENT_KEYS))
        self.of_requests = has(REQUESTS)
        self.of_connections = has(CONNECTIONS)


MAX_LINES = 20
"""Changes of one request that are logged."""


def _log(changes: Sequence[QuotaChange], sender: str) -> None:
    for entity, key, value in changes[:MAX_LINES]:
        whom = ", ".join(
            f"the default {kind}" if name is None else f"{kind} {shorten_for_log(name)}"
            for kind, name in entity
        )
        what = "has no limit any more" if value is None else f"is now limited to {value:.15g}"
        logger.info("quota %s of %s %s; set by %s", key, whom, what, sender)
    if len(changes) > MAX_LINES:
        logger.info("%d more quotas changed by %s", len(changes) - MAX_LINES, sender)
