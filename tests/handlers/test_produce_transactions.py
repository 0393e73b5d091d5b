"""Transactional batches in Produce, through a socket: their verification, and every code.

Covers: kafkawire.handlers.produce.transactional, kafkawire.handlers.produce.long,
kafkawire.broker.verification, kafkawire.transactions.coordinator.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kafkawire.broker.markers import MarkerWriter
from kafkawire.broker.verification import TransactionVerifier
from kafkawire.codec.batches import CONTROL, TRANSACTIONAL
from kafkawire.codec.compression import ZSTD
from kafkawire.codec.errors import ErrorCode as E
from kafkawire.codec.validate import MAX_RECORDS_AT_ONCE
from kafkawire.log.io.disk import DiskFile
from kafkawire.log.io.ports import Buffer
from kafkawire.messages.end_txn import EndTxnRequest
from kafkawire.messages.flat_produce import MAX_ITEMS
from kafkawire.server.run import Server
from kafkawire.transactions.service import TransactionService
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import fetch, make, values
from tests.kit.server import port_of, running
from tests.kit.transactions.raw import TV1, TV2, RawProducer
from tests.kit.waiting import until

SETTINGS = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "1"}


@pytest.fixture(name="server")
async def serve(tmp_path: Path) -> AsyncIterator[Server]:
    async with running(tmp_path / "data", flush="commit", **SETTINGS) as started:
        yield started


@pytest.fixture
async def producer(client: Client) -> RawProducer:
    await make(client, "t", 3)
    return await RawProducer(client).init()


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """No coordinator answers at once, as if it were another broker."""
    monkeypatch.setattr(TransactionService, "answer_at_once", lambda *_: False)


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """Markers go through the queue, as those for another broker do."""
    monkeypatch.setattr(MarkerWriter, "append_at_once", lambda *_: None)


async def log_end(client: Client, index: int = 0) -> int:
    asked = fetch("t", 0)
    asked.topics[0].partitions[0].partition = index
    row = (await client.call(asked, 11)).responses[0].partitions[0]
    return int(row.high_watermark)


async def committed(client: Client, index: int = 0) -> list[bytes]:
    """The records that a consumer of committed ones gets, where none was aborted."""
    asked = fetch("t", 0)
    asked.isolation_level = 1
    asked.topics[0].partitions[0].partition = index
    row = (await client.call(asked, 11)).responses[0].partitions[0]
    assert not row.aborted_transactions
    return values(row)


# -- which batches enter


@pytest.mark.parametrize(("version", "code"), [(3, 48), (9, 48), (10, 48), (11, 120), (12, 0)])
async def test_batch_for_a_partition_that_was_not_added(
    client: Client, producer: RawProducer, version: int, code: int
) -> None:
    row = await producer.send(b"a", version=version)
    assert (row.error_code, await log_end(client)) == (code, 0 if code else 1)


@pytest.mark.parametrize("version", [3, 9, 11])
@pytest.mark.parametrize("acks", [0, 1, -1])
async def test_batches_enter_partitions_that_were_added(
    client: Client, producer: RawProducer, version: int, acks: int
) -> None:
    assert await producer.add(0, 1) == 0
    for sequence in range(5):
        raw = producer.packed(b"%d" % sequence, sequence=sequence)
        client.send(producer.request({0: raw, 1: raw}, acks), version, answered=acks != 0)
        if acks:
            rows = (await client.receive()).responses[0].partition_responses
            assert [(r.error_code, r.base_offset) for r in rows] == [(0, sequence)] * 2
    assert await producer.end() == 0
    await until_settled(client, producer)
    for index in (0, 1):
        assert (await committed(client, index))[:5] == [b"%d" % n for n in range(5)]


async def until_settled(client: Client, producer: RawProducer) -> None:
    """Wait for the markers of the last EndTxn v4, which is sent again."""
    while (await client.call(EndTxnRequest(producer.name, producer.id, producer.epoch, True), 4)
           ).error_code == E.CONCURRENT_TRANSACTIONS:  # fmt: skip
        pass


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("waits", [True, False])
async def test_version_2_adds_partitions_by_itself(
    server: Server,
    producer: RawProducer,
    commit: bool,
    waits: bool,
    request: pytest.FixtureRequest,
) -> None:
    if waits:
        request.getfixturevalue("waiting")
    for number in range(3):
        for index in range(3):
            row = await producer.send(b"%d" % number, index=index, sequence=0)
            assert row.error_code in (0, E.CONCURRENT_TRANSACTIONS)
            assert row.error_code == 0
        assert await producer.end(commit=commit, version=5) == 0
    assert producer.epoch == 3
    partition = server.broker.table.find_by_name("t", 2)
    await until(lambda: partition.last_stable_offset == 6)


@pytest.mark.usefixtures("queued")
async def test_next_transaction_waits_for_the_markers_of_the_last(
    server: Server, client: Client, producer: RawProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked again at the interval, then answered CONCURRENT_TRANSACTIONS; never INVALID_TXN_STATE
    and never inside the old transaction."""
    await producer.send(b"old")
    sender = server.broker.transactions.sender
    with monkeypatch.context() as patched:
        patched.setattr(type(sender), "_wake", lambda *_: None)  # markers wait
        await client.call(EndTxnRequest("tx", producer.id, producer.epoch, True), 5)
        producer.epoch += 1
        producer.sequence = 0
        started = server.broker.env.clock.monotonic()
        row = await producer.send(b"new")
        assert server.broker.env.clock.monotonic() - started >= 0.1
        assert row.error_code == E.CONCURRENT_TRANSACTIONS
        assert await log_end(client) == 1
    raw = producer.packed(b"new")
    client.send(producer.request({0: raw}), TV2)
    sender._wake(server.broker.node_id)
    rows = (await client.receive()).responses[0].partition_responses
    assert (rows[0].error_code, rows[0].base_offset) == (0, 2)


@pytest.mark.usefixtures("queued")
async def test_next_transaction_begins_as_soon_as_the_markers_are_written(
    server: Server, client: Client, producer: RawProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only at the next interval."""
    config = server.broker.config
    monkeypatch.setattr(config, "add_partitions_to_txn_retry_backoff_ms", 3_600_000)
    monkeypatch.setattr(config, "add_partitions_to_txn_retry_backoff_max_ms", 3_600_000)
    sender = server.broker.transactions.sender
    await producer.send(b"old")
    with monkeypatch.context() as patched:
        patched.setattr(type(sender), "_wake", lambda *_: None)  # markers wait
        await client.call(EndTxnRequest("tx", producer.id, producer.epoch, True), 5)
    producer.epoch += 1
    client.send(producer.request({0: producer.packed(b"new", sequence=0)}), TV2)
    (coordinator,) = (
        each for each in server.broker.transactions.list_led() if "tx" in each.shard.transactions
    )
    await until(lambda: bool(coordinator._completions._by_id))
    sender._wake(server.broker.node_id)
    rows = (await client.receive()).responses[0].partition_responses
    assert (rows[0].error_code, rows[0].base_offset) == (0, 2)
    assert not coordinator._completions._by_id


@pytest.mark.usefixtures("queued")
async def test_old_client_gets_a_retriable_code_while_markers_are_written(
    server: Server, client: Client, producer: RawProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await producer.add(0)
    await producer.send(b"old", version=TV1)
    sender = server.broker.transactions.sender
    with monkeypatch.context() as patched:
        patched.setattr(type(sender), "_wake", lambda *_: None)
        await client.call(EndTxnRequest("tx", producer.id, producer.epoch, True), 4)
        row = await producer.send(b"x", version=9, index=1, sequence=0)
        assert row.error_code == E.NOT_ENOUGH_REPLICAS
    sender._wake(server.broker.node_id)


# -- checks of the whole request


async def test_transactional_batch_needs_a_transactional_id(
    client: Client, producer: RawProducer
) -> None:
    request = producer.request({0: batch(b"plain"), 1: producer.packed(b"a")})
    request.transactional_id = None
    for version in (9, 12):
        rows = (await client.call(request, version)).responses[0].partition_responses
        assert [row.error_code for row in rows] == [53, 53]
    assert await log_end(client) == 0
    assert (await producer.send(b"a")).error_code == 0
    alone = producer.request({0: producer.packed(b"b")})
    alone.transactional_id = None  # not even while the transaction is open
    rows = (await client.call(alone, 12)).responses[0].partition_responses
    assert [row.error_code for row in rows] == [53]


async def test_repeated_requests_without_transactional_id_take_no_transactional_batch(
    client: Client, producer: RawProducer
) -> None:
    assert (await producer.send(b"a")).error_code == 0
    for raw, code in ((batch(b"x"), 0), (batch(b"y"), 0), (batch(b"z"), 0),
                      (producer.packed(b"b"), 53), (batch(b"w"), 0)):  # fmt: skip
        request = producer.request({0: raw})
        request.transactional_id = None
        rows = (await client.call(request, 9)).responses[0].partition_responses
        assert rows[0].error_code == code


async def test_two_producers_in_one_request_are_refused(
    client: Client, producer: RawProducer
) -> None:
    for changed in ({"producer_id": producer.id + 1}, {"producer_epoch": producer.epoch + 1}):
        rows = await producer.codes(
            {0: producer.packed(b"a"), 1: producer.packed(b"b", **changed), 2: batch(b"c")}
        )
        assert [row.error_code for row in rows.values()] == [49] * 3
    assert await log_end(client, 2) == 0


async def test_control_batch_is_refused(client: Client, producer: RawProducer) -> None:
    await producer.add(0)
    for attributes in (CONTROL, CONTROL | TRANSACTIONAL):
        for version in (TV1, TV2):
            row = await producer.send(b"a", version=version, attributes=attributes)
            assert row.error_code == E.INVALID_RECORD


async def test_plain_batch_of_the_producer_is_refused_in_its_transaction(
    producer: RawProducer,
) -> None:
    await producer.send(b"a")
    row = await producer.send(b"b", attributes=0)
    assert row.error_code == E.INVALID_TXN_STATE


async def test_transactional_id_with_plain_batches_is_accepted(producer: RawProducer) -> None:
    rows = await producer.codes({0: batch(b"a"), 1: batch(b"b")}, 9)
    assert [row.error_code for row in rows.values()] == [0, 0]


# -- epochs and ids


@pytest.mark.parametrize("version", [9, 11, 12])
async def test_replaced_producer_gets_invalid_producer_epoch(
    client: Client, producer: RawProducer, version: int
) -> None:
    """Never PRODUCER_FENCED, which producers do not expect here (before the partition knows the
    new epoch, and after)."""
    await RawProducer(client).init()
    assert (await producer.send(b"a", version=version)).error_code == 47
    other = await RawProducer(client).init()
    assert (await other.send(b"b")).error_code == 0
    assert (await producer.send(b"c", version=version)).error_code == 47


async def test_early_epoch_check_asks_no_coordinator(
    client: Client, server: Server, producer: RawProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await RawProducer(client).init()
    assert (await other.send(b"b")).error_code == 0

    def never(*_: Any) -> Any:
        raise AssertionError("the coordinator was asked")

    monkeypatch.setattr(TransactionService, "answer_at_once", never)
    monkeypatch.setattr(TransactionService, "answer_request", never)
    assert (await producer.send(b"c")).error_code == 47
    assert (await other.send(b"d")).error_code == 0  # the transaction is open


@pytest.mark.parametrize("version", [9, 11, 12])
async def test_unknown_transactional_id_or_producer(
    client: Client, producer: RawProducer, version: int
) -> None:
    row = await producer.send(b"a", version=version, producer_id=producer.id + 77)
    assert row.error_code == E.INVALID_PRODUCER_ID_MAPPING
    stranger = RawProducer(client, "stranger", id=producer.id, epoch=0)
    row = await stranger.send(b"a", version=version)
    assert row.error_code == E.INVALID_PRODUCER_ID_MAPPING
    assert await log_end(client) == 0


@pytest.mark.parametrize("version", [TV1, TV2])
async def test_late_batch_of_a_zombie_never_enters(
    client: Client, server: Server, producer: RawProducer, version: int
) -> None:
    """Its transaction was aborted by a newer producer, in a partition that no marker reached."""
    if version == TV1:
        await producer.add(0)
    assert (await producer.send(b"a", version=version)).error_code == 0
    await RawProducer(client).init()
    for index in (0, 1):
        row = await producer.send(b"late", version=version, index=index, sequence=1 - index)
        assert row.error_code == 47
    partition = server.broker.table.find_by_name("t", 1)
    assert (partition.next_offset, partition.producers.transactions) == (0, None)


@pytest.mark.usefixtures("waiting")
async def test_answer_older_than_the_marker_lets_no_batch_in(
    server: Server, client: Client, producer: RawProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator says yes; before the append the transaction ends (TV1: epoch unchanged)."""
    await producer.add(0)
    ask = TransactionVerifier._ask

    async def slow(self: TransactionVerifier, *question: Any) -> Any:
        codes = await ask(self, *question)
        await other.end(commit=False)
        await until(lambda: partition.next_offset == 1)  # the marker
        return codes

    partition = server.broker.table.find_by_name("t", 0)
    second = await Client.connect(port_of(server))
    other = RawProducer(second, id=producer.id, epoch=producer.epoch)
    with monkeypatch.context() as patched:
        patched.setattr(TransactionVerifier, "_ask", slow)
        row = await producer.send(b"late", version=TV1)
    assert row.error_code == E.INVALID_TXN_STATE
    assert partition.next_offset == 1
    await second.close()


# -- sequences


async def test_sequences_of_the_next_transaction(client: Client, producer: RawProducer) -> None:
    """Version 1 goes on, version 2 begins at 0."""
    await producer.add(0)
    for sequence in (0, 1):
        assert (await producer.send(b"a", version=TV1, sequence=sequence)).error_code == 0
    await producer.end()
    while await producer.add(0) == E.CONCURRENT_TRANSACTIONS:
        pass
    assert (await producer.send(b"b", version=TV1, sequence=2)).error_code == 0
    row = await producer.send(b"b", b"b", version=TV1, sequence=0)
    assert row.error_code == E.OUT_OF_ORDER_SEQUENCE_NUMBER
    await producer.end(version=5)
    assert (await producer.send(b"c", sequence=3)).error_code == 45
    assert (await producer.send(b"c", sequence=0)).error_code == 0
    assert (await producer.send(b"c", index=1, sequence=5)).error_code == 45


@pytest.mark.usefixtures("waiting")
async def test_lower_sequence_enters_first(
    server: Server, client: Client, producer: RawProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verification of the first batch fails with a retriable error, that of the second
    succeeds: the second must not enter before the first is sent again (KAFKA-14920)."""
    await producer.add(0)
    ask = TransactionVerifier._ask

    async def loading(self: TransactionVerifier, question: Any, partitions: Any) -> Any:
        return dict.fromkeys(partitions, E.COORDINATOR_LOAD_IN_PROGRESS)

    with monkeypatch.context() as patched:
        patched.setattr(TransactionVerifier, "_ask", loading)
        row = await producer.send(b"0", version=9, sequence=0)
        assert row.error_code == E.NOT_ENOUGH_REPLICAS
        assert "COORDINATOR_LOAD_IN_PROGRESS" in row.error_message
    assert TransactionVerifier._ask is ask
    for sequence, code in ((1, 45), (2, 45), (0, 0), (1, 0), (2, 0)):
        row = await producer.send(b"%d" % sequence, version=9, sequence=sequence)
        assert row.error_code == code
    assert await log_end(client) == 3


async def test_retries_get_the_first_offset(client: Client, producer: RawProducer) -> None:
    await producer.add(0)
    for _ in range(4):  # the last ones take the way of repeated requests
        row = await producer.send(b"a", version=9, sequence=0)
        assert (row.error_code, row.base_offset) == (0, 0)
    await producer.end()
    for version, code in ((9, 48), (11, 120)):
        while True:
            row = await producer.send(b"a", version=version, sequence=0)
            if row.error_code != E.NOT_ENOUGH_REPLICAS:  # markers are being written
                break
        assert row.error_code == code
    other = await producer.init()
    await other.send(b"b")
    old = other.epoch
    await other.end(version=5)
    assert (await other.send(b"b", sequence=0, producer_epoch=old)).error_code == 47


@pytest.mark.parametrize("version", [TV1, TV2])
@pytest.mark.parametrize("waits", [True, False])
async def test_pipelined_batches_are_appended_in_order(
    client: Client,
    producer: RawProducer,
    version: int,
    waits: bool,
    request: pytest.FixtureRequest,
) -> None:
    """Five in flight, of which the first waits for the coordinator; a plain Produce after them."""
    if waits:
        request.getfixturevalue("waiting")
    if version == TV1:
        await producer.add(0)
    for sequence in range(5):
        raw = producer.packed(b"%d" % sequence, sequence=sequence)
        client.send(producer.request({0: raw}), version)
    plain = producer.request({0: batch(b"plain")})
    client.send(plain, version)
    for offset in range(6):
        row = (await client.receive()).responses[0].partition_responses[0]
        assert (row.error_code, row.base_offset) == (0, offset)


async def test_transaction_of_many_requests_is_repeated(
    client: Client, producer: RawProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first batch of a partition asks; later ones take the way of repeated requests."""
    asked = 0
    answer = TransactionService.answer_at_once

    def counted(self: TransactionService, request: Any) -> bool:
        nonlocal asked
        asked += 1
        return answer(self, request)

    monkeypatch.setattr(TransactionService, "answer_at_once", counted)
    for number in range(3):
        for sequence in range(20):
            raw = producer.packed(b"x", sequence=sequence)
            client.send(producer.request({0: raw}), TV2)
        for _ in range(20):
            row = (await client.receive()).responses[0].partition_responses[0]
            assert row.error_code == 0
        assert asked == number + 1
        assert await producer.end(version=5) == 0
    assert len(await committed(client)) >= 40


async def test_failed_write_of_the_coordinators_record_fails_the_batch(
    server: Server, client: Client, producer: RawProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is appended before the record that adds its partition is durable: one is not
    written without the other, and the next attempt finds neither."""
    write = DiskFile.pwritev

    def full(self: DiskFile, buffers: Sequence[Buffer], position: int) -> int:
        raise OSError(errno.ENOSPC, "no room")

    partition = server.broker.table.find_by_name("t", 0)
    with monkeypatch.context() as patched:
        patched.setattr(DiskFile, "pwritev", full)
        row = await producer.send(b"a")
        assert row.error_code == E.KAFKA_STORAGE_ERROR
    assert DiskFile.pwritev is write
    assert not partition.producers.is_open(producer.id, producer.epoch)
    while (row := await producer.send(b"a")).error_code == E.NOT_ENOUGH_REPLICAS:
        pass  # the coordinator loads
    assert (row.error_code, row.base_offset) == (0, 0)
    assert await producer.end(version=5) == 0
    await until(lambda: partition.last_stable_offset == 2)


# -- many partitions and long batches


@pytest.mark.parametrize("version", [TV1, TV2])
async def test_request_of_many_partitions_asks_once(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    count = MAX_ITEMS * 3
    await make(client, "t", count)
    producer = await RawProducer(client).init()
    if version == TV1:
        await producer.add(*range(count - 1))
    asked: list[int] = []
    ask = TransactionVerifier._ask

    async def counted(self: TransactionVerifier, question: Any, partitions: Any) -> Any:
        asked.append(len(partitions))
        return await ask(self, question, partitions)

    monkeypatch.setattr(TransactionVerifier, "_ask", counted)
    batches = {index: producer.packed(b"x") for index in range(count)}
    rows = await producer.codes(batches, version)
    assert asked == [count]
    codes = [row.error_code for row in rows.values()]
    assert codes == [0] * (count - 1) + [120 if version == TV1 else 0]
    batches[7] = producer.packed(b"x", producer_id=producer.id + 1)
    rows = await producer.codes(batches, version)
    assert {row.error_code for row in rows.values()} == {49}
    request = producer.request({index: producer.packed(b"x") for index in range(count)})
    request.transactional_id = None
    rows = (await client.call(request, version)).responses[0].partition_responses
    assert {row.error_code for row in rows} == {53}


@pytest.mark.parametrize("version", [TV1, TV2])
@pytest.mark.parametrize("waits", [True, False])
async def test_batch_of_many_records_is_verified(
    producer: RawProducer, version: int, waits: bool, request: pytest.FixtureRequest
) -> None:
    if waits:
        request.getfixturevalue("waiting")
    long = [b""] * (MAX_RECORDS_AT_ONCE + 1000)
    if version == TV1:
        await producer.add(0, 1)
    first = {0: producer.packed(b"short"), 1: producer.packed(*long, codec=ZSTD)}
    rows = await producer.codes(first, version)
    assert [row.error_code for row in rows.values()] == [0, 0]
    row = await producer.send(*long, version=version, index=2, sequence=0, codec=ZSTD)
    assert row.error_code == (120 if version == TV1 else 0)


# -- settings, codes


async def test_verification_can_be_disabled(tmp_path: Path) -> None:
    """Then a batch outside of a transaction enters, and stays open: as in Kafka."""
    off = {"transaction.partition.verification.enable": "false"}
    async with running(tmp_path, **SETTINGS, **off) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t")
        producer = await RawProducer(client).init()
        assert (await producer.send(b"a", version=9)).error_code == 0
        partition = server.broker.table.find_by_name("t", 0)
        assert (partition.high_watermark, partition.last_stable_offset) == (1, 0)
        await client.close()


@pytest.mark.usefixtures("waiting")
async def test_requests_of_a_closed_connection_are_dropped(
    server: Server, client: Client, producer: RawProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = await Client.connect(port_of(server))
    ask = TransactionVerifier._ask

    async def closing(self: TransactionVerifier, *question: Any) -> Any:
        second.writer.transport.abort()
        await until(lambda: len(server.host.connections) == 1)
        return await ask(self, *question)

    monkeypatch.setattr(TransactionVerifier, "_ask", closing)
    other = RawProducer(second, id=producer.id, epoch=producer.epoch)
    second.send(other.request({0: other.packed(b"a")}), TV2)
    await until(lambda: second.reader.at_eof() or bool(second.reader.exception()))
    await until(
        lambda: not server.broker.table.find_by_name("t", 0).producers.is_open(producer.id, 0)
    )
    await until(lambda: server.host.memory.arena.pins == 0)
    assert await log_end(client) == 0


@pytest.mark.usefixtures("waiting")
async def test_defect_is_answered(
    client: Client,
    producer: RawProducer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(*_: Any) -> Any:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(TransactionVerifier, "_ask", broken)
        assert (await producer.send(b"a")).error_code == E.UNKNOWN_SERVER_ERROR
    assert "verifying a transaction of transactional id tx failed" in caplog.text
    assert (await producer.send(b"a")).error_code == 0
