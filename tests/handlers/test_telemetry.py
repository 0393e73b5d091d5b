"""GetTelemetrySubscriptions and PushTelemetry as a client sees them, and the metrics page.

Covers: kafkawire.handlers.get_telemetry_subscriptions, kafkawire.handlers.push_telemetry,
kafkawire.telemetry.service, kafkawire.server.metrics.clients.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.types import ZERO_UUID, uuid_text
from kafkawire.messages.api_versions import ApiVersionsRequest
from kafkawire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from kafkawire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kafkawire.messages.push_telemetry import PushTelemetryRequest
from kafkawire.server.metrics import clients
from kafkawire.server.metrics.log import OTHERS
from kafkawire.telemetry import service as module
from kafkawire.telemetry.instances import TelemetryPush
from kafkawire.telemetry.subscriptions import ClientDetails
from tests.kit.admin import FakeBroker, call
from tests.kit.client import Client
from tests.kit.configs import METRICS, alter
from tests.kit.otlp import gauge, metrics_data
from tests.kit.server import port_of, running

ID = bytes(range(16))
REQUEST = "org.apache.kafka.producer.node.request.latency.max"
LATENCIES = metrics_data(gauge(REQUEST, 250.0))


async def get(broker: FakeBroker, instance_id: bytes = ID) -> Any:
    return await call(broker, GetTelemetrySubscriptionsRequest(instance_id), 0)


async def push(broker: FakeBroker, known: int, **fields: Any) -> int:
    """The error of a push with the subscription id `known`."""
    request = PushTelemetryRequest(ID, known)
    for name, value in fields.items():
        setattr(request, name, value)
    code: int = (await call(broker, request, 0)).error_code
    return code


async def subscribed(**settings: str) -> FakeBroker:
    broker = FakeBroker(**settings)
    wishes = ("metrics", 0, "org.apache.kafka.producer."), ("interval.ms", 0, "10000")
    assert await alter(broker, METRICS, "m", *wishes) == (0, None)
    return broker


def series(broker: FakeBroker) -> dict[tuple[str, ...], float]:
    """The latencies on the metrics page."""
    holder: Any = broker
    return {
        tuple(sample.labels.values()): sample.value
        for family in clients.client_families(holder)
        if family is not None and family.name == "kafkawire_client_latency_seconds"
        for sample in family.samples
    }


async def test_client_asks_pushes_and_is_on_the_metrics_page() -> None:
    broker = await subscribed()
    answer = await get(broker, ZERO_UUID)
    assert answer.error_code == 0
    assert answer.client_instance_id not in module.RESERVED
    assert "-" not in uuid_text(answer.client_instance_id)
    assert answer.requested_metrics == ["org.apache.kafka.producer."]
    assert (answer.push_interval_ms, answer.telemetry_max_bytes) == (10_000, 1 << 20)
    assert answer.accepted_compression_types == [ZSTD, LZ4, GZIP, SNAPPY]
    assert answer.delta_temporality
    assert series(broker) == {}
    fields = {"client_instance_id": answer.client_instance_id, "metrics": LATENCIES}
    assert await push(broker, answer.subscription_id, **fields) == 0
    assert series(broker) == {("client", "producer", "request", "max"): 0.25}
    broker.env.clock.now_s += 61
    assert series(broker) == {}  # forgotten


async def test_client_without_a_subscription_is_asked_for_nothing() -> None:
    answer = await get(FakeBroker())
    assert (answer.error_code, answer.client_instance_id) == (0, ID)
    assert (answer.requested_metrics, answer.push_interval_ms) == ([], 300_000)


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
async def test_compressed_metrics(codec: int) -> None:
    broker = await subscribed()
    answer = await get(broker)
    packed = bytes(compress(codec, LATENCIES))
    assert await push(broker, answer.subscription_id, compression_type=codec, metrics=packed) == 0
    assert len(series(broker)) == 1


async def test_errors_in_kafkas_order() -> None:
    broker = await subscribed(telemetry_max_bytes="1000")
    known = (await get(broker)).subscription_id
    large = bytes(1001)
    bomb = bytes(compress(ZSTD, bytes(100_000)))
    assert len(bomb) < 1000
    wrong: list[tuple[dict[str, Any], ErrorCode]] = [
        ({"metrics": large}, ErrorCode.TELEMETRY_TOO_LARGE),
        ({"compression_type": 5, "metrics": large}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"subscription_id": known + 1, "compression_type": 5}, ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
        ({"metrics": b"\x0a\x05"}, ErrorCode.INVALID_RECORD),
        ({"compression_type": ZSTD, "metrics": b"x"}, ErrorCode.INVALID_RECORD),
        ({"compression_type": ZSTD, "metrics": bomb}, ErrorCode.TELEMETRY_TOO_LARGE),
        ({"client_instance_id": ZERO_UUID}, ErrorCode.INVALID_REQUEST),
        ({"client_instance_id": bytes(15) + b"\x01"}, ErrorCode.INVALID_REQUEST),
        ({}, ErrorCode.NONE),
    ]
    for fields, error in wrong:
        assert await push(broker, known, **fields) == error
        if error == ErrorCode.INVALID_REQUEST:
            continue
        early = {**fields, "subscription_id": known + 1, "compression_type": 5}
        assert await push(broker, known, **early) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        broker.env.clock.now_s += 10
    assert await push(broker, known, terminating=True) == 0
    broker.env.clock.now_s += 10
    assert await push(broker, known + 1) == ErrorCode.INVALID_REQUEST


async def test_early_requests_are_throttled() -> None:
    broker = await subscribed()
    known = (await get(broker)).subscription_id
    answer = await get(broker)
    assert answer.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert (answer.client_instance_id, answer.requested_metrics) == (ZERO_UUID, [])
    assert await push(broker, known) == 0
    assert await push(broker, known) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    broker.env.clock.now_s += 10
    assert await push(broker, known) == 0


async def test_changed_subscription_is_granted_at_once() -> None:
    broker = await subscribed()
    known = (await get(broker)).subscription_id
    assert await push(broker, known) == 0
    await alter(broker, METRICS, "other", ("metrics", 0, "*"), ("match", 0, "client_id=cl.*"))
    assert await push(broker, known) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    answer = await get(broker)
    assert (answer.error_code, answer.requested_metrics) == (0, ["*"])
    assert answer.subscription_id != known
    await alter(broker, METRICS, "other", ("match", 0, "client_id=x"))
    answer = await get(broker)
    assert (answer.error_code, answer.subscription_id) == (0, known)


async def test_instances_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_INSTANCES", 2)
    broker = await subscribed()
    ids = [bytes([n]) * 16 for n in range(1, 4)]
    for each in ids:
        assert (await get(broker, each)).error_code == 0
    assert (await get(broker, ids[2])).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert (await get(broker, ids[0])).error_code == 0  # it was forgotten
    assert sum(1 for _ in broker.telemetry.instances()) == 2


async def test_series_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_CLIENTS", 2)
    monkeypatch.setattr(clients, "SLICE", 2)
    broker = await subscribed()
    for n, client_id in enumerate(["a", "b", "a", "c", "x" * 200], 1):
        pusher = module.Pusher(ClientDetails("", client_id, "", "", "", ""), lambda: False)
        data = metrics_data(gauge(REQUEST, n * 1000.0))
        known = (await broker.telemetry.grant(pusher, bytes([n]) * 16)).subscription_id
        sent = TelemetryPush(bytes([n]) * 16, known, False, NONE, data)
        assert await broker.telemetry.accept(pusher, sent) == 0
    assert {labels[0]: value for labels, value in series(broker).items()} == {
        "a": 3.0, "b": 2.0, OTHERS: 5.0,
    }  # fmt: skip
    monkeypatch.setattr(clients, "MAX_CLIENTS", 9)
    assert "x" * clients.MAX_NAME_CHARS in {labels[0] for labels in series(broker)}


async def test_instance_of_a_closed_connection_is_forgotten() -> None:
    broker = await subscribed()
    gone: list[bool] = []
    details = ClientDetails("", "c", "", "", "", "")
    first = module.Pusher(details, lambda: bool(gone))
    assert (await broker.telemetry.grant(first, ID)).error == 0
    second = module.Pusher(details, lambda: False)
    assert (await broker.telemetry.grant(second, ID)).error == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    gone.append(True)
    assert (await broker.telemetry.grant(second, ID)).error == 0


async def test_listed_only_with_a_subscription_that_matches_by_software(tmp_path: Path) -> None:
    """Through sockets: the name of the client's library and its port are those of a connection."""

    async def advertised(client: Client) -> set[int]:
        answer = await client.call(ApiVersionsRequest("my-library", "2.1"), 4)
        return {row.api_key for row in answer.api_keys}

    async with running(tmp_path) as server:
        client = await Client.connect(port_of(server))
        assert not {71, 72} & await advertised(client)
        assert "telemetry" not in server.broker.__dict__
        configs = [
            AlterableConfig("metrics", 0, "*"),
            AlterableConfig("match", 0, "client_software_name=my-.*,client_software_version=2.1,"
                            "client_source_address=127.0.0.1,client_source_port=[1-9][0-9]*"),
        ]  # fmt: skip
        request = IncrementalAlterConfigsRequest([AlterConfigsResource(METRICS, "m", configs)])
        assert (await client.call(request, 1)).responses[0].error_code == 0
        assert {71, 72} <= await advertised(client)
        answer = await client.call(GetTelemetrySubscriptionsRequest(), 0)
        assert answer.requested_metrics == ["*"]
        await client.close()
        other = await Client.connect(port_of(server))
        answer = await other.call(GetTelemetrySubscriptionsRequest(), 0)
        assert (answer.error_code, answer.requested_metrics) == (0, [])  # its software is unknown
        await other.close()
