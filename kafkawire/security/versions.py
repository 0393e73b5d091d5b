"""How often the tables of security were changed, so that other brokers of one PostgreSQL read them
again.

A transaction that changes `acls`, `scram_credentials`, `client_quotas` or `delegation_tokens` calls
`changed`. Every broker reads `versions`, one small query, and loads a table whose version is not
its own (`refresh`). Functions here run inside a transaction (`Transactions.transact`).
"""

from __future__ import annotations

from kafkawire.metadata.session import Session

ACLS, SCRAM_CREDENTIALS, CLIENT_QUOTAS = "acls", "scram_credentials", "client_quotas"
DELEGATION_TOKENS = "delegation_tokens"


def changed(session: Session, name: str) -> int:
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
    found = session.rows("SELECT version FROM security_versions WHERE name = ?", (name,))
    return int(found[0][0]) if found else 0


def versions(session: Session) -> dict[str, int]:
    """Return the versions of the tables that were ever changed."""
    return {name: int(version) for name, version in session.rows("SELECT * FROM security_versions")}
