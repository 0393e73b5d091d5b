"""ShareFetch and ShareAcknowledge through the sockets of a broker, with a persister in memory.

Covers: kafkawire.handlers.share_fetch, kafkawire.handlers.share_acknowledge,
kafkawire.handlers.share_reads, kafkawire.share.counts, kafkawire.share.leader,
kafkawire.share.service, kafkawire.server.metrics.groups.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.batches import build
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.messages.share_fetch import FetchPartition, FetchTopic
from kafkawire.security.acls.model import Operation, ResourceKind
from kafkawire.server.metrics.groups import share_families
from kafkawire.server.run import Server
from kafkawire.share.partition import Acknowledge
from kafkawire.share.persister import SharePartitionKey
from kafkawire.share.states import RecordState
from tests.kit.access_cases import rule
from tests.kit.client import Client
from tests.kit.produce_fetch import make, produce
from tests.kit.server import port_of, running
from tests.kit.share.members import (
    ACCEPT,
    GROUP,
    REJECT,
    RELEASE,
    RENEW,
    Member,
    initialize,
    row_of,
    serve_shares,
    set_group,
    values_of,
)
from tests.kit.share.persister import MemoryPersister
from tests.kit.waiting import until


@pytest.fixture
def persister(server: Server, monkeypatch: pytest.MonkeyPatch) -> MemoryPersister:
    return serve_shares(server.broker, monkeypatch)


def batch(*values: bytes) -> bytes:
    return bytes(build([(None, value) for value in values], timestamp_ms=1))


async def topic_with(client: Client, persister: MemoryPersister, *batches: bytes) -> bytes:
    topic = await make(client, "t")
    initialize(persister, topic)
    for each in batches:
        await client.call(produce("t", each), 9)
    return topic


async def test_records_are_acquired_once_and_accepted(
    server: Server, client: Client, persister: MemoryPersister
) -> None:
    topic = await topic_with(client, persister, batch(b"a", b"b"), batch(b"c"))
    one, other = Member(client, topic, "one"), Member(client, topic, "other")
    answer = await one.fetch(max_wait_ms=5_000)
    row = row_of(answer)
    assert values_of(row) == [b"a", b"b", b"c"]
    assert [(run.first_offset, run.last_offset, run.delivery_count)
            for run in row.acquired_records] == [(0, 2, 1)]  # fmt: skip
    assert answer.acquisition_lock_timeout_ms == 30_000
    assert row_of(await other.fetch()) is None
    assert await one.settle(0, 1, ACCEPT) == (0, 0)
    assert await one.settle(2, 2, RELEASE) == (0, 0)
    row = row_of(await other.fetch())
    assert values_of(row) == [b"c"]
    assert row.acquired_records[0].delivery_count == 2
    (state,) = persister.states.values()
    assert (state.start_offset, state.delivery_complete_count) == (2, 0)
    page = "".join(
        f"{each.name} {each.labels} {each.value}\n"
        for family in share_families(server.broker)
        if family is not None
        for each in family.samples
    )
    for row in (
        "share_acquired_records_total {} 4",
        "share_acknowledged_records_total {'type': 'accept'} 2",
        "share_in_flight_records {'group': 'g', 'state': 'acquired'} 1",
        "share_sessions {} 2",
    ):
        assert row in page, page


async def test_a_fetch_waits_for_records_and_for_releases(
    server: Server, client: Client, persister: MemoryPersister
) -> None:
    topic = await topic_with(client, persister)
    waiting = await Client.connect(port_of(server))
    member = Member(waiting, topic, "waiting")
    waiting.send(member.request(max_wait_ms=60_000), 2)
    await client.call(produce("t", batch(b"a")), 9)
    assert values_of(row_of(await waiting.receive())) == [b"a"]
    member.epoch = 1
    other = Member(client, topic, "other")
    await other.fetch()
    client.send(other.request(max_wait_ms=60_000), 2)
    await client.writer.drain()
    assert await member.settle(0, 0, RELEASE) == (0, 0)
    assert values_of(row_of(await client.receive())) == [b"a"]
    await waiting.close()


async def test_acknowledgements_come_with_a_fetch(
    client: Client, persister: MemoryPersister
) -> None:
    topic = await topic_with(client, persister, batch(b"a"), batch(b"b"))
    member = Member(client, topic)
    assert await member.acquire(share_acquire_mode=1, max_records=1) == [(0, 0, 1)]
    answer = await member.fetch(topics=member.with_acks(0, 0, ACCEPT), max_wait_ms=1_000)
    row = row_of(answer)
    assert (row.acknowledge_error_code, values_of(row)) == (0, [b"b"])
    row = row_of(await member.fetch(topics=member.with_acks(0, 0, ACCEPT)))
    assert row.acknowledge_error_code == 0, "before the start offset: done already"
    row = row_of(await member.fetch(topics=member.with_acks(2, 2, ACCEPT)))
    assert row.acknowledge_error_code == ErrorCode.INVALID_REQUEST
    assert not row.records


async def test_a_final_request_releases_what_is_left(
    client: Client, persister: MemoryPersister
) -> None:
    topic = await topic_with(client, persister, batch(b"a", b"b"))
    member = Member(client, topic)
    assert await member.acquire() == [(0, 1, 1)]
    answer = await member.fetch(
        share_session_epoch=-1, topics=member.with_acks(0, 0, ACCEPT), max_wait_ms=1_000
    )
    assert row_of(answer).acknowledge_error_code == 0
    assert not row_of(answer).records
    again = await client.call(member.request(), 2)
    assert again.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert await Member(client, topic, "other").acquire() == [(1, 1, 2)]


async def test_a_closed_connection_releases_its_records(
    server: Server, client: Client, persister: MemoryPersister
) -> None:
    topic = await topic_with(client, persister, batch(b"a"))
    gone = await Client.connect(port_of(server))
    assert await Member(gone, topic, "gone").acquire() == [(0, 0, 1)]
    await gone.close()
    assert await Member(client, topic, "other").acquire() == [(0, 0, 2)]
    assert len(server.broker.shares.sessions) == 1


async def test_offsets_of_a_group_without_members_can_be_changed(
    server: Server, client: Client, persister: MemoryPersister
) -> None:
    topic = await topic_with(client, persister, batch(b"a", b"b"))
    member = Member(client, topic)
    assert await member.acquire() == [(0, 1, 1)]
    assert await member.settle(0, 1, ACCEPT) == (0, 0)
    await member.fetch(share_session_epoch=-1)
    await until(lambda: len(server.broker.shares) == 0)
    persister.initialize(SharePartitionKey(GROUP, topic, 0), state_epoch=2, start_offset=0)
    assert await Member(client, topic).acquire() == [(0, 1, 1)]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": None}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "m" * 37}, ErrorCode.INVALID_REQUEST),
        ({"share_session_epoch": 1}, ErrorCode.SHARE_SESSION_NOT_FOUND),
        ({"share_session_epoch": -1}, ErrorCode.SHARE_SESSION_NOT_FOUND),
        ({"is_renew_ack": True}, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_fetches_that_are_refused(
    client: Client, persister: MemoryPersister, fields: dict[str, Any], code: int
) -> None:
    topic = await topic_with(client, persister)
    assert (await Member(client, topic).fetch(**fields)).error_code == code


async def test_errors_of_sessions(
    server: Server, client: Client, persister: MemoryPersister
) -> None:
    topic = await topic_with(client, persister, batch(b"a"))
    member = Member(client, topic)
    refused = await member.fetch(topics=member.with_acks(0, 0, ACCEPT))
    assert refused.error_code == ErrorCode.INVALID_REQUEST, "with a new session"
    assert await member.settle(0, 0, ACCEPT) == (ErrorCode.INVALID_SHARE_SESSION_EPOCH, 0)
    await member.acquire()
    wrong = await member.fetch(share_session_epoch=9)
    assert wrong.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert (await member.settle(0, 0, ACCEPT, share_session_epoch=9))[0] == 123
    server.broker.shares.sessions._limit = 1
    full = await Member(client, topic, "other").fetch()
    assert full.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED


async def test_errors_of_partitions(client: Client, persister: MemoryPersister) -> None:
    topic = await topic_with(client, persister, batch(b"a"))
    member = Member(client, topic)
    strange = [FetchTopic(bytes(15) + b"x", [FetchPartition(0)]),
               FetchTopic(topic, [FetchPartition(0), FetchPartition(7)])]  # fmt: skip
    answer = await member.fetch(topics=strange, max_wait_ms=1_000)
    codes = {(each.topic_id, row.partition_index): row.error_code
             for each in answer.responses for row in each.partitions}  # fmt: skip
    assert codes == {
        (bytes(15) + b"x", 0): ErrorCode.UNKNOWN_TOPIC_ID,
        (topic, 0): 0,
        (topic, 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    never = Member(client, await make(client, "never"), "never")
    row = row_of(await never.fetch(max_wait_ms=1_000))
    assert row.error_code == ErrorCode.UNKNOWN_SERVER_ERROR, "it was never initialized"


@pytest.mark.parametrize(
    ("batches", "code"),
    [
        ([(1, 0, [1])], 42),
        ([(0, 1, [])], 42),
        ([(0, 1, [1, 1, 1])], 42),
        ([(0, 1, [5])], 42),
        ([(0, 1, [-1])], 42),
        ([(0, 1, [4])], 42),
        ([(2, 2, [1]), (0, 1, [1])], 42),
        ([(0, 9, [1])], 42),
        ([(0, 1, [1]), (1, 2, [1])], 121),
        ([(0, 1, [0, 2]), (2, 2, [3])], 0),
    ],
)
async def test_batches_are_checked_and_one_bad_offset_undoes_all(
    client: Client,
    persister: MemoryPersister,
    batches: list[tuple[int, int, list[int]]],
    code: int,
) -> None:
    from kafkawire.messages.share_acknowledge import AcknowledgePartition, AcknowledgeTopic
    from kafkawire.messages.share_fetch import AcknowledgementBatch

    topic = await topic_with(client, persister, batch(b"a", b"b", b"c"))
    member = Member(client, topic)
    await member.acquire()
    rows = [AcknowledgementBatch(*each) for each in batches]
    asked = [AcknowledgeTopic(topic, [AcknowledgePartition(0, rows)])]
    assert await member.settle(0, 0, ACCEPT, topics=asked) == (0, code)
    if code:
        assert await member.settle(0, 2, ACCEPT) == (0, 0)


@pytest.mark.slow
async def test_locks_end_and_are_renewed(
    server: Server, client: Client, persister: MemoryPersister
) -> None:
    await set_group(server.broker, share_record_lock_duration_ms="1000")
    server.broker.config.group_share_min_record_lock_duration_ms = 1_000
    topic = await topic_with(client, persister, batch(b"a", b"b"))
    member = Member(client, topic)
    await member.acquire()
    assert await member.settle(0, 0, RENEW) == (0, 0)
    (leader,) = server.broker.shares._groups[GROUP].values()
    assert leader.machine is not None
    deadlines = [run.value.until_ms for run in leader.machine.runs()]
    assert deadlines[0] >= deadlines[-1]
    other = Member(client, topic, "other")
    while not any(first <= 1 <= last for first, last, _ in await other.acquire(max_wait_ms=5_000)):
        pass
    (run,) = leader.machine.runs(1, 1)
    assert (run.value.member, run.value.deliveries) == ("other", 2)
    assert await member.settle(1, 1, ACCEPT) == (0, ErrorCode.INVALID_RECORD_STATE)
    await set_group(server.broker, share_renew_acknowledge_enable="false")
    assert await other.settle(1, 1, RENEW) == (0, ErrorCode.INVALID_RECORD_STATE)


async def test_a_failed_write_is_answered_and_the_records_stay_locked(
    client: Client, persister: MemoryPersister, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkawire.share.leader.RETRY_S", 0.01)
    topic = await topic_with(client, persister, batch(b"a"))
    member = Member(client, topic)
    await member.acquire()
    persister.failures.append(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert await member.settle(0, 0, ACCEPT) == (0, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert await member.settle(0, 0, ACCEPT) == (0, 0)


async def test_another_leader_ends_the_share_partition(
    server: Server, client: Client, persister: MemoryPersister
) -> None:
    topic = await topic_with(client, persister, batch(b"a"))
    member = Member(client, topic)
    await member.acquire()
    persister.failures.append(ErrorCode.FENCED_LEADER_EPOCH)
    assert await member.settle(0, 0, REJECT) == (0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert len(server.broker.shares) == 0
    assert await member.settle(0, 0, ACCEPT) == (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert await member.acquire() == [(0, 0, 1)], "the count is the one that was stored"


async def test_a_partition_that_another_broker_leads_ends_waiting_requests(
    server: Server, client: Client, persister: MemoryPersister
) -> None:
    topic = await topic_with(client, persister, batch(b"a"))
    member = Member(client, topic)
    await member.acquire()
    client.send(member.request(max_wait_ms=60_000), 2)
    await client.writer.drain()
    (leader,) = server.broker.shares.list_leaders()
    await until(lambda: bool(leader._watchers))
    settled = leader.acknowledge("m", [Acknowledge(0, 0, [ACCEPT])])
    assert settled is not None
    partition = server.broker.table.find_by_id(topic, 0)
    server.broker.log.loader.resign_partition(partition)
    partition.notify_watchers()
    with pytest.raises(KafkaError) as moved:
        await settled
    assert moved.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    row = row_of(await client.receive())
    assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (-1, -1)
    assert len(server.broker.shares) == 0


async def test_a_stopping_broker_answers_waiting_requests(
    server: Server, client: Client, persister: MemoryPersister
) -> None:
    topic = await topic_with(client, persister)
    member = Member(client, topic)
    client.send(member.request(max_wait_ms=60_000), 2)
    await client.writer.drain()
    await until(lambda: any(each._watchers for each in server.broker.shares.list_leaders()))
    server.broker.shares.close()
    assert row_of(await client.receive()).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    member.epoch = 1
    assert row_of(await member.fetch()).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_what_is_deleted_from_the_log_is_not_in_flight(
    server: Server, client: Client, persister: MemoryPersister
) -> None:
    topic = await topic_with(client, persister, batch(b"a"), batch(b"b"))
    member = Member(client, topic)
    assert await member.acquire(share_acquire_mode=1, max_records=1) == [(0, 0, 1)]
    partition = server.broker.table.find_by_id(topic, 0)
    await partition.delete_records(1)
    assert await member.settle(0, 0, ACCEPT) == (0, 0)
    assert await member.acquire() == [(1, 1, 1)]
    (leader,) = server.broker.shares._groups[GROUP].values()
    assert leader.machine is not None
    assert leader.machine.count_in(RecordState.ACQUIRED) == 1


async def test_share_groups_are_refused_below_their_feature(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_shares(server.broker, monkeypatch, level=0)
    member = Member(client, bytes(16))
    assert (await member.fetch()).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert await member.settle(0, 0, ACCEPT) == (ErrorCode.UNSUPPORTED_VERSION, 0)


async def test_rights_of_the_group_and_of_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, authorizer="acl") as server:
        persister = serve_shares(server.broker, monkeypatch)
        acls = server.broker.security.acls
        assert acls is not None
        await acls.create([rule(Operation.CREATE, ResourceKind.CLUSTER)])
        client = await Client.connect(port_of(server))
        topic = await make(client, "t")
        initialize(persister, topic)
        member = Member(client, topic, GROUP)
        assert (await member.fetch()).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert (await member.settle(0, 0, ACCEPT))[0] == ErrorCode.GROUP_AUTHORIZATION_FAILED
        await acls.create([rule(Operation.READ, ResourceKind.GROUP)])
        row = row_of(await member.fetch())
        assert row.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        settled = await member.settle(0, 0, ACCEPT)
        assert settled == (0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        await acls.create([rule(Operation.READ, ResourceKind.TOPIC)])
        answer = await member.fetch(topics=[FetchTopic(topic, [FetchPartition(0)])])
        assert row_of(answer) is None
        await client.close()
