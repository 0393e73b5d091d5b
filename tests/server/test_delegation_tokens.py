"""Delegation tokens over sockets: created, renewed, ended and described, and log-ins with them.

Covers: kafkawire.handlers.create_delegation_token, kafkawire.handlers.delegation,
kafkawire.handlers.describe_delegation_token, kafkawire.handlers.expire_delegation_token,
kafkawire.handlers.renew_delegation_token, kafkawire.security.sasl.delegation,
kafkawire.security.sasl.delegation, kafkawire.security.sasl.delegation.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.disk import real_env
from kafkawire.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
)
from kafkawire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kafkawire.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from kafkawire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from kafkawire.messages.metadata import MetadataRequest
from kafkawire.messages.renew_delegation_token import RenewDelegationTokenRequest
from kafkawire.metadata.sql import open_metadata
from kafkawire.security.acls.model import Acl, Operation, PatternType, Permission, ResourceKind
from kafkawire.security.principals import Principal
from kafkawire.security.sasl import delegation
from kafkawire.security.sasl.delegation import MAX_RENEWERS, DelegationTokens
from kafkawire.security.sasl.scram import Hash
from kafkawire.server.run import Server
from tests.kit.client import Client
from tests.kit.postgres import new_database
from tests.kit.sasl import (
    ScramClient,
    alter,
    authenticate,
    handshake,
    is_closed,
    log_in_scram,
    running_sasl,
    sasl_port,
    upsertion,
)
from tests.kit.server import port_of
from tests.kit.waiting import until

SECRET = "a-key-of-the-cluster"
SETTINGS = {
    "delegation_token_secret_key": SECRET,
    "connection_failed_authentication_delay_ms": "0",
}
DAY_MS = 86_400_000
HOUR_MS = 3_600_000


async def session(server: Server, user: str) -> Client:
    """A client that has logged in with its password."""
    await alter(port_of(server), upsertion(user, "secret"))
    client = await Client.connect(sasl_port(server))
    assert (await log_in_scram(client, user, "secret")).error_code == 0
    return client


async def token_log_in(
    server: Server, token_id: str, secret: bytes, kind: Hash = Hash.SHA256, more: str = "true"
) -> tuple[Client, Any]:
    client = await Client.connect(sasl_port(server))
    assert (await handshake(client, kind.mechanism)).error_code == 0
    scram = ScramClient(token_id, b64encode(secret).decode(), kind, f",tokenauth={more}")
    first = await authenticate(client, scram.first)
    assert first.error_code == 0
    return client, await authenticate(client, scram.last(first.auth_bytes))


async def refused(server: Server, token_id: str, secret: bytes, more: str = "true") -> bool:
    client, last = await token_log_in(server, token_id, secret, more=more)
    if last.error_code:
        assert await is_closed(client)
    await client.close()
    return bool(last.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED)


def create(**more: Any) -> CreateDelegationTokenRequest:
    return CreateDelegationTokenRequest(None, None, **more)


async def described(client: Client, *owners: str) -> list[str]:
    named = [DescribeDelegationTokenOwner("User", name) for name in owners] or None
    answer = await client.call(DescribeDelegationTokenRequest(named), 3)
    assert answer.error_code == 0
    return sorted(each.principal_name for each in answer.tokens)


@pytest.mark.parametrize("kind", Hash)
async def test_token_logs_in_as_its_owner_until_it_expires(tmp_path: Path, kind: Hash) -> None:
    async with running_sasl(tmp_path, **SETTINGS) as server:
        alice = await session(server, "alice")
        made = await alice.call(create(max_lifetime_ms=HOUR_MS), 3)
        assert made.error_code == 0
        assert (made.principal_name, made.token_requester_principal_name) == ("alice", "alice")
        assert bytes(made.hmac) == hmac.digest(SECRET.encode(), made.token_id.encode(), "sha512")
        assert made.max_timestamp_ms == made.expiry_timestamp_ms
        assert made.max_timestamp_ms == made.issue_timestamp_ms + HOUR_MS
        client, last = await token_log_in(server, made.token_id, made.hmac, kind)
        assert last.error_code == 0
        assert 0 < last.session_lifetime_ms <= HOUR_MS
        assert (await client.call(MetadataRequest(topics=[]), 9)).brokers
        principals = {each.principal for each in server.host.connections}
        assert principals == {Principal("User", "alice")}
        for asked in (
            (create(), 3), (RenewDelegationTokenRequest(made.hmac, -1), 2),
            (ExpireDelegationTokenRequest(made.hmac, -1), 2),
            (DescribeDelegationTokenRequest(None), 3),
        ):  # fmt: skip
            answer = await client.call(*asked)
            assert answer.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert await refused(server, made.token_id, b"another")
        assert await refused(server, "unknown", made.hmac)
        assert await refused(server, made.token_id, made.hmac, more="false")
        assert await refused(server, "alice", made.hmac)
        ended = await alice.call(ExpireDelegationTokenRequest(made.hmac, 0), 2)
        assert ended.error_code == 0
        await until(lambda: server.broker.env.clock.now_ms() > ended.expiry_timestamp_ms)
        assert await refused(server, made.token_id, made.hmac)
        await client.close()
        await alice.close()


async def test_tokens_are_renewed_and_ended(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    async with running_sasl(tmp_path / "data", **SETTINGS, audit_log=str(audit)) as server:
        alice, bob, eve = [await session(server, name) for name in ("alice", "bob", "eve")]
        made = await alice.call(create(renewers=[CreatableRenewers("User", "bob")]), 3)
        assert made.expiry_timestamp_ms == made.issue_timestamp_ms + DAY_MS
        assert made.max_timestamp_ms == made.issue_timestamp_ms + 7 * DAY_MS
        shorter = await bob.call(RenewDelegationTokenRequest(made.hmac, HOUR_MS), 2)
        assert shorter.error_code == 0
        assert shorter.expiry_timestamp_ms < made.expiry_timestamp_ms
        for code, client, secret in (
            (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, eve, made.hmac),
            (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, alice, b"x"),
        ):
            for request in (RenewDelegationTokenRequest, ExpireDelegationTokenRequest):
                assert (await client.call(request(secret, HOUR_MS), 2)).error_code == code
        far = await alice.call(ExpireDelegationTokenRequest(made.hmac, 30 * DAY_MS), 2)
        assert far.expiry_timestamp_ms == made.max_timestamp_ms
        ended = await alice.call(ExpireDelegationTokenRequest(made.hmac, 0), 2)
        await until(lambda: server.broker.env.clock.now_ms() > ended.expiry_timestamp_ms)
        for request in (RenewDelegationTokenRequest, ExpireDelegationTokenRequest):
            answer = await alice.call(request(made.hmac, HOUR_MS), 2)
            assert answer.error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
        assert await described(alice) == ["alice"]
        tokens = server.broker.security.tokens
        assert tokens is not None
        await tokens.sweep()
        assert await described(alice) == []
        again = await alice.call(create(), 3)
        assert (await alice.call(ExpireDelegationTokenRequest(again.hmac, -1), 2)).error_code == 0
        assert await described(alice) == []
        assert await refused(server, again.token_id, again.hmac)
        for client in (alice, bob, eve):
            await client.close()
    text = audit.read_text()
    events = [json.loads(line)["event"] for line in text.splitlines()]
    assert events.count("delegation token created") == 2
    assert events.count("delegation token renewed") == 1
    assert events.count("delegation token expired") == 3
    assert b64encode(made.hmac).decode() not in text
    assert SECRET not in text


async def test_expired_tokens_are_deleted_by_themselves(tmp_path: Path) -> None:
    often = {"delegation_token_expiry_check_interval_ms": "10"}
    async with running_sasl(tmp_path, **SETTINGS, **often) as server:
        alice = await session(server, "alice")
        await alice.call(create(max_lifetime_ms=1), 3)
        tokens = server.broker.security.tokens
        assert tokens is not None
        await until(lambda: not tokens.tokens)
        await alice.close()


async def test_clients_without_log_in_and_brokers_without_key_have_no_tokens(
    tmp_path: Path,
) -> None:
    async with running_sasl(tmp_path) as server:
        anonymous, alice = await Client.connect(port_of(server)), await session(server, "alice")
        for client, code in (
            (anonymous, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),
            (alice, ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED),
        ):
            for request, version in (
                (create(), 3), (CreateDelegationTokenRequest(), 1),
                (RenewDelegationTokenRequest(b"x", 1), 2),
                (ExpireDelegationTokenRequest(b"x", 1), 2),
                (DescribeDelegationTokenRequest(None), 3),
            ):  # fmt: skip
                assert (await client.call(request, version)).error_code == code
            await client.close()
        assert await refused(server, "unknown", b"x")


async def test_user_named_as_clients_without_log_in_may_create_tokens(tmp_path: Path) -> None:
    async with running_sasl(tmp_path, **SETTINGS) as server:
        user = await session(server, "ANONYMOUS")
        assert (await user.call(create(), 3)).error_code == 0
        assert await described(user) == ["ANONYMOUS"]
        await user.close()


async def test_tokens_of_others_need_rights(tmp_path: Path) -> None:
    async with running_sasl(
        tmp_path, **SETTINGS, authorizer="acl", super_users="User:ANONYMOUS"
    ) as server:
        alice, bob = [await session(server, name) for name in ("alice", "bob")]
        owned = CreateDelegationTokenRequest("User", "bob")
        no = await alice.call(owned, 3)
        assert no.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        assert (no.principal_name, no.issue_timestamp_ms, bytes(no.hmac)) == ("bob", -1, b"")
        acls = server.broker.security.acls
        assert acls is not None

        async def allow(operation: Operation, kind: ResourceKind, name: str, who: str) -> None:
            rule = Acl(kind, name, PatternType.LITERAL, who, "*", operation, Permission.ALLOW)
            await acls.create([rule])

        await allow(Operation.CREATE_TOKENS, ResourceKind.USER, "User:bob", "User:alice")
        made = await alice.call(owned, 3)
        assert (made.principal_name, made.token_requester_principal_name) == ("bob", "alice")
        # the requester sees the token, but only its owner and renewers may change it
        assert await described(alice) == await described(bob) == ["bob"]
        answer = await alice.call(RenewDelegationTokenRequest(made.hmac, 1), 2)
        assert answer.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        own = await bob.call(create(), 3)
        assert await described(alice) == ["bob"]
        await allow(Operation.DESCRIBE, ResourceKind.DELEGATION_TOKEN, own.token_id, "User:alice")
        assert await described(alice) == ["bob", "bob"]
        carol = await session(server, "carol")
        assert await described(carol) == []
        await allow(Operation.DESCRIBE_TOKENS, ResourceKind.USER, "User:bob", "User:carol")
        assert await described(carol) == await described(carol, "bob") == ["bob", "bob"]
        assert await described(carol, "dave") == []
        none = await carol.call(DescribeDelegationTokenRequest([]), 3)
        assert (none.error_code, none.tokens) == (0, [])
        for client in (alice, bob, carol):
            await client.close()


async def test_number_of_tokens_and_renewers_and_names_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delegation, "MAX_TOKENS", 3)
    monkeypatch.setattr(delegation, "MAX_PER_REQUESTER", 2)
    async with running_sasl(tmp_path, **SETTINGS) as server:
        alice, bob = [await session(server, name) for name in ("alice", "bob")]
        for code, renewers in (
            (ErrorCode.INVALID_REQUEST, [CreatableRenewers("User", "x")] * (MAX_RENEWERS + 1)),
            (ErrorCode.INVALID_REQUEST, [CreatableRenewers("User", "x" * 256)]),
            (ErrorCode.INVALID_REQUEST, [CreatableRenewers("User", "a\nb")]),
            (ErrorCode.INVALID_PRINCIPAL_TYPE, [CreatableRenewers("Group", "x")]),
        ):
            assert (await alice.call(create(renewers=renewers), 3)).error_code == code
        full = [CreatableRenewers("User", f"u{number}") for number in range(MAX_RENEWERS)]
        codes = [(await alice.call(create(renewers=full), 3)).error_code for _ in range(3)]
        codes += [(await bob.call(create(), 3)).error_code for _ in range(2)]
        no = ErrorCode.POLICY_VIOLATION
        assert codes == [0, 0, no, 0, no]
        await alice.close()
        await bob.close()


async def test_tokens_outlive_a_restart_and_end_with_their_key(tmp_path: Path) -> None:
    async with running_sasl(tmp_path, **SETTINGS) as server:
        alice = await session(server, "alice")
        made = await alice.call(create(), 3)
        resource = DescribeConfigsResource(4, "1", None)
        shown = await alice.call(DescribeConfigsRequest([resource], True), 4)
        assert SECRET not in repr(shown)
        assert SECRET not in repr(server.broker.config)
        await alice.close()
    async with running_sasl(tmp_path, **SETTINGS) as server:
        assert not await refused(server, made.token_id, made.hmac)
    async with running_sasl(
        tmp_path, **{**SETTINGS, "delegation_token_secret_key": "another"}
    ) as server:
        assert await refused(server, made.token_id, made.hmac)
        alice = await session(server, "alice")
        assert await described(alice) == []
        await alice.close()


@pytest.mark.real
async def test_token_of_another_broker_logs_in_at_once_and_ends_here(
    tmp_path: Path, postgres_url: str
) -> None:
    url = await new_database(postgres_url)
    async with running_sasl(tmp_path, metadata_url=url, **SETTINGS) as server:
        store = open_metadata(url, "")
        await store.open()
        config = BrokerConfig({"delegation.token.secret.key": SECRET})
        other = DelegationTokens(real_env(), store, config)
        await other.open()
        owner = Principal("User", "alice")
        made = await other.create(owner, owner, (), 0)
        secret = other.secret_of(made.id)
        found = await asyncio.gather(*(token_log_in(server, made.id, secret) for _ in range(5)))
        assert [last.error_code for _, last in found] == [0] * 5
        for client, _ in found:
            await client.close()
        await other.expire(secret, owner, -1)
        tokens = server.broker.security.tokens
        assert tokens is not None
        await until(lambda: not tokens.tokens)  # by the broker's own check
        assert await refused(server, made.id, secret)
        with pytest.raises(KafkaError):
            await other.expire(secret, owner, -1)
        await other.close()
        await store.close()


async def test_stored_token_is_nothing_to_log_in_with(tmp_path: Path) -> None:
    async with running_sasl(tmp_path, **SETTINGS) as server:
        alice = await session(server, "alice")
        made = await alice.call(create(), 3)
        _, ((row,),) = await server.broker.metadata.transact(delegation.load_tokens)
        assert bytes(made.hmac) not in row
        derived = {hashlib.sha256(made.hmac).digest(), b64encode(made.hmac)}
        assert not derived & {bytes(each) for each in row if isinstance(each, bytes)}
        await alice.close()
