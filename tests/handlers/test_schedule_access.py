"""Rights on schedule topics and their targets: producing, cancelling, and what a client may see.

Covers: kafkawire.schedules.check, kafkawire.handlers.describe_schedules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kafkawire.client.connection import ClientConnection
from kafkawire.codec.batches import Record, pack
from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.describe_schedules import DescribeSchedulesRequest
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.schedules.headers import CANCELS
from kafkawire.security.acls.model import AclFilter, Operation, ResourceKind
from kafkawire.server.run import Server
from tests.handlers.test_access import ADMIN, allow, guarded
from tests.kit.access_cases import rule
from tests.kit.client import Client
from tests.kit.produce_fetch import make
from tests.kit.server import port_of
from tests.kit.waiting import until

TOPIC = ResourceKind.TOPIC
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
FAR_MS = 4_000_000_000_000


async def send(client: Client, topic: str, *records: Record) -> Any:
    """Produce a batch; return the answer for the partition."""
    data = TopicProduceData(topic, partition_data=[PartitionProduceData(0, bytes(pack(records)))])
    answer = await client.call(ProduceRequest(None, -1, 5_000, [data]), 9)
    return answer.responses[0].partition_responses[0]


def later(offset: int = 0, headers: Sequence[tuple[str, bytes | None]] = ()) -> Record:
    return Record(offset, FAR_MS, b"k", b"v", list(headers))


async def schedule(server: Server, **configs: str) -> Client:
    """Make the schedule topic "later"; return a client of the administrator."""
    admin = await Client.connect(port_of(server), host=ADMIN)
    await make(admin, "later", 1, **configs)
    await until(lambda: _delivering(server))
    return admin


def _delivering(server: Server) -> bool:
    service = server.broker.schedules.service
    return service is not None and len(service.deliverers) == 1


async def test_producer_needs_the_right_to_write_to_the_target(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, client):
        admin = await schedule(server, schedule_target_topic="t")
        assert (await send(client, "later", later())).error_code == REFUSED
        await allow(server, rule(Operation.WRITE, TOPIC, "later"))
        refused = await send(client, "later", later())
        assert refused.error_code == REFUSED
        assert "the target topic t" in refused.error_message
        await allow(server, rule(Operation.WRITE, TOPIC, "t"))
        for number in range(4):  # repeated requests take the fast path from the third on
            row = await send(client, "later", later())
            assert (row.error_code, row.base_offset) == (0, number), "refused ones are not stored"
        assert server.broker.security.acls is not None
        await server.broker.security.acls.delete([AclFilter(int(TOPIC), "t", host="*")])
        assert (await send(client, "later", later())).error_code == REFUSED
        await admin.close()


async def test_right_is_needed_for_each_target_that_headers_name(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, client):
        admin = await schedule(server, schedule_target_header="to")
        await make(admin, "other")
        names = ("later", "t")
        await allow(server, *(rule(Operation.WRITE, TOPIC, name) for name in names))
        mine, others = later(0, [("to", b"t")]), later(1, [("to", b"other")])
        assert (await send(client, "later", mine)).error_code == 0
        refused = await send(client, "later", mine, others)
        assert refused.error_code == REFUSED
        absent = await send(client, "later", later(0, [("to", b"absent")]))
        assert absent.error_code == REFUSED, "which topics exist is hidden"
        await admin.close()


async def test_cancelling_needs_the_right_to_write_to_the_schedule_topic(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, client):
        admin = await schedule(server, schedule_target_topic="t")
        assert (await send(admin, "later", later())).error_code == 0
        cancel = Record(0, 0, None, b"", [(CANCELS, b"0")])
        assert (await send(client, "later", cancel)).error_code == REFUSED
        await allow(server, rule(Operation.WRITE, TOPIC, "later"))
        assert (await send(client, "later", cancel)).error_code == 0
        (deliverer,) = server.broker.schedules.service.deliverers.values()  # type: ignore[union-attr]
        await until(lambda: deliverer.backlog.followed == 2)
        assert deliverer.backlog.waiting == 0
        await admin.close()


def described(server: Server, topic: str | None) -> Any:
    """Ask for schedules as a client without other rights; to be run in a thread."""
    connection = ClientConnection("127.0.0.1", port_of(server))
    try:
        return connection.request_own(10002, DescribeSchedulesRequest(topic, True))
    finally:
        connection.close()


async def test_schedules_are_shown_to_those_who_may_describe_the_topic(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, _):
        admin = await schedule(server, schedule_target_topic="t")
        hidden = await asyncio.to_thread(described, server, None)
        assert (hidden.error_code, hidden.partitions) == (0, [])
        for name in ("later", "absent"):  # which topics exist is hidden
            assert (await asyncio.to_thread(described, server, name)).error_code == REFUSED
        await allow(server, rule(Operation.DESCRIBE, TOPIC, "later"))
        for asked in (None, "later"):
            (row,) = (await asyncio.to_thread(described, server, asked)).partitions
            assert row.topic == "later"
        await admin.close()
