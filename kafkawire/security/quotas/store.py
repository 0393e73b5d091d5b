"""The stored quotas: functions inside a transaction (`Transactions.transact`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kafkawire.log.io import slices
from kafkawire.metadata.session import Row, Session
from kafkawire.security.quotas.alterations import QuotaChange
from kafkawire.security.quotas.entities import entity_of, entity_text
from kafkawire.security.quotas.rules import Rules
from kafkawire.security.versions import CLIENT_QUOTAS, changed, version_of


def load(session: Session) -> tuple[int, list[list[Row]]]:
    """Return the version of the table and all quotas, for `rules_of`."""
    version = version_of(session, CLIENT_QUOTAS)
    return version, session.checked_portions("client_quotas", "entity, key, value")


async def rules_of(rows: list[list[Row]], give_way: Callable[[], Awaitable[None]]) -> Rules:
    """Return the quotas of rows, which are removed; in slices."""
    rules = Rules()
    async for text, key, value in slices.drained(rows, give_way):
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


def apply(session: Session, changes: Statements) -> int:
    """Store changes, all or none; return the new version of the table."""
    version = changed(session, CLIENT_QUOTAS)
    session.many("DELETE FROM client_quotas WHERE entity = ? AND key = ?", changes.removed)
    session.many(
        "INSERT INTO client_quotas (entity, key, value) VALUES (?, ?, ?)"
        " ON CONFLICT (entity, key) DO UPDATE SET value = excluded.value",
        changes.set,
    )
    return version
