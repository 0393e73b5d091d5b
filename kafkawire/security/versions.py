"""How often the tables of security were changed, so that other brokers of one PostgreSQL read them
again.

A transaction that changes `acls`, `scram_credentials`, `client_quotas` or `delegation_tokens` calls
`increment_version`. Every broker reads `versions`, one small query, and loads a table whose version
is not its own (`refresh`). Then it acknowledges that, so that the broker that has changed something
can wait for the others. Functions here run inside a transaction (`Transactions.transact`).
"""

from __future__ import annotations

from collections.abc import Mapping

from kafkawire.metadata.session import Session

ACLS, SCRAM_CREDENTIALS, CLIENT_QUOTAS = "acls", "scram_credentials", "client_quotas"
DELEGATION_TOKENS = "delegation_tokens"
_SEEN = "seen by "
"""Before the node id: the row of a broker, whose version is the number of changes that it has
loaded."""


def increment_version(session: Session, name: str) -> int:
    """Record a change of a table in its transaction; return the new version. Called first: on
    PostgreSQL writers of one table then wait for each other."""
    session.run(
        "INSERT INTO security_versions (name, version) VALUES (?, 1)"
        " ON CONFLICT (name) DO UPDATE SET version = security_versions.version + 1",
        (name,),
    )
    return version_of(session, name)


def version_of(session: Session, name: str) -> int:
    """Return the version of a table; 0 if it was never changed."""
    found = session.read_checked("security_versions", "version", "WHERE name = ?", (name,))
    return int(found[0][0]) if found else 0


def versions(session: Session) -> dict[str, int]:
    """Return the versions of the tables that were ever changed, and what brokers have seen."""
    rows = session.read_checked("security_versions", "name, version")
    return {name: int(version) for name, version in rows}


def changes(stored: Mapping[str, int]) -> int:
    """Return how many changes there were, from all versions."""
    return sum(version for name, version in stored.items() if not name.startswith(_SEEN))


def find_seen_version(stored: Mapping[str, int], node_id: int) -> int:
    """Return how many of the changes a broker has loaded, as it has acknowledged."""
    return stored.get(f"{_SEEN}{node_id}", -1)


def acknowledge(session: Session, node_id: int, number: int) -> None:
    """Record that a broker has loaded so many changes."""
    session.run(
        "INSERT INTO security_versions (name, version) VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET version = excluded.version",
        (f"{_SEEN}{node_id}", number),
    )
