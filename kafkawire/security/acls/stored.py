"""The table `acls`: rules in SQL. Functions run inside a transaction (`Transactions.transact`)."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from kafkawire.metadata.session import Row, Session, insert
from kafkawire.security import versions
from kafkawire.security.acls.model import Acl


class StoredAcls(NamedTuple):
    """All rules, as portions of rows, and the version of the table."""

    rows: list[list[Row]]
    version: int


def digest(acl: Acl) -> bytes:
    """Return the key of a rule: equal for equal rules."""
    text = "\0".join(map(str, acl))  # no field has a NUL (`service.fault_of`)
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def load(session: Session, known: int) -> StoredAcls | None:
    """Return all rules; None if their version is `known`."""
    version = versions.version_of(session, versions.ACLS)
    if version == known:
        return None
    rows = session.checked_portions(
        "acls",
        "resource_type, resource_name, pattern_type, principal, host, operation, permission",
    )
    return StoredAcls(rows, version)


def change(session: Session, added: Sequence[Row], removed: Sequence[Row]) -> int:
    """Insert rows (a digest, then the rule) and delete rules by digest, the only value of each;
    return the version."""
    version = versions.changed(session, versions.ACLS)
    insert(
        session,
        "INSERT INTO acls (digest, resource_type, resource_name, pattern_type, principal, host,"
        " operation, permission)",
        added,
        "ON CONFLICT (digest) DO NOTHING",
    )
    session.many("DELETE FROM acls WHERE digest = ?", removed)
    return version
