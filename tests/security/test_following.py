"""A change of access rules is answered when other brokers enforce it, with real SQL."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.codec.errors import ErrorCode
from kafkawire.log.io.disk import real_env
from kafkawire.messages.create_acls import AclCreation, CreateAclsRequest
from kafkawire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic
from kafkawire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.security.acls.model import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceKind,
)
from kafkawire.security.acls.security import Security
from kafkawire.security.acls.service import AclService
from kafkawire.security.principals import Principal
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import produce
from tests.kit.server import port_of, running
from tests.kit.waiting import until

ALICE = Principal("User", "alice")
DENIED = Acl(
    ResourceKind.TOPIC, "t", PatternType.LITERAL, "User:alice", "*", Operation.WRITE,
    Permission.DENY,
)  # fmt: skip


@contextlib.asynccontextmanager
async def broker(folder: Path, node_id: int, *others: int) -> AsyncIterator[Security]:
    """Open the security of a broker with a database that it shares; the others are alive."""
    store = SqlMetadata(f"sqlite:///{folder}/metadata.db")
    await store.open()
    config = BrokerConfig({"authorizer": "acl", "allow.everyone.if.no.acl.found": "true"})
    security = await Security.open(real_env(), store, config)
    await security.start_refresh(real_env(), store, {}, node_id, lambda: others)
    try:
        yield security
    finally:
        await security.close()
        await store.close()


def acls_of(security: Security) -> AclService:
    assert security.acls is not None
    return security.acls


def may_write(security: Security) -> bool:
    rights = acls_of(security).rights(ALICE, "h")
    return rights.may(Operation.WRITE, ResourceKind.TOPIC, "t")


@pytest.mark.slow
async def test_change_is_enforced_by_others_when_it_is_answered(tmp_path: Path) -> None:
    async with (
        broker(tmp_path, 1, 2, 3) as first,
        broker(tmp_path, 2, 1, 3) as second,
        broker(tmp_path, 3, 1, 2) as third,
    ):
        for _ in range(3):
            assert may_write(second)
            await acls_of(first).create([DENIED])
            await first.wait_until_enforced()
            assert not any(map(may_write, (first, second, third)))
            assert await acls_of(third).delete([AclFilter()]) == [[DENIED]]
            await third.wait_until_enforced()
            assert all(map(may_write, (first, second, third)))


async def test_broker_that_does_not_answer_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kafkawire.security.following.MAX_WAIT_S", 0.1)
    async with broker(tmp_path, 1, 2) as first:
        await acls_of(first).create([DENIED])
        with caplog.at_level(logging.WARNING):
            async with asyncio.timeout(10):
                await first.wait_until_enforced()
        assert "not all brokers have confirmed within 0.1 s that they enforce it: 2" in caplog.text
    async with broker(tmp_path, 1) as alone:
        caplog.clear()
        await alone.wait_until_enforced()
        assert not may_write(alone)
        assert not caplog.messages


@pytest.mark.slow
async def test_produce_at_another_broker_is_refused_once_create_acls_is_answered(
    tmp_path: Path,
) -> None:
    """Eight times; and DeleteAcls permits it again."""
    settings = {"authorizer": "acl", "super.users": "User:admin"}
    settings["allow.everyone.if.no.acl.found"] = "true"
    url = f"sqlite+aiosqlite:///{tmp_path}/shared.db"
    everyone = AclCreation(
        ResourceKind.TOPIC, "t", PatternType.LITERAL, "User:ANONYMOUS", "*", Operation.WRITE,
        Permission.DENY,
    )  # fmt: skip
    wanted = DeleteAclsFilter(
        ResourceKind.TOPIC, "t", PatternType.LITERAL, None, None, Operation.ANY, Permission.ANY
    )
    async with (
        running(tmp_path / "1", metadata=url, node_id="1", **settings) as one,
        running(tmp_path / "2", metadata=url, node_id="2", **settings) as two,
    ):
        topic = CreatableTopic("t", -1, -1)
        topic.assignments = [CreatableReplicaAssignment(0, [2])]
        await until(lambda: len(one.broker.catalog.brokers) == 2)
        await two.broker.topics.create([topic])
        first, second = [await Client.connect(port_of(each)) for each in (one, two)]
        for _ in range(8):
            created = await first.call(CreateAclsRequest([everyone]), 2)
            assert [each.error_code for each in created.results] == [ErrorCode.NONE]
            assert await produced(second) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            deleted = await first.call(DeleteAclsRequest([wanted]), 2)
            assert len(deleted.filter_results[0].matching_acls) == 1
            assert await produced(second) == ErrorCode.NONE
        for client in (first, second):
            await client.close()


async def produced(client: Client) -> int:
    answer = await client.call(produce("t", batch(b"x")), 9)
    return int(answer.responses[0].partition_responses[0].error_code)
