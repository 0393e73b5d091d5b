"""Copies of access rules, users, quotas and delegation tokens from one metadata database to
another.

A copy adds rows and, if that is wanted, replaces rows that differ; it deletes none. The functions
run inside a transaction (`Transactions.transact`), `enter_security` in one for all tables, so an
interrupted copy has changed nothing.

The secret of `security.sasl.credentials` is copied together with the first users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kafkawire.metadata.session import Row, Session, insert
from kafkawire.security import versions
from kafkawire.security.acls.service import ACLS_MAX
from kafkawire.security.quotas.alterations import MAX_QUOTAS
from kafkawire.security.sasl.credentials import replace_secret, secret_of
from kafkawire.security.sasl.delegation import MAX_TOKENS

Rows = Mapping[Row, Row]
"""Values of the other columns by those of the primary key."""
Content = Mapping[str, Rows]
"""The rows of each table."""


class CopySource(NamedTuple):
    """All rows of a source; `secret`: None if there is none."""

    content: Content
    secret: bytes | None


class SecurityTable(NamedTuple):
    """A table. `columns`: without those of the primary key; `max_rows`: None: no limit; `where`:
    the condition for rows that are compared and copied."""

    name: str
    title: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    max_rows: int | None
    where: str = "1 = 1"


TABLES = (
    SecurityTable(
        versions.ACLS,
        "access rules",
        ("digest",),
        ("resource_type", "resource_name", "pattern_type", "principal", "host", "operation",
         "permission"),
        ACLS_MAX,
    ),
    SecurityTable(
        versions.SCRAM_CREDENTIALS,
        "SCRAM credentials",
        ("user_name", "mechanism"),
        ("salt", "stored_key", "server_key", "iterations"),
        None,
        "user_name <> ''",
    ),
    SecurityTable(versions.CLIENT_QUOTAS, "quotas", ("entity", "key"), ("value",), MAX_QUOTAS),
    SecurityTable(
        versions.DELEGATION_TOKENS,
        "delegation tokens",
        ("token_id",),
        ("key_id", "owner", "requester", "renewers", "issued_ms", "expires_ms", "max_ms", "salt",
         "iterations", "stored_key_256", "server_key_256", "stored_key_512", "server_key_512"),
        MAX_TOKENS,
    ),
)  # fmt: skip
"""In the order in which `enter_security` locks them."""


class CopyRefused(Exception):
    """Nothing was copied; the text is one sentence with the reason."""


class Comparison(NamedTuple):
    """Rows of one table: keys of those that the target has not, and of those that have other values
    there; numbers of equal ones, and of those that only the target has."""

    table: SecurityTable
    added: tuple[Row, ...]
    different: tuple[Row, ...]
    same: int
    only_in_target: int


def load_security(session: Session) -> Content:
    content: dict[str, Rows] = {}
    for table in TABLES:
        names = ", ".join((*table.key, *table.columns))
        rows = session.read_checked(table.name, names, f"WHERE {table.where}")
        width = len(table.key)
        content[table.name] = {row[:width]: row[width:] for row in rows}
    return content


def load_source(session: Session) -> CopySource:
    """Return what can be copied."""
    return CopySource(load_security(session), secret_of(session))


def compare_security(source: Content, target: Content) -> list[Comparison]:
    """Return what a copy would do, for each table. CopyRefused: one would have too many rows."""
    found = []
    for table in TABLES:
        there, here = source[table.name], target[table.name]
        added = tuple(sorted(key for key in there if key not in here))
        common = [key for key in there if key in here]
        different = tuple(sorted(key for key in common if there[key] != here[key]))
        total = len(here) + len(added)
        if table.max_rows is not None and added and total > table.max_rows:
            raise CopyRefused(
                f"there would be {total} {table.title} after the copy, and there may be "
                f"{table.max_rows}: delete some first"
            )
        same, others = len(common) - len(different), len(here) - len(common)
        found.append(Comparison(table, added, different, same, others))
    return found


def enter_security(session: Session, source: CopySource, expected: Sequence[Comparison]) -> None:
    """Add the missing rows and replace those that differ. Raises CopyRefused if the target has
    changed since `expected` was compared."""
    for each in expected:
        # Other writers wait from here on.
        if each.added or each.different:
            versions.increment_version(session, each.table.name)
    if compare_security(source.content, load_security(session)) != list(expected):
        raise CopyRefused("the target was changed meanwhile: run the command again")
    for each in expected:
        _write(session, each, source.content[each.table.name])
        # If the users had their salts of before and unknown users others, a client could tell them
        # apart. A target with users of its own keeps its secret for the same reason.
        first_users = each.added and not (each.different or each.same or each.only_in_target)
        if each.table.name == versions.SCRAM_CREDENTIALS and first_users and source.secret:
            replace_secret(session, source.secret)


def _write(session: Session, comparison: Comparison, rows: Rows) -> None:
    table = comparison.table
    names = ", ".join((*table.key, *table.columns))
    updates = ", ".join(f"{name} = excluded.{name}" for name in table.columns)
    insert(
        session,
        f"INSERT INTO {table.name} ({names})",
        [key + rows[key] for key in (*comparison.added, *comparison.different)],
        f"ON CONFLICT ({', '.join(table.key)}) DO UPDATE SET {updates}",
    )
