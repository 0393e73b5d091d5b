"""The tables of security are loaded and changed without holding the event loop for over 5 ms of
CPU time: with 100,000 users and access rules, and 10,000 clients, quotas and delegation tokens, in
SQLite and in PostgreSQL.

Each case is measured as in tests/broker/test_event_loop_time.py. Frees the loaded state in slices,
too: a case replaces what the one before it has loaded.

Covers: kafkawire.metadata.session, kafkawire.security.acls.service,
kafkawire.security.sasl.delegation, kafkawire.security.quotas.service,
kafkawire.security.sasl.credentials.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.disk import real_env
from kafkawire.log.io.ports import Env
from kafkawire.log.io.slices import MAX_STRETCH_S
from kafkawire.metadata.session import Session, insert
from kafkawire.metadata.sql import open_metadata
from kafkawire.metadata.store import SqlStore
from kafkawire.security import versions
from kafkawire.security.acls.model import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceKind,
)
from kafkawire.security.acls.service import (
    APPLIED_AT_ONCE,
    CHANGES_MAX,
    DECISIONS_MAX,
    AclService,
    acl_digest,
)
from kafkawire.security.principals import Principal
from kafkawire.security.quotas.alterations import Alteration, Entity, entity_text
from kafkawire.security.quotas.arithmetic import SampleWindow
from kafkawire.security.quotas.service import Quotas
from kafkawire.security.sasl import delegation as stored_tokens
from kafkawire.security.sasl.credentials import CredentialChange, Credentials
from kafkawire.security.sasl.delegation import DelegationToken, DelegationTokens
from kafkawire.security.sasl.scram import Hash, ScramCredential
from tests.kit.loop_time import MeasuredRun, measured_run
from tests.kit.postgres import new_database
from tests.kit.slowness import least_cpu_time

USERS = 100_000
CHANGES = 20_000
RULES = 100_000
CLIENTS = QUOTAS = TOKENS = 10_000
TOPIC, READ, LITERAL = ResourceKind.TOPIC, Operation.READ, PatternType.LITERAL
INSERT_RULES = (
    "INSERT INTO acls (digest, resource_type, resource_name, pattern_type, principal, host,"
    " operation, permission)"
)

pytestmark = pytest.mark.slow


class Stored(NamedTuple):
    """A database on a measured event loop."""

    loop: MeasuredRun
    store: SqlStore
    env: Env

    def check(self, work: Callable[[], Awaitable[object]]) -> None:
        """Check how long some work holds the event loop."""
        took_s = least_cpu_time(lambda: self.loop.longest_s(work()), MAX_STRETCH_S)
        assert took_s <= MAX_STRETCH_S, f"{took_s * 1000:.1f} ms"

    def change(self, work: Callable[[Session], None]) -> None:
        """Change the database as another broker does."""
        self.loop.run(self.store.transact(work))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.real)])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stored]:
    with measured_run() as loop:
        url = ""
        if request.param == "postgres":
            url = loop.run(new_database(request.getfixturevalue("postgres_url")))
        store = open_metadata(url, str(tmp_path))
        loop.run(store.open())
        yield Stored(loop, store, real_env())
        loop.run(store.close())


def test_users_are_loaded_and_changed_in_slices(stored: Stored) -> None:
    columns = "user_name, mechanism, salt, stored_key, server_key, iterations"

    def fill(session: Session) -> None:
        versions.increment_version(session, versions.SCRAM_CREDENTIALS)
        keys = b"salt", b"s" * 32, b"k" * 32, 4096
        rows = [(f"user-{number}", int(Hash.SHA256), *keys) for number in range(USERS)]
        insert(session, f"INSERT INTO scram_credentials ({columns})", rows)

    stored.change(fill)
    users = Credentials(stored.store, os.urandom, stored.env.slices.give_way)
    stored.check(users.load)
    stored.check(users.load)  # frees those that were there
    stored.check(users.names)
    assert len(users.users) == USERS
    made = ScramCredential(b"salt", b"s" * 32, b"k" * 32, 4096)
    stored.check(
        lambda: users.alter(
            CredentialChange(f"new-{number}", Hash.SHA512, made) for number in range(CHANGES)
        )
    )
    assert len(users.users) == USERS + CHANGES
    stored.check(
        lambda: users.alter(
            CredentialChange(f"new-{number}", Hash.SHA512, None) for number in range(CHANGES)
        )
    )
    assert len(users.users) == USERS


def a_rule(number: int, owner: str) -> Acl:
    """One of the rules of `owner`."""
    kind = LITERAL if number % 10 else PatternType.PREFIXED
    permission = Permission.ALLOW if number % 100 else Permission.DENY
    return Acl(TOPIC, f"topic-{number}", kind, f"User:{owner}", "*", READ, permission)


def test_rules_are_loaded_and_changed_in_slices(stored: Stored) -> None:
    rules = [a_rule(number, f"user-{number % 1000}") for number in range(RULES)]

    def fill(session: Session) -> None:
        versions.increment_version(session, versions.ACLS)
        insert(session, INSERT_RULES, [(acl_digest(acl), *acl) for acl in rules])

    def remove(session: Session) -> None:
        versions.increment_version(session, versions.ACLS)
        session.run("DELETE FROM acls WHERE resource_name LIKE '%7'")

    def touch(session: Session) -> None:
        versions.increment_version(session, versions.ACLS)

    stored.change(fill)
    acls = AclService(stored.env, stored.store, BrokerConfig({"authorizer": "acl"}))
    stored.check(acls.refresh)
    rights = [acls.rights(Principal("User", f"user-{n}"), "h") for n in range(CLIENTS)]
    for each in rights:
        for number in range(15):
            each.may(READ, TOPIC, f"topic-{number}")
    stored.change(remove)
    stored.check(acls.refresh)
    assert len(acls) == RULES * 9 // 10
    assert not any(each._decided for each in rights)
    stored.change(touch)

    def again() -> Awaitable[object]:
        acls._version = -1  # a repeated measurement compares all rules, too
        return acls.refresh()

    stored.check(again)
    stored.check(lambda: acls.find(AclFilter()))
    new = [a_rule(number, "new") for number in range(CHANGES_MAX)]
    stored.check(lambda: acls.create(new))
    stored.check(lambda: acls.delete([AclFilter(principal="User:new")]))
    stored.check(lambda: acls.create(new[:APPLIED_AT_ONCE]))
    stored.check(lambda: acls.delete([AclFilter(principal="User:new")]))
    assert len(acls) == RULES * 9 // 10


def test_too_many_decisions_are_dropped_in_slices(stored: Stored) -> None:
    """100,000 of one client; the client continues meanwhile."""
    acls = AclService(stored.env, stored.store, BrokerConfig({"authorizer": "acl"}))
    rights = acls.rights(Principal("User", "alice"), "h")

    async def decide() -> None:
        """As requests with many topics do."""
        for number in range(DECISIONS_MAX + 50_000):
            assert not rights.may(READ, TOPIC, f"topic-{number}")
            await stored.env.slices.give_way()

    stored.check(decide)
    assert len(rights._decided) <= DECISIONS_MAX


def test_denied_rules_are_compared_in_slices(stored: Stored) -> None:
    """30,000 topics that alice may write, each of them denied: for a producer without a
    transactional id."""
    names = [f"topic-{number}" for number in range(30_000)]

    def fill(session: Session) -> None:
        versions.increment_version(session, versions.ACLS)
        for permission in (Permission.ALLOW, Permission.DENY):
            rules = (Acl(TOPIC, n, LITERAL, "User:alice", "*", READ, permission) for n in names)
            insert(session, INSERT_RULES, [(acl_digest(acl), *acl) for acl in rules])

    stored.change(fill)
    acls = AclService(stored.env, stored.store, BrokerConfig({"authorizer": "acl"}))
    stored.loop.run(acls.refresh())

    async def decide() -> None:
        rights = acls.rights(Principal("User", "alice"), "h")
        assert not await acls.may_any(rights, READ, TOPIC)

    stored.check(decide)


def entity(number: int, user: str) -> Entity:
    """A client id of a user."""
    return ("client-id", f"client-{number}"), ("user", user)


def test_quotas_are_loaded_and_changed_in_slices(stored: Stored) -> None:
    def fill(session: Session) -> None:
        versions.increment_version(session, versions.CLIENT_QUOTAS)
        rows = [(entity_text(entity(n, "a")), "producer_byte_rate", 1.0) for n in range(QUOTAS)]
        insert(session, "INSERT INTO client_quotas (entity, key, value)", rows)

    stored.change(fill)
    give_way, window = stored.env.slices.give_way, SampleWindow(11, 1000)
    quotas = Quotas(stored.store, lambda: 0.0, window, window, give_way)
    stored.check(quotas.start)
    stored.check(quotas.refresh)  # frees those that were there
    assert len(quotas.rules.entities) == QUOTAS

    def alter(value: float | None) -> Awaitable[object]:
        ops = [("producer_byte_rate", value)]
        made = (Alteration(entity(number, "b"), ops) for number in range(CHANGES))
        return quotas.alter(made, give_way, validate_only=False, sender="a test")

    stored.check(lambda: alter(5.0))
    assert quotas.rules.count == QUOTAS + CHANGES
    stored.check(lambda: alter(None))
    assert quotas.rules.count == QUOTAS


def test_delegation_tokens_are_loaded_in_slices(stored: Stored) -> None:
    config = BrokerConfig({"delegation.token.secret.key": "k" * 40})
    tokens = DelegationTokens(stored.env, stored.store, config)
    owner = Principal("User", "alice")
    credentials = {kind: ScramCredential(b"s" * 26, b"s" * 32, b"k" * 32, 4096) for kind in Hash}

    def fill(session: Session) -> None:
        versions.increment_version(session, versions.DELEGATION_TOKENS)
        made = [
            DelegationToken(f"token-{n}", owner, owner, (owner,), 1, 2**50, 2**50, credentials)
            for n in range(TOKENS)
        ]
        rows = [stored_tokens.row_of(token, tokens._key_id) for token in made]
        marks = ", ".join("?" * len(rows[0]))
        session.many(f"INSERT INTO delegation_tokens VALUES ({marks})", rows)

    def touch() -> Awaitable[object]:
        stored.change(
            lambda session: void(versions.increment_version(session, versions.DELEGATION_TOKENS))
        )
        return tokens.refresh()

    stored.change(fill)
    stored.check(tokens.refresh)
    assert len(tokens.tokens) == TOKENS
    stored.check(touch)  # frees those that were there


def void(_: object) -> None:
    """Discard a result."""
