"""The metrics page and the health page of a running broker, read as a monitor reads them.

Covers: kafkawire.server.http_pages, kafkawire.server.metrics.*, kafkawire.server.monitored,
kafkawire.transactions.coordinator.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kafkawire.codec.batches import Record, pack
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.producers import Producers
from kafkawire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from kafkawire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kafkawire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kafkawire.metric_counters import SECONDS, Histogram
from kafkawire.objectstore.url import parse_tier
from kafkawire.server import http_pages as page
from kafkawire.server.metrics import clients, families, transactions
from kafkawire.server.run import Server
from kafkawire.transactions.coordinator import TransactionCounts
from kafkawire.transactions.machine.request import AddPartitions, EndTransaction, InitProducer
from kafkawire.transactions.machine.transaction import ONGOING, Transaction
from tests.kit.client import Client, batch
from tests.kit.log.transactional import Producer
from tests.kit.produce_fetch import fetch, make, produce
from tests.kit.quotas import set_quotas
from tests.kit.server import port_of, running
from tests.kit.waiting import until

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@asynccontextmanager
async def watched(data: Path, **settings: str) -> AsyncIterator[tuple[Server, int]]:
    """A broker and the port of its pages."""
    async with running(data, metrics_listener="127.0.0.1:0", **settings) as server:
        assert server.monitors is not None
        yield server, server.monitors[1]


async def ask(port: int, head: bytes) -> tuple[str, bytes]:
    """(status line, body) of one request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head)
    raw = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    first, _, rest = raw.partition(b"\r\n")
    return first.decode(), rest.partition(b"\r\n\r\n")[2]


async def scrape(port: int) -> Samples:
    status, body = await ask(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status == "HTTP/1.1 200 OK"
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def of(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


async def test_requests_of_clients_are_counted(tmp_path: Path) -> None:
    async with watched(tmp_path / "data") as (server, port):
        client = await Client.connect(port_of(server))
        await make(client, "metered")
        for _ in range(3):
            await client.call(produce("metered", batch(b"one", b"two")), 7)
        reader = await Client.connect(port_of(server))  # of a connection one a second is measured
        await reader.call(fetch("metered", 0), 11)
        await reader.close()
        await client.call(produce("metered", b"no batch at all, but long enough to look"), 7)
        samples = await scrape(port)
        await client.close()
    assert of(samples, "kafkawire_requests_total", api="Produce") == 4
    assert of(samples, "kafkawire_requests_total", api="Fetch") == 1
    assert of(samples, "kafkawire_log_appended_records_total") == 6
    size = len(batch(b"one", b"two"))
    assert of(samples, "kafkawire_log_appended_bytes_total") >= 3 * size
    assert of(samples, "kafkawire_fetched_bytes_total") == 3 * size
    refused = [value for (name, _), value in samples.items() if "request_errors" in name]
    assert sum(refused) == 1
    assert of(samples, "kafkawire_partition_high_watermark", topic="metered", partition="0") == 6
    traffic = {"topic": "metered"}
    assert of(samples, "kafkawire_topic_in_records_total", **traffic) == 6
    assert of(samples, "kafkawire_topic_in_bytes_total", **traffic) == 3 * size
    assert of(samples, "kafkawire_topic_out_bytes_total", **traffic) == 3 * size
    for api in ("Produce", "Fetch", "CreateTopics"):
        assert of(samples, "kafkawire_request_seconds_count", api=api) >= 1
        assert of(samples, "kafkawire_request_seconds_sum", api=api) > 0
    assert of(samples, "kafkawire_connections") == 1
    assert of(samples, "kafkawire_log_commit_seconds_count") >= 1
    assert of(samples, "process_resident_memory_bytes") > 1 << 20


async def test_cluster_is_counted_as_this_broker_knows_it(tmp_path: Path) -> None:
    async with watched(tmp_path / "data") as (server, port):
        client = await Client.connect(port_of(server))
        await make(client, "three", partitions=3)
        gone = await make(client, "gone", partitions=2)
        catalog = server.broker.catalog
        catalog.brokers[2] = catalog.brokers[server.broker.node_id]
        catalog.set_silent(frozenset({2, 7}))
        catalog.set_moves({catalog.by_name["three"].partitions[0].number: 2})
        before = await scrape(port)
        await server.broker.topics.delete([gone])
        after = await scrape(port)
        catalog.set_moves(dict.fromkeys(catalog.moves))
        del catalog.brokers[2]
        await client.close()
    assert of(before, "kafkawire_brokers", state="alive") == 1
    assert of(before, "kafkawire_brokers", state="silent") == 1
    assert of(before, "kafkawire_moving_partitions") == 1
    led = [of(samples, "kafkawire_partitions_led") for samples in (before, after)]
    assert led == [5, 3]


async def test_group_lag_metric(tmp_path: Path) -> None:
    async with watched(tmp_path / "data") as (server, port):
        client = await Client.connect(port_of(server))
        await make(client, "read")
        await client.call(produce("read", batch(b"1", b"2", b"3", b"4", b"5")), 7)
        await server.broker.groups.open()
        commit = OffsetCommitRequest(
            group_id="readers",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[
                OffsetCommitRequestTopic(
                    name="read",
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=0, committed_offset=2)
                    ],
                )
            ],
        )
        answer = await client.call(commit, 7)
        assert answer.topics[0].partitions[0].error_code == 0
        joined = await client.call(ShareGroupHeartbeatRequest("s", "m", 0, None, ["read"]), 1)
        assert joined.error_code == 0
        samples = await scrape(port)
        await client.close()
    labels = {"group": "readers", "topic": "read", "partition": "0"}
    assert of(samples, "kafkawire_group_partition_lag_records", **labels) == 3
    assert of(samples, "kafkawire_group_lag_records", group="readers") == 3
    assert of(samples, "kafkawire_groups_lag_records") == 3
    assert of(samples, "kafkawire_groups", type="classic", state="Empty") == 1
    assert of(samples, "kafkawire_groups", type="share", state="Stable") == 1
    assert of(samples, "kafkawire_group_members", type="share") == 1


async def test_number_of_series_does_not_grow_with_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(families, "MAX_SERIES", 5)
    async with watched(tmp_path / "data") as (server, port):
        client = await Client.connect(port_of(server))
        await make(client, "many", partitions=6)
        for index in range(6):
            await client.call(produce("many", batch(b"x"), index=index), 7)
        samples = await scrape(port)
        await client.close()
    assert not [name for name, _ in samples if name.startswith("kafkawire_partition_")]
    assert of(samples, "kafkawire_loaded_partitions") >= 6


async def test_health_page(tmp_path: Path) -> None:
    async with watched(tmp_path / "data") as (server, port):
        status, body = await ask(port, b"GET /health HTTP/1.1\r\n\r\n")
        assert status == "HTTP/1.1 200 OK"
        assert json.loads(body)["status"] == "ok"
        full = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full of figs")
        server.broker.log.commit_log.refuse_appends("disk", full)
        status, body = await ask(port, b"GET /health?verbose HTTP/1.0\r\n\r\n")
        assert status == "HTTP/1.1 503 Service Unavailable"
        assert json.loads(body)["reason"] == "the disk is full of figs"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /nowhere HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        (b"\x16\x03\x01 tls?\r\n\r\n", "405 Method Not Allowed"),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * page.HEAD_BYTES_MAX, "431 Request Header Fields"),
    ],
)
async def test_invalid_http_requests_are_refused(tmp_path: Path, head: bytes, status: str) -> None:
    async with watched(tmp_path / "data") as (_, port):
        first, _ = await ask(port, head)
        assert first.startswith(f"HTTP/1.1 {status}")
        assert (await ask(port, b"HEAD /health HTTP/1.1\r\n\r\n"))[1] == b""


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nX: "])
async def test_monitor_is_answered_though_others_stall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """The oldest are closed, one for each new connection."""
    monkeypatch.setattr(page, "PATIENCE_S", 3600.0)
    async with watched(tmp_path / "data") as (_, port):
        stalled = []
        for _ in range(page.CONNECTIONS_MAX + 8):
            stalled.append(await asyncio.open_connection("127.0.0.1", port))
            stalled[-1][1].write(sent)
        for path in (b"/health", b"/metrics"):
            status, _ = await ask(port, b"GET " + path + b" HTTP/1.1\r\n\r\n")
            assert status == "HTTP/1.1 200 OK"
        for reader, _ in stalled[:8]:
            assert not await closed_by_broker(reader)
        assert not stalled[-1][0].at_eof()
        for _, other in stalled:
            other.close()


async def closed_by_broker(reader: asyncio.StreamReader) -> bytes:
    """Return the bytes that a connection receives until its end."""
    try:
        return await asyncio.wait_for(reader.read(), 60)
    except ConnectionResetError:
        return b""


async def test_monitor_at_another_address_is_not_replaced(tmp_path: Path) -> None:
    """Though it is slow to ask for its page, and oldest."""
    async with watched(tmp_path / "data") as (_, port):
        slow = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
        many = [
            await asyncio.open_connection("127.0.0.1", port)
            for _ in range(3 * page.CONNECTIONS_MAX)
        ]
        for _, writer in many[-page.CONNECTIONS_MAX :]:
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        slow[1].write(b"GET /health HTTP/1.1\r\n\r\n")
        assert (await asyncio.wait_for(slow[0].read(), 60)).startswith(b"HTTP/1.1 200 OK")
        for _, writer in [slow, *many]:
            writer.close()


def test_connection_that_is_replaced() -> None:
    """Of the address with the most; one without a request before one that does not take its page;
    none whose page is being rendered."""

    def found(*open_ones: tuple[str, bool, bool]) -> int | None:
        made = [
            SimpleNamespace(host=host, idle=idle, rendering=rendering)
            for host, idle, rendering in open_ones
        ]
        chosen = page._most_stalled(cast("Any", made))
        return None if chosen is None else made.index(cast("Any", chosen))

    assert found(("a", True, False), ("a", True, False)) == 0
    assert found(("a", False, False), ("a", True, False)) == 1
    assert found(("b", True, False), ("a", False, False), ("a", False, False)) == 1
    assert found(("a", False, True), ("b", False, False)) == 1
    assert found(("a", False, True)) is None


async def test_failing_page_returns_500(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_server: Server) -> object:
        raise RuntimeError("figs")

    monkeypatch.setattr(page, "health", broken)
    async with watched(tmp_path / "data") as (_, port):
        status, _ = await ask(port, b"GET /health HTTP/1.1\r\n\r\n")
        assert status == "HTTP/1.1 500 Internal Server Error"


def test_histogram_buckets() -> None:
    found = Histogram()
    for value in (0.00005, 0.001, 0.0011, 99.0):
        found.add(value)
    buckets = dict(found.buckets())
    assert buckets["0.0001"] == 1
    assert buckets["0.001"] == 2
    assert buckets["0.003"] == 3
    assert buckets["+Inf"] == 4
    assert len(buckets) == len(SECONDS) + 1
    assert found.total == pytest.approx(99.00215)


DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "metrics.md"
DASHBOARD = Path(__file__).parent.parent.parent / "docs" / "grafana.json"
BEGIN, END = (
    "<!-- families: UPDATE_DOCS=1 pytest tests/server/test_metrics.py -->\n",
    "<!-- /families -->",
)


async def families_of(data: Path, tier: Path) -> list[tuple[str, str, str]]:
    """(name, type, words) of every metric family of a broker with a tier, a group, a schedule topic
    and a topic with durability=replicated."""
    settings = {
        "tier_url": parse_tier(str(tier)).url,
        "backup_url": f"{data}-backups",
        "replication_listener": "127.0.0.1:1",
    }
    async with watched(data, **settings) as (server, port):
        client = await Client.connect(port_of(server))
        await make(client, "t")
        await make(client, "copied", durability="replicated")
        await make(client, "later", schedule_target_topic="t")
        await until(lambda: server.broker.schedules.service is not None)
        await client.call(produce("t", batch(b"x")), 7)
        await client.call(produce("copied", batch(b"x")), 7)
        await server.broker.groups.open()
        await server.broker.transactions.open()
        await client.call(GetTelemetrySubscriptionsRequest(), 0)
        await server.broker.load_shares()
        _, body = await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        await client.close()
    return [
        (family.name, family.type, family.documentation)
        for family in text_string_to_metric_families(body.decode())
        if family.name.startswith("kafkawire")
    ]


async def test_document_lists_every_metric_family(tmp_path: Path) -> None:
    found = await families_of(tmp_path / "data", tmp_path / "bucket")
    assert len({name for name, _, _ in found}) == len(found)
    rows = ["| name | type | |", "|---|---|---|"]
    for name, kind, words in found:
        shown = f"{name}_total" if kind == "counter" else name
        rows.append(f"| `{shown}` | {kind} | {words} |")
    wanted = BEGIN + "\n" + "\n".join(rows) + "\n\n" + END
    text = DOCUMENT.read_text(encoding="utf-8")
    start, stop = text.index(BEGIN), text.index(END) + len(END)
    if "UPDATE_DOCS" in os.environ:
        DOCUMENT.write_text(text[:start] + wanted + text[stop:], encoding="utf-8")
    else:
        assert text[start:stop] == wanted, "UPDATE_DOCS=1 pytest tests/server/test_metrics.py"


def test_dashboard_queries_use_existing_metrics() -> None:
    known = set(re.findall(r"`(kafkawire\w*)`", DOCUMENT.read_text(encoding="utf-8")))
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    asked = {
        re.sub(r"_bucket$", "", name)
        for panel in panels
        for target in panel.get("targets", ())
        for name in re.findall(r"kafkawire\w+", target["expr"])
    }
    assert len(asked) > 20
    assert asked <= known


@pytest.mark.real
async def test_tier_metrics(tmp_path: Path) -> None:
    settings = {"tier_url": parse_tier(str(tmp_path / "bucket")).url, "cut_interval_ms": "20"}
    async with watched(tmp_path / "data", **settings) as (server, port):
        client = await Client.connect(port_of(server))
        await make(client, "t", tiering_max_lag_ms="5000")
        await client.call(produce("t", batch(b"x", b"y")), 7)
        before = await scrape(port)
        loaded = server.broker.log.partitions
        await until(lambda: all(p.commit_offset == 2 for p in loaded.values()))
        after = await scrape(port)
        await client.close()
    assert of(before, "kafkawire_tier_lag_records") == 2
    assert of(before, "kafkawire_tier_partition_lag_records", topic="t", partition="0") == 2
    assert of(after, "kafkawire_tier_lag_records") == 0
    assert of(after, "kafkawire_tier_attached") == 1
    assert of(after, "kafkawire_tier_uploaded_bytes_total") > 0
    assert of(after, "kafkawire_tier_requests_total", kind="PUT") >= 2
    assert of(after, "kafkawire_tier_lag_seconds") == 0
    assert of(after, "kafkawire_tier_promise_missed_total") == 0
    assert of(after, "kafkawire_tier_last_upload_timestamp_seconds") > 1.6e9


async def test_transactions_are_counted(tmp_path: Path) -> None:
    async with watched(tmp_path / "data") as (server, port):
        client = await Client.connect(port_of(server))
        await make(client, "t")
        service = server.broker.transactions
        await service.coordinator_of("tx")
        before = await scrape(port)
        ends = (True, True, False, None)
        for number, commit in enumerate(ends):
            name = f"tx-{number}"
            made = await service.init_producer(InitProducer(name, 60_000))
            who = name, made.producer_id, made.producer_epoch
            await service.answer_request(AddPartitions(*who, frozenset({("t", 0)})))
            if commit is not None:
                await service.answer_request(EndTransaction(*who, commit))
            fenced = await service.answer_request(EndTransaction(name, who[1], 7, True))
            assert fenced.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS)
        partition = server.broker.table.find_by_name("t", 0)
        Producer(999).send(partition, b"x")  # it hangs: its record has a time of long ago
        await partition.log.wait_until_committed()
        partition.log.producing[partition] = None
        await until(lambda: not any(each.shard.pending for each in service.list_led()))
        after = await scrape(port)
        await client.close()
    assert of(before, "kafkawire_transaction_oldest_open_seconds") == 0
    assert of(after, "kafkawire_transaction_oldest_open_seconds") >= 0
    assert of(after, "kafkawire_transactions_committed_total") == 2
    assert of(after, "kafkawire_transactions_aborted_total") == 1
    assert of(after, "kafkawire_transactions_fenced_total") >= 1
    assert of(after, "kafkawire_transactions", state="Ongoing") == 1
    assert of(after, "kafkawire_transactions", state="CompleteCommit") == 2
    assert of(after, "kafkawire_transactions_in_partitions") == 1
    assert of(after, "kafkawire_transactions_late") == 1


@pytest.mark.interpreted
def test_transactional_ids_are_counted_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand of them would hold the event loop for 15 ms."""
    monkeypatch.setattr(transactions, "COUNTED_AT_ONCE", 10)
    ids = {f"id-{n}": Transaction(n, 0, 1, ONGOING, started_ms=n) for n in range(100)}
    coordinator: Any = SimpleNamespace(
        shard=SimpleNamespace(transactions=ids), counts=TransactionCounts()
    )
    commit_log = SimpleNamespace(producing={Partition.__new__(Partition) for _ in range(50)})
    for partition in commit_log.producing:
        partition.producers = Producers()
    broker: Any = SimpleNamespace(
        config=SimpleNamespace(transaction_max_timeout_ms=1),
        env=SimpleNamespace(clock=SimpleNamespace(now_ms=lambda: 5_000)),
        log=SimpleNamespace(commit_log=commit_log),
        transactions=SimpleNamespace(list_led=lambda: [coordinator, coordinator]),
    )
    found = list(transactions.transaction_families(broker))
    assert found.count(None) == 50 // 10 + 2 * 100 // 10
    by_name = {family.name: family.samples for family in found if family is not None}
    (states,) = by_name["kafkawire_transactions"]
    assert (states.labels, states.value) == ({"state": "Ongoing"}, 200)
    assert by_name["kafkawire_transaction_oldest_open_seconds"][0].value == 5


async def test_quotas_have_series_while_clients_use_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(tmp_path / "data") as (server, port):
        client = await Client.connect(port_of(server), "fast")
        await make(client, "t")
        await set_quotas(client, (("client-id", None),), {"producer_byte_rate": 1_000})
        await client.call(produce("t", batch(bytes(100_000))), 9)
        labels = {"quota": "producer_byte_rate", "user": "", "client_id": "fast", "ip": ""}
        found = await scrape(port)
        assert of(found, "kafkawire_quota_limit", **labels) == 1_000
        assert of(found, "kafkawire_quota_rate", **labels) > 5_000
        assert of(found, "kafkawire_quota_throttled_total", **labels) == 1
        assert of(found, "kafkawire_quota_throttle_seconds_total", **labels) > 50
        assert of(found, "kafkawire_quota_counters") == 1
        monkeypatch.setattr(clients, "MAX_SERIES", 0)
        found = await scrape(port)
        assert of(found, "kafkawire_quota_counters") == 1
        assert ("kafkawire_quota_limit", frozenset(labels.items())) not in found
        await client.close()


async def test_schedule_topics_are_counted(tmp_path: Path) -> None:
    async with watched(tmp_path / "data") as (server, port):
        client = await Client.connect(port_of(server))
        await make(client, "t")
        await make(client, "later", schedule_target_topic="t")
        now_ms = int(time.time() * 1000)
        times = (now_ms - 5_000, now_ms + 50_000, now_ms + 3_600_000)
        records = [Record(at, due_ms, None, b"x", []) for at, due_ms in enumerate(times)]
        answer = await client.call(produce("later", bytes(pack(records))), 7)
        assert answer.responses[0].partition_responses[0].error_code == 0
        # A step is counted when its records are there, and leaves the index a moment later.
        labels = frozenset({("topic", "later")})
        delivered = ("kafkawire_schedule_delivered_total", labels)
        waiting = ("kafkawire_schedule_waiting", labels)
        found = await scrape(port)
        while not found.get(delivered) or found[waiting] != 2:
            found = await scrape(port)
        await client.close()
    assert of(found, "kafkawire_schedule_due_soon", topic="later") == 1
    assert of(found, "kafkawire_schedule_held", topic="later") == 0
    assert of(found, "kafkawire_schedule_late_seconds", topic="later") >= 5
    assert of(found, "kafkawire_schedule_overdue_seconds", topic="later") == 0
