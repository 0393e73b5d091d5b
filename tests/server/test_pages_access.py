"""The pages for monitors with TLS and tokens.

Covers: kafkawire.security.secret_files, kafkawire.security.secret_files,
kafkawire.server.http_pages, kafkawire.server.tls.stream.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from kafkawire.cli.certs import issue
from kafkawire.server.http_pages import CONNECTIONS_MAX, token_of
from kafkawire.server.listeners.addresses import AddressError
from kafkawire.server.run import Server
from tests.kit.server import running
from tests.kit.tls import authority, certificates, client_context
from tests.kit.waiting import until

TOKEN = "monitor-one-0123456789"
OTHER = "monitor-two-0123456789"
TLS = {
    "metrics_tls": "true",
    "ssl_keystore_location": f"{certificates()}/server.pem",
    "ssl_key_location": f"{certificates()}/server.key",
}


@asynccontextmanager
async def watched(folder: Path, **settings: str) -> AsyncIterator[tuple[Server, int]]:
    async with running(folder / "data", metrics_listener="127.0.0.1:0", **settings) as server:
        assert server.monitors is not None
        yield server, server.monitors[1]


async def ask(
    port: int, path: str, *headers: str, context: ssl.SSLContext | None = None
) -> tuple[int, str, str]:
    """Return (code, head, body)."""
    name = "localhost" if context else None
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=name
    )
    lines = [f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""]
    writer.write("\r\n".join(lines).encode())
    answer = (await asyncio.wait_for(reader.read(), 60)).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), head, body


def tokens(folder: Path, *lines: str) -> Path:
    path = folder / "tokens"
    path.write_text("".join(f"{line}\n" for line in lines))
    path.chmod(0o600)
    return path


def bearer(token: str) -> str:
    return f"Authorization: Bearer {token}"


async def test_pages_by_https(tmp_path: Path) -> None:
    async with watched(tmp_path, **TLS) as (_, port):
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = client_context()
            context.minimum_version = context.maximum_version = version
            code, _, body = await ask(port, "/metrics", context=context)
            assert code == 200
            assert "kafkawire_info" in body
            assert body.endswith("\n")
            assert (await ask(port, "/health", context=context))[0] == 200
        stranger = ssl.create_default_context()
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(port, "/health", context=stranger)
        assert (await ask(port, "/health", context=client_context()))[0] == 200


async def test_what_is_not_tls_is_closed(tmp_path: Path) -> None:
    async with watched(tmp_path, **TLS) as (_, port):
        for sent in (
            b"GET /metrics HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x00\x05hello",
            b"\0" * 70_000,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            try:
                answer = await asyncio.wait_for(reader.read(), 60)
            except ConnectionResetError:
                answer = b""
            assert b"HTTP" not in answer
            writer.close()
        assert (await ask(port, "/health", context=client_context()))[0] == 200


async def test_stalled_handshakes_are_bounded_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkawire.server.http_pages.PATIENCE_S", 0.5)
    async with watched(tmp_path, **TLS) as (server, port):
        stalled = []
        for _ in range(CONNECTIONS_MAX + 8):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x16\x03\x01")
            stalled.append((reader, writer))

        async def ended(reader: asyncio.StreamReader) -> None:
            with suppress(ConnectionResetError):
                assert not await asyncio.wait_for(reader.read(), 60)

        await asyncio.gather(*(ended(reader) for reader, _ in stalled))
        for _, writer in stalled:
            writer.close()
        assert (await ask(port, "/health", context=client_context()))[0] == 200
        tls = await server.security.tls_of_broker()
        assert not tls.handshakes._started


async def test_the_certificate_is_read_again(tmp_path: Path) -> None:
    first = issue("first", authority(), 1, ["localhost"])
    path = tmp_path / "both.pem"
    path.write_bytes(first.certificate_pem() + first.key_pem())
    settings = {"metrics_tls": "true", "ssl_keystore_location": str(path)}
    async with watched(tmp_path, **settings) as (server, port):

        async def serial() -> int:
            _, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=client_context(), server_hostname="localhost"
            )
            found = writer.get_extra_info("peercert")
            writer.close()
            return int(found["serialNumber"], 16)

        assert await serial() == first.certificate.serial_number
        second = issue("second", authority(), 1, ["localhost"])
        path.write_bytes(second.certificate_pem() + second.key_pem())
        tls = await server.security.tls_of_broker()
        for _ in range(2):
            await tls.certificates.check()
        assert await serial() == second.certificate.serial_number


@pytest.mark.parametrize(
    "headers",
    [
        [], [bearer(OTHER)], [bearer(TOKEN[:-1])], [bearer("")], [f"Authorization: Basic {TOKEN}"],
        [bearer(TOKEN), bearer(TOKEN)], ["Authorization:"],
        [f"Proxy-Authorization: Bearer {TOKEN}"],
    ],
)  # fmt: skip
async def test_metrics_need_a_token(tmp_path: Path, headers: Sequence[str]) -> None:
    path = tokens(tmp_path, TOKEN)
    async with watched(tmp_path, metrics_token_file=str(path)) as (_, port):
        code, head, body = await ask(port, "/metrics", *headers)
        assert code == 401
        assert "\r\nWWW-Authenticate: Bearer realm=" in head
        assert "kafkawire_" not in body
        code, _, body = await ask(port, "/health", *headers)  # a probe of Kubernetes
        assert (code, json.loads(body)) == (200, {"status": "ok"})
        assert (await ask(port, "/metrics", bearer(TOKEN)))[0] == 200
        code, _, body = await ask(port, "/health", f"authorization:  bearer  {TOKEN} ")
        assert code == 200
        assert "cluster_id" in json.loads(body)


async def test_a_refused_monitor_is_logged_without_its_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tokens(tmp_path, TOKEN)
    audit = tmp_path / "audit"
    settings = {"metrics_token_file": str(path), "audit_log": str(audit)}
    async with watched(tmp_path, **settings) as (_, port):
        for _ in range(30):
            assert (await ask(port, "/metrics", bearer(OTHER)))[0] == 401
        await until(lambda: audit.exists() and audit.read_text().count("\n") == 30)
    lines = [r.getMessage() for r in caplog.records if "refused /metrics" in r.getMessage()]
    assert 20 <= len(lines) < 30
    assert "127.0.0.1" in lines[0]
    assert "metrics.listener" in audit.read_text()
    assert OTHER not in caplog.text + audit.read_text()


async def test_tokens_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("kafkawire.server.http_pages.CHECK_FILE_S", 0.0)
    path = tokens(tmp_path, TOKEN)
    async with watched(tmp_path, metrics_token_file=str(path)) as (_, port):

        async def works(token: str) -> bool:
            return (await ask(port, "/metrics", bearer(token)))[0] == 200

        tokens(tmp_path, TOKEN, OTHER)
        assert await works(OTHER)
        assert await works(TOKEN)
        tokens(tmp_path, OTHER)
        assert not await works(TOKEN)
        tokens(tmp_path, "short")
        assert await works(OTHER)
        assert "stay in force" in caplog.text
        path.unlink()
        assert await works(OTHER)
    assert OTHER not in caplog.text


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        ("", 0o600, "1 to 16 tokens"), ("short\n", 0o600, "line 1 is no token"),
        ("a b c d e f g h i j k\n", 0o600, "line 1 is no token"),
        (f"{TOKEN}\n", 0o644, "chmod 600"), (f"{TOKEN}\n", 0o640, "chmod 600"),
        (f"{TOKEN}\n" * 17, 0o600, "1 to 16 tokens"), ("x" * 70_000, 0o600, "more than"),
        (None, 0, "cannot be read"),
    ],
)  # fmt: skip
async def test_files_that_cannot_be_used(
    tmp_path: Path, content: str | None, mode: int, why: str
) -> None:
    path = tmp_path / "tokens"
    if content is not None:
        path.write_text(content)
        os.chmod(path, mode)
    with pytest.raises(AddressError, match=r"metrics\.token\.file: ") as failure:
        async with watched(tmp_path, metrics_token_file=str(path)):
            pass
    assert why in str(failure.value)
    assert TOKEN not in str(failure.value)


async def test_tls_needs_a_certificate(tmp_path: Path) -> None:
    with pytest.raises(AddressError, match=r"ssl\.keystore\.location"):
        async with watched(tmp_path, metrics_tls="true"):
            pass


def test_token_of_a_head() -> None:
    assert token_of(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") is None
    assert token_of(b"GET / HTTP/1.1\r\nAUTHORIZATION: BEARER abc\r\n\r\n") == b"abc"
    assert token_of(b"GET / HTTP/1.1\r\nAuthorization: abc\r\n\r\n") == b""
