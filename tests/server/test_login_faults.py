"""Faults of log-ins over sockets: refused tokens, cut and too long frames, deleted users, and names
of any bytes. Nothing is let in, and nothing secret is logged."""

from __future__ import annotations

import base64
import json
import logging
import time
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from kafkawire.codec.compile import encode
from kafkawire.messages.alter_user_scram_credentials import ScramCredentialDeletion
from kafkawire.messages.headers import RequestHeader
from kafkawire.messages.metadata import MetadataRequest, MetadataRequestTopic
from kafkawire.messages.sasl_authenticate import SaslAuthenticateRequest
from kafkawire.security.acls.model import Acl, Operation, PatternType, Permission, ResourceKind
from kafkawire.server.run import Server
from kafkawire.server.sasl_connection import SaslConnection
from tests.kit.client import Client
from tests.kit.issuer import Issuer
from tests.kit.sasl import (
    ScramClient,
    alter,
    authenticate,
    handshake,
    is_closed,
    log_in_plain,
    running_sasl,
    sasl_port,
    upsertion,
)
from tests.kit.server import port_of
from tests.kit.waiting import until

QUICK = {"connection_failed_authentication_delay_ms": "0"}
REFUSED = 58


async def connect(server: Server) -> Client:
    return await Client.connect(sasl_port(server))


def no_log_ins(server: Server) -> bool:
    return not any(isinstance(each, SaslConnection) for each in server.host.connections)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# Tokens


def unsigned(now_s: float, algorithm: str = "none") -> str:
    claims = {"sub": "alice", "aud": "kafka", "iat": int(now_s), "exp": int(now_s) + 3600}
    parts = [json.dumps(each).encode() for each in ({"alg": algorithm, "kid": "one"}, claims)]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + "."


def wrong_tokens(issuer: Issuer) -> dict[str, str]:
    now_s = time.time()
    head, body, signature = issuer.token(now_s).split(".")
    return {
        "expired": issuer.token(now_s - 7200),
        "not valid yet": issuer.token(now_s, nbf=int(now_s) + 3600),
        "of another issuer": issuer.token(now_s, iss="https://other"),
        "for another audience": issuer.token(now_s, aud="else"),
        "signed with another key": Issuer("one").token(now_s),
        "of an unknown key": Issuer("two").token(now_s),
        "alg none": unsigned(now_s),
        "alg HS256": unsigned(now_s, "HS256") + signature,
        "cut": f"{head}.{body}",
        "without a user": issuer.token(now_s, sub=None),
    }


async def test_refused_tokens_get_invalid_token_and_are_logged_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    issuer, keys, audit = Issuer("one"), tmp_path / "keys.json", tmp_path / "audit.jsonl"
    keys.write_bytes(issuer.key_set())
    settings = {
        "sasl_enabled_mechanisms": "OAUTHBEARER",
        "sasl_oauthbearer_jwks_endpoint_url": f"file://{keys}",
        "sasl_oauthbearer_expected_issuer": "https://issuer",
        "sasl_oauthbearer_expected_audience": "kafka",
        "audit_log": str(audit),
    }
    async with running_sasl(tmp_path / "data", **QUICK, **settings) as server:
        wrong = wrong_tokens(issuer)
        for title, token in wrong.items():
            client = await connect(server)
            await handshake(client, "OAUTHBEARER")
            first = await authenticate(client, b"n,,\1auth=Bearer " + token.encode() + b"\1\1")
            assert first.error_code == 0, title
            assert json.loads(first.auth_bytes)["status"] == "invalid_token", title
            last = await authenticate(client, b"\1")
            assert last.error_code == REFUSED, title
            assert await is_closed(client)
        client = await connect(server)
        await handshake(client, "OAUTHBEARER")
        right = issuer.token(time.time()).encode()
        good = await authenticate(client, b"n,,\1auth=Bearer " + right + b"\1\1")
        assert (good.error_code, bytes(good.auth_bytes)) == (0, b"")
        await client.close()
        await until(lambda: audit.exists() and len(lines(audit)) == len(wrong))
    assert {row["mechanism"] for row in lines(audit)} == {"OAUTHBEARER"}
    said = caplog.text + audit.read_text()
    for part in {each for token in wrong.values() for each in token.split(".")} - {""}:
        assert part not in said
    assert "Traceback" not in said


# Frames


def frame(key: int, version: int, message: Any) -> bytes:
    header = RequestHeader(key, version, 1, "test")
    body = encode(header, 2 if (key, version) == (36, 2) else 1) + encode(message, version)
    return pack(">i", len(body)) + body


async def test_log_in_cut_at_each_byte_leaves_nothing(tmp_path: Path) -> None:
    async with running_sasl(tmp_path, **QUICK) as server:
        whole = frame(36, 2, SaslAuthenticateRequest(ScramClient("alice", "pw").first))
        for cut in range(1, len(whole)):
            client = await connect(server)
            await handshake(client, "SCRAM-SHA-256")
            client.writer.write(whole[:cut])
            client.writer.write_eof()
            assert await is_closed(client)
        await until(lambda: no_log_ins(server))
        assert server.host.memory.taken_bytes == 0
        assert server.broker.counts.log_ins.keys() <= {("", "failed"), ("SCRAM-SHA-256", "failed")}


LENGTHS = (b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\xff\xff\x03", b"\xff" * 9, b"\x00")


@pytest.mark.parametrize("length", LENGTHS, ids=bytes.hex)
async def test_token_longer_than_its_frame_is_refused(
    tmp_path: Path, length: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_sasl(tmp_path, **QUICK) as server:
        body = encode(RequestHeader(36, 2, 1, "test"), 2) + length + b"\0alice\0pw\0"
        client = await connect(server)
        await handshake(client, "PLAIN")
        client.writer.write(pack(">i", len(body)) + body)
        assert await is_closed(client)
        assert server.host.memory.taken_bytes == 0
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("size", [2**31 - 1, -1, 65_537])
@pytest.mark.parametrize("version", [0, 1])
async def test_frames_over_the_limit_within_a_log_in(
    tmp_path: Path, size: int, version: int
) -> None:
    """Raw tokens after a handshake of version 0, and requests."""
    async with running_sasl(tmp_path, **QUICK) as server:
        client = await connect(server)
        await handshake(client, "PLAIN", version)
        client.writer.write(pack(">i", size) + bytes(100))
        assert await is_closed(client)
        assert server.host.memory.taken_bytes == 0


# Users


async def test_deleted_user_is_refused_at_its_next_log_in_of_the_connection(
    tmp_path: Path,
) -> None:
    async with running_sasl(tmp_path, **QUICK, connections_max_reauth_ms="60000") as server:
        await alter(port_of(server), upsertion("alice", "a"))
        client = await connect(server)
        assert (await log_in_plain(client, "alice", "a")).error_code == 0
        await alter(port_of(server), ScramCredentialDeletion("alice", 1))
        assert (await client.call(MetadataRequest(topics=[]), 9)).brokers
        assert (await log_in_plain(client, "alice", "a")).error_code == REFUSED
        assert await is_closed(client)


ODD = (
    *(bytes([byte]) for byte in range(256)), b"\0" * 300, b"\r\n{}", b'"}\n{"event": "x"}',
    "\u2028\u202e\u0085".encode(), "\ufeffalice".encode(), b"\xed\xa0\x80", b"\xc0\x80", b"%s%n",
    b"n" * 5000, b"User:*", b" alice", b"alice ", b"",
)  # fmt: skip


async def test_names_of_any_bytes_are_refused_and_logged_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    audit = tmp_path / "audit.jsonl"
    async with running_sasl(
        tmp_path / "data", **QUICK, audit_log=str(audit), sasl_login_max_connections_per_ip="9999"
    ) as server:
        for name in ODD:
            client = await connect(server)
            await handshake(client, "PLAIN")
            refused = await authenticate(client, b"\0" + name + b"\0a-password")
            assert refused.error_code == REFUSED
            client.writer.close()
            client = await connect(server)
            await handshake(client, "SCRAM-SHA-256")
            first = await authenticate(client, b"n,,n=" + name + b",r=abc")
            if not first.error_code:  # an unknown user fails at the last message
                wrong = b"c=biws,r=abc,p=AAAA"
                assert (await authenticate(client, wrong)).error_code == REFUSED
            client.writer.close()
        await until(lambda: no_log_ins(server))
    assert {row["event"] for row in lines(audit)} == {"authentication failed"}
    text = audit.read_text()
    assert "a-password" not in text + caplog.text
    for message in (*caplog.messages, *text.splitlines()):
        control = [each for each in message if ord(each) < 32 or each in "\x7f\x85\u2028\u202e"]
        assert not control, ascii(message)
    assert "Traceback" not in caplog.text


async def test_names_that_resemble_another_have_none_of_its_rights(tmp_path: Path) -> None:
    similar = ("Alice", " alice", "alice ", "User:alice", "al\u0456ce", "alice\u200b", "alic\u00e9")
    rule = Acl(
        ResourceKind.TOPIC, "t", PatternType.LITERAL, "User:alice", "*", Operation.ALL,
        Permission.ALLOW,
    )  # fmt: skip
    asked = MetadataRequest([MetadataRequestTopic(name="t")])
    async with running_sasl(
        tmp_path, **QUICK, authorizer="acl", super_users="User:ANONYMOUS"
    ) as server:
        acls = server.broker.security.acls
        assert acls is not None
        await acls.create([rule])
        for name, code in (("alice", 0), *((each, 29) for each in similar)):
            made = await alter(port_of(server), upsertion(name, "pw"))
            client = await connect(server)
            answer = await log_in_plain(client, name, "pw")
            if made[name][0]:
                assert answer.error_code == REFUSED
            else:
                assert answer.error_code == 0
                assert (await client.call(asked, 9)).topics[0].error_code == code
            await client.close()
