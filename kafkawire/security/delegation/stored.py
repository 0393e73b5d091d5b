"""The table `delegation_tokens`. Functions run inside a transaction (`Transactions.transact`)."""

from __future__ import annotations

import json

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.metadata.session import Row, Session
from kafkawire.security import versions
from kafkawire.security.delegation.model import DelegationToken
from kafkawire.security.principals import parse_principal
from kafkawire.security.sasl.scram import Hash, ScramCredential

MAX_TOKENS = 10_000
"""Tokens of a cluster: 20 MB in memory. Each running job of a cluster has one."""
MAX_PER_REQUESTER = 1_000
"""Tokens that one principal may have created, so that no client takes the room of all others."""

_COLUMNS = (
    "token_id, key_id, owner, requester, renewers, issued_ms, expires_ms, max_ms, salt, iterations,"
    " stored_key_256, server_key_256, stored_key_512, server_key_512"
)
KEY_ID = 1
"""The column with the fingerprint of the secret key."""


def row_of(token: DelegationToken, key_id: bytes) -> Row:
    """Return a token as a row."""
    small, large = (token.credentials[kind] for kind in Hash)
    return (
        token.id, key_id, str(token.owner), str(token.requester),
        json.dumps([str(each) for each in token.renewers]), token.issued_ms, token.expires_ms,
        token.max_ms, small.salt, small.iterations, small.stored_key, small.server_key,
        large.stored_key, large.server_key,
    )  # fmt: skip


def token_of(row: Row) -> DelegationToken:
    """Return the token of a row."""
    token_id, _, owner, requester, renewers, issued_ms, expires_ms, max_ms = row[:8]
    salt, iterations = bytes(row[8]), int(row[9])
    small, large = row[10:12], row[12:14]
    return DelegationToken(
        token_id,
        parse_principal(owner),
        parse_principal(requester),
        tuple(map(parse_principal, json.loads(renewers))),
        int(issued_ms),
        int(expires_ms),
        int(max_ms),
        {
            kind: ScramCredential(salt, bytes(keys[0]), bytes(keys[1]), iterations)
            for kind, keys in zip(Hash, (small, large), strict=True)
        },
    )


def load(session: Session) -> tuple[int, list[list[Row]]]:
    """Return the version of the table and all rows, in portions."""
    version = versions.version_of(session, versions.DELEGATION_TOKENS)
    return version, session.checked_portions("delegation_tokens", _COLUMNS)


def insert(session: Session, row: Row) -> int:
    """Insert a token; return the new version. Raises KafkaError if there are too many."""
    version = versions.changed(session, versions.DELEGATION_TOKENS)
    for where, values, limit, whose in (
        ("", (), MAX_TOKENS, "in the cluster"),
        (" WHERE requester = ?", (row[3],), MAX_PER_REQUESTER, "of one requester"),
    ):
        ((found,),) = session.rows(f"SELECT COUNT(*) FROM delegation_tokens{where}", values)
        if found >= limit:
            text = f"There may be {limit} delegation tokens {whose}."
            raise KafkaError(ErrorCode.POLICY_VIOLATION, text)
    marks = ", ".join("?" * len(row))
    session.run(f"INSERT INTO delegation_tokens ({_COLUMNS}) VALUES ({marks})", row)
    return version


def set_expiry(session: Session, token_id: str, expires_ms: int) -> int:
    """Change when a token ends; return the new version. Raises KafkaError if it is gone."""
    version = versions.changed(session, versions.DELEGATION_TOKENS)
    sql = "UPDATE delegation_tokens SET expires_ms = ? WHERE token_id = ?"
    if not session.run(sql, (expires_ms, token_id)):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    return version


def delete(session: Session, token_id: str) -> int:
    """Delete a token; return the new version. Raises KafkaError if it is gone."""
    version = versions.changed(session, versions.DELEGATION_TOKENS)
    if not session.run("DELETE FROM delegation_tokens WHERE token_id = ?", (token_id,)):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    return version


def delete_expired(session: Session, now_ms: int) -> int:
    """Delete tokens that have ended, also those of other secret keys; return how many."""
    sql = "FROM delegation_tokens WHERE expires_ms < ?"
    if not session.rows(f"SELECT 1 {sql} LIMIT 1", (now_ms,)):
        return 0
    versions.changed(session, versions.DELEGATION_TOKENS)
    return session.run(f"DELETE {sql}", (now_ms,))
