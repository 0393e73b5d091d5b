"""Conversations with a broker that has an authorizer: fetches that wait, revoked rights, hidden
topics, mixed requests, and what the audit log has of them.

Covers: kafkawire.handlers.hot_rights, kafkawire.security.audit.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from kafkawire.handlers.fetch.handler import Fetch
from kafkawire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kafkawire.messages.metadata import MetadataRequest
from kafkawire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kafkawire.security.acls.model import AclFilter, Operation, Permission, ResourceKind
from kafkawire.server.run import Server
from tests.handlers.test_access import ADMIN, allow, guarded
from tests.kit.access_cases import fetch, named, produce, rule
from tests.kit.client import Client
from tests.kit.server import port_of
from tests.kit.waiting import until

READ, WRITE, TOPIC = Operation.READ, Operation.WRITE, ResourceKind.TOPIC


async def revoke(server: Server) -> None:
    """Remove the rights of the client."""
    assert server.broker.security.acls is not None
    await server.broker.security.acls.delete([AclFilter(host="*")])


def parked(server: Server) -> int:
    hot = server.host.apis[1].hot  # before the first Fetch there is no handler
    return len(hot.context.parked) if isinstance(hot, Fetch) else 0


async def test_parked_fetch_keeps_its_right_and_the_next_is_refused(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, client):
        admin = await Client.connect(port_of(server), host=ADMIN)
        await allow(server, rule(READ, TOPIC))
        client.send(fetch("t", wait_ms=60_000), 12)
        await until(lambda: parked(server) == 1)
        await revoke(server)
        await admin.call(produce("t"), 9)
        answer = await client.receive()
        (row,) = answer.responses[0].partitions
        assert (row.error_code, bool(row.records)) == (0, True)
        refused = await client.call(fetch("t", wait_ms=60_000), 12)  # at once
        assert refused.responses[0].partitions[0].error_code == 29
        await admin.close()


async def test_refused_topic_waits_with_one_that_has_no_records(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, client):
        await allow(server, rule(READ, TOPIC))
        client.send(fetch("t", "absent", wait_ms=60_000), 12)
        await until(lambda: parked(server) == 1)
        admin = await Client.connect(port_of(server), host=ADMIN)
        await admin.call(produce("t"), 9)
        answer = await client.receive()
        assert [each.partitions[0].error_code for each in answer.responses] == [0, 29]
        await admin.close()


async def test_repeated_produces_stop_when_the_right_is_revoked(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, client):
        await allow(server, rule(WRITE, TOPIC))

        async def code() -> int:
            answer = await client.call(produce("t"), 9)
            return int(answer.responses[0].partition_responses[0].error_code)

        for _ in range(4):  # repeated requests take the fast path from the third on
            assert await code() == 0
        (connection,) = [each for each in server.host.connections if each.repeat is not None]
        await revoke(server)
        assert [await code() for _ in range(3)] == [29] * 3
        await allow(server, rule(WRITE, TOPIC))
        assert [await code() for _ in range(4)] == [0] * 4
        await allow(server, rule(WRITE, TOPIC, permission=Permission.DENY))
        assert await code() == 29
        assert not connection.closed


async def test_refused_produce_without_acks_closes_the_connection(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, client):
        client.send(produce("t", acks=0), 9, answered=False)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await client.reader.readexactly(1)


async def test_existence_is_hidden(tmp_path: Path) -> None:
    """A topic that one may not see, and one that does not exist, look the same."""
    async with guarded(tmp_path) as (server, client):
        await allow(server, rule(Operation.CREATE, ResourceKind.GROUP, "other"))
        for version in (1, 9, 12):
            answer = await client.call(named("t", "absent", create=True), version)
            existing, absent = answer.topics
            existing.name = absent.name
            assert existing == absent
        every = await client.call(MetadataRequest(None), 9)
        assert every.topics == []
        assert "absent" not in server.broker.catalog.by_name


async def test_created_topic_does_not_show_settings_without_the_right(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, client):
        await allow(server, rule(Operation.CREATE, TOPIC, "new"))
        asked = CreateTopicsRequest([CreatableTopic("new", 1, 1), CreatableTopic("no", 1, 1)])
        answer = await client.call(asked, 7)
        new, no = answer.topics
        assert (new.error_code, new.topic_config_error_code, new.num_partitions) == (0, 29, -1)
        assert (new.configs, no.error_code, no.error_message) == ([], 29, "Authorization failed.")
        assert [name for name in ("new", "no") if name in server.broker.catalog.by_name] == ["new"]


async def test_super_user_passes_deny_rules(tmp_path: Path) -> None:
    supers = {"super_users": "User:x;User:ANONYMOUS"}
    async with guarded(tmp_path, **supers) as (server, client):
        await allow(server, rule(Operation.ALL, TOPIC, permission=Permission.DENY))
        answer = await client.call(produce("t"), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0


async def test_audit_log_has_denials_and_changes(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    async with guarded(tmp_path / "data", audit_log=str(file)) as (server, client):
        await client.call(fetch("t"), 12)
        await client.call(MetadataRequest(None), 9)  # hides topics: not a denial
        await allow(server, rule(Operation.ALL, TOPIC), rule(Operation.ALL, ResourceKind.CLUSTER))
        asked = CreateTopicsRequest([CreatableTopic("new", 1, 1)])
        await client.call(asked, 7)
        assert server.broker.counts.denials == {("read", "topic"): 1}
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    who = {"principal": "User:ANONYMOUS", "host": "127.0.0.1", "listener": "PLAINTEXT"}
    denied = [line for line in lines if line["event"] == "denied"]
    assert [(line["request"], line["resource"]) for line in denied] == [("Fetch", "t")]
    assert who.items() <= denied[0].items()
    (created,) = [line for line in lines if line.get("topic") == "new"]
    assert (created["event"], created["partitions"]) == ("topic created", 1)
    assert who.items() <= created.items()
    assert {line["host"] for line in lines if line.get("topic") == "t"} == {ADMIN}


async def test_thousands_of_refused_items_are_answered(tmp_path: Path) -> None:
    """The connection was closed if there were more than 1,000."""
    rows = [OffsetCommitRequestPartition(index, 0) for index in range(5_000)]
    asked = OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("t", partitions=rows)])
    async with guarded(tmp_path) as (server, client):
        answer = await client.call(asked, 8)
        (topic,) = answer.topics
        assert [(p.partition_index, p.error_code) for p in topic.partitions] == [
            (index, 30) for index in range(5_000)
        ]
        assert server.broker.counts.denials == {("read", "group"): 1}
