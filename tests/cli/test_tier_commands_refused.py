"""`kafkawire tier ...` with wrong arguments, without a tier, against another Kafka, without a
broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kafkawire.broker.options import ServeOptions
from kafkawire.cli.app import app
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.log.io.disk import real_env
from kafkawire.messages.registry import TIER
from kafkawire.messages.tier import TierRequest
from kafkawire.server.run import Server
from tests.kit.server import options
from tests.kit.tier.commands import (
    buckets_in_memory,  # noqa: F401  (a fixture, by name)
    tiered,
)
from tests.kit.tier.fake_bucket import FakeBucket


async def test_other_kafka_without_the_api_is_reported() -> None:
    """Apache Kafka closes the connection on an API key it does not know."""

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from kafkawire.codec.compile import encode
        from kafkawire.messages.api_versions import ApiVersion, ApiVersionsResponse

        await reader.readexactly(4)
        head = await reader.read(1000)
        rows = [ApiVersion(api_key=18, min_version=0, max_version=4)]
        body = head[4:8] + encode(ApiVersionsResponse(api_keys=rows), 3)
        writer.write(len(body).to_bytes(4, "big") + body)
        await reader.readexactly(4)
        writer.close()

    kafka = await asyncio.start_server(close, "127.0.0.1", 0)
    address = f"127.0.0.1:{kafka.sockets[0].getsockname()[1]}"
    line = ["tier", "status", "--server", address]
    result = await asyncio.to_thread(CliRunner().invoke, app, line)
    kafka.close()
    await kafka.wait_closed()
    assert result.exit_code == 1
    assert "it is not kafkawire" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "arguments", "sentence"),
    [
        ("dance", b"{}", "'dance' is not a command"),
        ("status", b"[]", "must be a JSON object"),
        ("status", b"\xff", "not JSON"),
        ("status", b"[" * 5000, "not JSON"),
        ("status", b'{"after": 3}', "after=3"),
        ("status", b'{"topic": 3}', "topic 3 does not exist"),
        ("estimate", b'{"set": [1]}', "must map setting names to text values"),
        ("estimate", b'{"reads": "x"}', "bytes per second"),
        ("move", b'{"to": 3}', "to=3"),
        ("status", b" " * 70_000, "65536 are allowed"),
    ],
)
async def test_invalid_requests_are_refused_with_a_sentence(
    tmp_path: Path,
    buckets: dict[str, FakeBucket],
    command: str,
    arguments: bytes,
    sentence: str,
) -> None:
    async with tiered(tmp_path / "data") as tier:

        def ask() -> Any:
            with Cluster(tier.address) as cluster:
                return cluster.first.request_own(TIER, TierRequest(command, arguments))

        answer = await asyncio.to_thread(ask)
        assert answer.error_code == 42  # INVALID_REQUEST
        assert sentence in answer.error_message
        assert answer.body == b""


async def test_invalid_tier_url_ends_start(tmp_path: Path) -> None:
    wrong: ServeOptions = options(tmp_path, tier_url="s4://bucket")
    with pytest.raises(ValueError, match="s4://bucket"):
        await Server.start(wrong, real_env())


def test_unreachable_broker_is_one_sentence() -> None:
    with pytest.raises(ClientError, match="cannot connect"):
        Cluster("127.0.0.1:1")
