"""The rules of a broker: stored, loaded, changed and refreshed; and the rights of clients.

Covers: kafkawire.security.acls.service, kafkawire.security.acls.security.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kafkawire.codec.configs.access_rules import super_users
from kafkawire.codec.configs.settings import BrokerConfig, ConfigError
from kafkawire.log.io.disk import real_env
from kafkawire.log.io.slices import Slices
from kafkawire.metadata.session import Session
from kafkawire.metadata.sql import open_metadata
from kafkawire.metadata.store import MetadataError, SqlStore
from kafkawire.security import versions
from kafkawire.security.acls import service
from kafkawire.security.acls.model import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceKind,
)
from kafkawire.security.acls.rights import java_address
from kafkawire.security.acls.security import Security
from kafkawire.security.acls.service import AclService, TooManyAcls, fault_of
from kafkawire.security.principals import Principal
from tests.kit.postgres import new_database
from tests.kit.waiting import ticks, until

ALICE = Principal("User", "alice")
TOPIC, READ = ResourceKind.TOPIC, Operation.READ


def rule(name: str, permission: int = Permission.ALLOW, operation: int = READ) -> Acl:
    return Acl(TOPIC, name, PatternType.LITERAL, str(ALICE), "*", operation, permission)


@asynccontextmanager
async def opened(folder: Path, url: str = "", **settings: str) -> AsyncIterator[AclService]:
    store = open_metadata(url, str(folder))
    await store.open()
    made = AclService(real_env(), store, config(**settings))
    await made.open()
    yield made
    await store.close()


def config(**settings: str) -> BrokerConfig:
    return BrokerConfig({name.replace("_", "."): value for name, value in settings.items()})


async def test_rules_survive_a_restart(tmp_path: Path) -> None:
    rules = [rule("a"), rule("b", Permission.DENY), rule("é\n\t'\"")]
    async with opened(tmp_path) as acls:
        assert await acls.create([*rules, rules[0]]) == rules
        assert await acls.create(rules) == []
        (first, second) = await acls.delete([AclFilter(resource_name="b"), AclFilter(TOPIC, "b")])
        assert first == second == [rules[1]]
    async with opened(tmp_path) as acls:
        assert {*await acls.find(AclFilter())} == {rules[0], rules[2]}
        assert len(acls) == 2


async def test_change_empties_caches_and_raises_generation(tmp_path: Path) -> None:
    async with opened(tmp_path) as acls:
        rights = acls.rights(ALICE, "1.2.3.4")
        assert acls.rights(ALICE, "1.2.3.4") is rights
        assert acls.rights(ALICE, "1.2.3.5") is not rights
        assert not rights.may(READ, TOPIC, "a")
        assert not await acls.may_any(rights, READ, TOPIC)
        await acls.create([rule("a")])
        assert (rights.generation, rights.may(READ, TOPIC, "a")) == (1, True)
        assert await acls.may_any(rights, READ, TOPIC)
        rights.remember(rights.reads, "a")
        await acls.delete([AclFilter()])
        assert (rights.reads, rights.generation) == (set(), 2)
        assert not rights.may(READ, TOPIC, "a")


async def test_cached_decisions_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "DECISIONS_MAX", 10)
    async with opened(tmp_path) as acls:
        rights = acls.rights(ALICE, "h")
        for n in range(25):
            assert not rights.may(READ, TOPIC, f"t{n}")
        assert len(rights._decided) <= 10


async def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "CHANGES_MAX", 2)
    monkeypatch.setattr(service, "ACLS_MAX", 3)
    async with opened(tmp_path) as acls:
        with pytest.raises(TooManyAcls):
            await acls.create(rule(f"t{n}") for n in range(3))
        await acls.create([rule("a"), rule("b")])
        with pytest.raises(TooManyAcls):
            await acls.create([rule("c"), rule("d")])
        await acls.create([rule("c"), rule("a")])
        with pytest.raises(TooManyAcls):
            await acls.delete([AclFilter()])
        assert len(acls) == 3


async def test_rules_of_many_filters_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MATCHES_MAX", 3)
    async with opened(tmp_path) as acls:
        await acls.create([rule("a"), rule("b")])
        with pytest.raises(TooManyAcls, match="match more than 3"):
            await acls.delete([AclFilter(), AclFilter()])
        assert len(acls) == 2


@pytest.mark.parametrize("at_once", [0, 1_000])
async def test_decisions_see_rules_before_a_change_or_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Where everything without a rule is allowed, removing rules before adding others would allow
    for a moment what neither the old nor the new ones do. Changes that arrive during a refresh wait
    for it."""
    monkeypatch.setattr(service, "APPLIED_AT_ONCE", at_once)
    async with opened(tmp_path, allow_everyone_if_no_acl_found="true") as acls:
        names = [f"t{number}" for number in range(30)]
        bob = Principal("User", "bob")
        clients = [acls.rights(ALICE, "h"), acls.rights(bob, "h")]
        seen: set[tuple[bool, ...]] = set()
        changing: list[asyncio.Task[list[Acl]]] = []

        async def watched() -> None:
            for each in clients:
                for name in names:
                    each.may(READ, TOPIC, name)
            decided = acls.explain, READ, TOPIC
            seen.add(tuple(
                decided[0](who, "h", *decided[1:], name).allowed
                for who in ("User:alice", "User:bob") for name in names
            ))  # fmt: skip
            if not changing:
                changing.append(asyncio.ensure_future(acls.create([rule("late")])))
            await ticks(1)

        await acls.create(rule(name) for name in names)
        before = (True,) * 30 + (False,) * 30
        monkeypatch.setattr(Slices, "give_way", lambda self: watched())
        await replace_by_other_broker(acls, names)
        await acls.refresh()
        after = (False,) * 30 + (True,) * 30
        assert seen == {before, after}
        for each, allowed in zip(clients, (False, True), strict=True):
            assert [each.may(READ, TOPIC, name) for name in names] == [allowed] * 30
        await changing[0]
        assert {acl.resource_name for acl in await acls.find(AclFilter())} == {*names, "late"}


async def replace_by_other_broker(acls: AclService, names: list[str]) -> None:
    """Let bob read what alice could, and deny it to alice where the name is odd."""

    def work(session: Session) -> None:
        versions.increment_version(session, versions.ACLS)
        session.run("DELETE FROM acls")
        for number, name in enumerate(names):
            made = [rule(name)._replace(principal="User:bob")]
            if number % 2:
                made.append(rule(name, Permission.DENY))
            service.change_acls(session, [(service.acl_digest(acl), *acl) for acl in made], [])

    await acls._store.transact(work)


async def test_failed_write_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as acls:

        async def fails(work: object) -> None:
            raise MetadataError("disk full")

        monkeypatch.setattr(acls._store, "transact", fails)
        with pytest.raises(MetadataError):
            await acls.create([rule("a")])
        assert not acls.rights(ALICE, "h").may(READ, TOPIC, "a")


async def test_settings_reach_the_decision(tmp_path: Path) -> None:
    async with opened(tmp_path, super_users="User:root; User:CN=a,O=b") as acls:
        assert acls.rights(Principal("User", "CN=a,O=b"), "h").may(READ, TOPIC, "t")
        assert not acls.rights(ALICE, "h").may(READ, TOPIC, "t")
    async with opened(tmp_path, allow_everyone_if_no_acl_found="true") as acls:
        assert acls.rights(ALICE, "h").may(READ, TOPIC, "t")
        assert acls.explain("User:x", "::1", READ, TOPIC, "t").allowed


def test_super_users_are_checked() -> None:
    assert super_users("") == frozenset()
    assert super_users(" User:a ;User:b;") == {"User:a", "User:b"}
    with pytest.raises(ConfigError, match="'bob' has no colon"):
        config(super_users="User:a;bob")
    assert config(authorizer_class_name="org.apache.kafka.metadata.authorizer."
                  "StandardAuthorizer").has_authorizer  # fmt: skip
    with pytest.raises(ConfigError, match="StandardAuthorizer"):
        config(authorizer_class_name="com.example.Own")
    assert not config().has_authorizer


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("2001:db8::ff00:42:8329", "2001:db8:0:0:0:ff00:42:8329"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%2", "fe80:0:0:0:0:0:0:1%2"),
        ("local", "local"),
    ],
)
def test_addresses_are_written_as_java_does(host: str, text: str) -> None:
    assert java_address(host) == text


def test_texts_that_cannot_be_stored() -> None:
    assert fault_of(rule("a")) is None
    assert fault_of(rule("a\0")) is not None
    assert fault_of(rule("a" * 5_000)) is not None
    assert fault_of(rule("a")._replace(host="10.0.0.0/8")) is None
    assert fault_of(rule("a")._replace(host="10.0.0.0/33")) is not None


@pytest.mark.real
async def test_other_broker_enforces_changes(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkawire.security.following.ALONE_POLL_S", 0.02)
    url = await new_database(postgres_url)
    stores: list[SqlStore] = []
    both: list[Security] = []
    for _ in range(2):
        stores.append(open_metadata(url, str(tmp_path)))
        await stores[-1].open()
        both.append(await Security.open(real_env(), stores[-1], config(authorizer="acl")))
        await both[-1].start_refresh(real_env(), stores[-1], {})
    first, second = both[0].acls, both[1].acls
    assert first is not None
    assert second is not None
    rights = second.rights(ALICE, "h")
    await first.create([rule("a"), rule("b")])
    await until(lambda: rights.may(READ, TOPIC, "b"))
    await second.create([rule("c")])
    await first.create([rule("d")])
    await until(lambda: first.rights(ALICE, "h").may(READ, TOPIC, "c"))
    await until(lambda: rights.may(READ, TOPIC, "d"))
    await first.delete([AclFilter()])
    await until(lambda: not rights.may(READ, TOPIC, "a"))
    for security, store in zip(both, stores, strict=True):
        await security.close()
        await store.close()
