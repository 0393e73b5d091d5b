"""The stored quotas: functions inside a transaction (`Transactions.transact`)."""

from __future__ import annotations

from collections.abc import Sequence

from kafkawire.metadata.session import Session
from kafkawire.security.quotas.alterations import QuotaChange
from kafkawire.security.quotas.entities import entity_of, entity_text
from kafkawire.security.versions import CLIENT_QUOTAS, changed, version_of


def load(session: Session) -> tuple[int, list[QuotaChange]]:
    """Return the version of the table and all quotas."""
    rows = session.rows("SELECT entity, key, value FROM client_quotas")
    return version_of(session, CLIENT_QUOTAS), [
        QuotaChange(entity_of(text), key, value) for text, key, value in rows
    ]


def apply(session: Session, changes: Sequence[QuotaChange]) -> int:
    """Store changes, all or none; return the new version of the table."""
    version = changed(session, CLIENT_QUOTAS)
    session.many(
        "DELETE FROM client_quotas WHERE entity = ? AND key = ?",
        [(entity_text(entity), key) for entity, key, value in changes if value is None],
    )
    session.many(
        "INSERT INTO client_quotas (entity, key, value) VALUES (?, ?, ?)"
        " ON CONFLICT (entity, key) DO UPDATE SET value = excluded.value",
        [(entity_text(entity), key, value) for entity, key, value in changes if value is not None],
    )
    return version
