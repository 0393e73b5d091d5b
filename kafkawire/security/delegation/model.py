"""The fields of a delegation token, and who may do what with one. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.security.principals import USER, Principal
from kafkawire.security.sasl.names import check_name
from kafkawire.security.sasl.scram import Hash, ScramCredential

MAX_RENEWERS = 50
"""Principals that may renew a token: 5 to 50 KB of names for each token that is shown."""


class DelegationToken(NamedTuple):
    """One token; times in milliseconds since 1970. `credentials`: with which a log-in is checked,
    not with which to log in."""

    id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int
    credentials: Mapping[Hash, ScramCredential]

    def concerns(self, principals: Container[Principal]) -> bool:
        """Return whether one of the principals owns, requested or may renew the token."""
        return any(each in principals for each in (self.owner, self.requester, *self.renewers))

    def check_renewer(self, principal: Principal) -> None:
        """Raise KafkaError unless a principal may renew or end the token."""
        if principal != self.owner and principal not in self.renewers:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)

    def check_valid(self, now_ms: int) -> None:
        """Raise KafkaError if the token has expired."""
        if self.has_expired(now_ms):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)

    def has_expired(self, now_ms: int) -> bool:
        """Return whether the token can no longer be used."""
        return self.expires_ms < now_ms


def check_principals(owner: Principal, renewers: tuple[Principal, ...]) -> None:
    """Raise KafkaError unless a token may have this owner and these renewers. Their names are those
    that a log-in may have."""
    for each in (*renewers, owner):
        if each.kind != USER:
            raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    try:
        for each in (*renewers, owner):
            check_name(each.name)
    except ValueError as wrong:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(wrong)) from None
    if len(renewers) > MAX_RENEWERS:
        text = f"{len(renewers)} renewers; at most {MAX_RENEWERS} are allowed"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)


def until(now_ms: int, limit_ms: int, asked_ms: int) -> int:
    """Return when a period ends: a client may only ask for less than the limit."""
    return now_ms + (min(limit_ms, asked_ms) if asked_ms > 0 else limit_ms)
