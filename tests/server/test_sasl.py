"""Listeners with SASL: log-ins over sockets, sessions with limits, and what strangers may cost.

Covers: kafkawire.handlers.alter_user_scram_credentials,
kafkawire.handlers.describe_user_scram_credentials, kafkawire.handlers.sasl_authenticate,
kafkawire.handlers.sasl_handshake, kafkawire.security.sasl.service,
kafkawire.server.listeners.logins.
"""

from __future__ import annotations

import asyncio
import json
import logging
from functools import partial
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from kafkawire.broker.other_brokers import OtherBrokers
from kafkawire.codec.errors import KafkaError
from kafkawire.messages.api_versions import ApiVersionsRequest
from kafkawire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from kafkawire.messages.metadata import MetadataRequest
from kafkawire.messages.sasl_authenticate import SaslAuthenticateRequest
from kafkawire.messages.sasl_handshake import SaslHandshakeRequest
from kafkawire.metadata.catalog import BrokerInfo, Catalog
from kafkawire.security.principals import Principal
from kafkawire.security.sasl import service
from kafkawire.security.sasl.scram import Hash
from kafkawire.server.backups import BackupError, make_backup
from kafkawire.server.listeners.addresses import AddressError
from kafkawire.server.run import Server
from kafkawire.server.sasl_connection import SaslConnection
from tests.kit.client import Client
from tests.kit.sasl import (
    SASL,
    ScramClient,
    alter,
    authenticate,
    handshake,
    is_closed,
    log_in_plain,
    log_in_scram,
    running_sasl,
    sasl_port,
    upsertion,
)
from tests.kit.server import port_of
from tests.kit.waiting import no_wait, until

QUICK = {"connection_failed_authentication_delay_ms": "0"}
VERSIONS = ApiVersionsRequest(client_software_name="test", client_software_version="1")


async def connect(server: Server) -> Client:
    return await Client.connect(sasl_port(server))


def has_connections(server: Server, count: int) -> bool:
    return len(of_sasl(server)) == count


def of_sasl(server: Server) -> list[SaslConnection]:
    return [each for each in server.host.connections if isinstance(each, SaslConnection)]


@pytest.mark.parametrize("kind", Hash)
async def test_scram_user_works_after_log_in(tmp_path: Path, kind: Hash) -> None:
    async with running_sasl(tmp_path) as server:
        await alter(port_of(server), upsertion("alice", "secret", kind))
        for version in (0, 1, 2):
            client = await connect(server)
            assert (await client.call(VERSIONS, 4)).error_code == 0
            last = await log_in_scram(client, "alice", "secret", kind, version)
            assert (last.error_code, last.session_lifetime_ms) == (0, 0)
            assert of_sasl(server)[-1].principal == Principal("User", "alice")
            assert (await client.call(MetadataRequest(topics=[]), 9)).brokers[0].port == (
                sasl_port(server)
            )
            await client.close()


async def test_plain_with_users_of_file_and_of_sql(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("bob:b:ob\n")
    users.chmod(0o600)
    async with running_sasl(tmp_path / "data", sasl_plain_users_file=str(users)) as server:
        await alter(port_of(server), upsertion("alice", "secret", Hash.SHA512))
        for user, password in (("bob", "b:ob"), ("alice", "secret")):
            client = await connect(server)
            assert (await log_in_plain(client, user, password)).error_code == 0
            assert (await client.call(MetadataRequest(topics=[]), 9)).brokers
            await client.close()
        for user, password in (("bob", "secret"), ("alice", "b:ob"), ("carol", "secret")):
            client = await connect(server)
            last = await log_in_plain(client, user, password)
            assert (last.error_code, last.error_message) == (
                58, "Authentication failed: Invalid username or password",
            )  # fmt: skip
            assert await is_closed(client)


async def test_raw_tokens_of_old_clients(tmp_path: Path) -> None:
    async with running_sasl(tmp_path, **QUICK) as server:
        await alter(port_of(server), upsertion("alice", "secret"))
        client = await connect(server)
        assert (await handshake(client, "PLAIN", 0)).error_code == 0
        client.writer.write(pack(">i", 13) + b"\0alice\0secret")
        assert await client.reader.readexactly(4) == bytes(4)
        assert (await client.call(MetadataRequest(topics=[]), 9)).brokers
        await client.close()
        client = await connect(server)
        scram = ScramClient("alice", "secret")
        await handshake(client, "SCRAM-SHA-256", 0)
        client.writer.write(pack(">i", len(scram.first)) + scram.first)
        size = int.from_bytes(await client.reader.readexactly(4))
        last = scram.last(await client.reader.readexactly(size))
        client.writer.write(pack(">i", len(last)) + last)
        size = int.from_bytes(await client.reader.readexactly(4))
        assert (await client.reader.readexactly(size)).startswith(b"v=")
        assert (await client.call(MetadataRequest(topics=[]), 9)).brokers
        await client.close()
        for mechanism in ("PLAIN", "SCRAM-SHA-256"):
            client = await connect(server)
            await handshake(client, mechanism, 0)
            client.writer.write(pack(">i", 0))
            assert await is_closed(client)


async def test_requests_may_follow_last_token_at_once(tmp_path: Path) -> None:
    async with running_sasl(tmp_path) as server:
        await alter(port_of(server), upsertion("alice", "secret"))
        client = await connect(server)
        client.send(VERSIONS, 3)
        client.send(SaslHandshakeRequest("PLAIN"), 1)
        client.send(SaslAuthenticateRequest(b"\0alice\0secret"), 2)
        client.send(MetadataRequest(topics=[]), 9)
        answers = [await client.receive() for _ in range(4)]
        assert [getattr(each, "error_code", 0) for each in answers] == [0, 0, 0, 0]
        await client.close()


async def test_mechanism_that_is_not_enabled(tmp_path: Path) -> None:
    async with running_sasl(tmp_path, **QUICK) as server:
        client = await connect(server)
        answer = await handshake(client, "GSSAPI")
        assert answer.error_code == 33
        assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
        assert await is_closed(client)


async def test_versions_are_answered_before_log_in(tmp_path: Path) -> None:
    async with running_sasl(tmp_path) as server:
        client = await connect(server)
        client.send(ApiVersionsRequest(client_software_name="test"), 4)
        client.sent[-1] = (client.sent[-1][0], 18, 4)
        assert (await client.receive()).error_code == 42
        keys = (await client.call(VERSIONS, 4)).api_keys
        known = {row.api_key: (row.min_version, row.max_version) for row in keys}
        assert (known[17], known[36]) == ((0, 1), (0, 2))
        await client.close()


async def test_sasl_requests_outside_of_log_in(tmp_path: Path) -> None:
    async with running_sasl(tmp_path) as server:
        await alter(port_of(server), upsertion("alice", "secret"))
        logged_in = await connect(server)
        await log_in_plain(logged_in, "alice", "secret")
        for client in (logged_in, await Client.connect(port_of(server))):
            answer = await handshake(client, "PLAIN")
            assert (answer.error_code, answer.mechanisms) == (34, [])
            refused = await authenticate(client, b"x")
            assert (refused.error_code, refused.error_message) == (
                34, "SaslAuthenticate request received after successful authentication",
            )  # fmt: skip
            assert (await client.call(MetadataRequest(topics=[]), 9)).brokers
            await client.close()


# strangers: the numbers are those of the list of attacks in the fact sheet


async def test_attack_1_request_before_log_in_is_not_decoded(tmp_path: Path) -> None:
    async with running_sasl(tmp_path) as server:
        for request, version in ((MetadataRequest(), 9), (SaslAuthenticateRequest(b""), 2)):
            client = await connect(server)
            client.send(request, version)
            assert await is_closed(client)
        assert server.broker.counts.requests.get(3, 0) == 0


@pytest.mark.parametrize("size", [2**31 - 1, -1, 65_537, 0, 1])
async def test_attack_2_lengths(tmp_path: Path, size: int) -> None:
    async with running_sasl(tmp_path) as server:
        client = await connect(server)
        client.writer.write(pack(">i", size) + b"\0")
        assert await is_closed(client)
        assert server.host.memory.taken_bytes == 0


async def test_attack_3_slow_log_in_is_cut(tmp_path: Path) -> None:
    async with running_sasl(tmp_path, sasl_login_timeout_ms="1000") as server:
        silent, slow = await connect(server), await connect(server)
        await handshake(slow, "PLAIN")
        slow.writer.write(b"\0")
        assert await is_closed(silent)
        assert await is_closed(slow)
        assert server.broker.counts.log_ins == {("", "timed_out"): 2}


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/1.1\r\n\r\n", b"\x93" * 5000,
     bytes(300)],
)  # fmt: skip
async def test_attack_5_other_protocols(tmp_path: Path, data: bytes) -> None:
    async with running_sasl(tmp_path) as server:
        client = await connect(server)
        client.writer.write(data)
        assert await is_closed(client)


async def test_attack_6_many_wrong_passwords(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running_sasl(tmp_path, connection_failed_authentication_delay_ms="50") as server:
        await alter(port_of(server), upsertion("alice", "secret"))

        async def attack() -> Any:
            client = await connect(server)
            last = await log_in_scram(client, "alice", "wrong")
            assert last.error_code == 58
            assert await is_closed(client)

        for _ in range(4):
            await asyncio.gather(*(attack() for _ in range(50)))
        assert not of_sasl(server)
        assert server.broker.counts.log_ins == {("SCRAM-SHA-256", "failed"): 200}
    lines = [each for each in caplog.messages if "refused the log-in" in each]
    assert 0 < len(lines) < 100
    assert "wrong" not in "".join(caplog.messages).replace("wrong password", "")


async def test_attack_7_unknown_user_gets_what_wrong_password_gets(tmp_path: Path) -> None:
    async with running_sasl(tmp_path, **QUICK) as server:
        await alter(port_of(server), upsertion("alice", "secret"))
        forms = set()
        for user in ("alice", "bob"):
            client = await connect(server)
            await handshake(client, "SCRAM-SHA-256")
            scram = ScramClient(user, "wrong")
            first = await authenticate(client, scram.first)
            salt = first.auth_bytes.split(b",")[1]
            last = await authenticate(client, scram.last(first.auth_bytes))
            forms.add((len(salt), first.auth_bytes.split(b",")[2], last.error_code,
                       last.error_message, last.auth_bytes))  # fmt: skip
            assert await is_closed(client)
        salts = {first.auth_bytes.split(b",")[1] for first in [first]}
        assert len(salts) == 1
        assert {form[1:] for form in forms} == {
            (b"i=4096", 58, "Authentication failed during authentication due to invalid "
             "credentials with SASL mechanism SCRAM-SHA-256", b"")
        }  # fmt: skip


async def test_salt_of_unknown_user_stays_the_same(tmp_path: Path) -> None:
    salts = []
    for _ in range(2):
        async with running_sasl(tmp_path, **QUICK) as server:
            client = await connect(server)
            await handshake(client, "SCRAM-SHA-512")
            first = await authenticate(client, b"n,,n=nobody,r=abc")
            salts.append(first.auth_bytes.split(b",")[1])
            await client.close()
    assert salts[0] == salts[1]


@pytest.mark.parametrize(
    "token", [b"p=tls-unique,,n=a,r=b", b"y,,n=a,r=b", b"n,,n=a=2,r=b", b"c=biws,r=x,p=AA==", b""]
)
async def test_attacks_8_and_9_malformed_scram(
    tmp_path: Path, token: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_sasl(tmp_path, **QUICK) as server:
        client = await connect(server)
        await handshake(client, "SCRAM-SHA-256")
        assert (await authenticate(client, token)).error_code == 58
        assert await is_closed(client)
    assert "Traceback" not in caplog.text


async def test_attack_16_handshake_flood_and_other_user(tmp_path: Path) -> None:
    async with running_sasl(tmp_path, **QUICK, connections_max_reauth_ms="60000") as server:
        await alter(port_of(server), upsertion("alice", "a"), upsertion("bob", "b"))
        client = await connect(server)
        assert (await log_in_plain(client, "alice", "a")).session_lifetime_ms == 60_000
        assert (await log_in_plain(client, "alice", "a")).error_code == 0
        connection = of_sasl(server)[0]
        connection._again_at = server.broker.env.clock.monotonic() + 60
        for _ in range(3):  # less than a second after the last one
            assert (await handshake(client, "PLAIN")).error_code == 34
        connection._again_at = None
        last = await log_in_plain(client, "bob", "b")
        assert (last.error_code, last.error_message) == (
            58, "Cannot change principals during re-authentication from User.alice: User.bob",
        )  # fmt: skip
        assert await is_closed(client)


async def test_log_in_again_with_another_mechanism_is_closed(tmp_path: Path) -> None:
    async with running_sasl(tmp_path, **QUICK, connections_max_reauth_ms="60000") as server:
        await alter(port_of(server), upsertion("alice", "a"))
        client = await connect(server)
        await log_in_plain(client, "alice", "a")
        assert (await handshake(client, "SCRAM-SHA-256")).error_code == 0
        client.send(SaslAuthenticateRequest(b"n,,n=alice,r=x"), 2)
        assert await is_closed(client)


async def test_session_ends_at_first_request_after_its_limit(tmp_path: Path) -> None:
    async with running_sasl(tmp_path, **QUICK, connections_max_reauth_ms="60000") as server:
        await alter(port_of(server), upsertion("alice", "a"))
        client, again = await connect(server), await connect(server)
        for each in (client, again):
            await log_in_plain(each, "alice", "a")
            await each.call(MetadataRequest(topics=[]), 9)
        for connection in of_sasl(server):
            connection._expires_at = 0.0
        assert (await log_in_plain(again, "alice", "a")).error_code == 0
        again.send(MetadataRequest(topics=[]), 9)
        assert (await again.receive()).brokers
        client.send(MetadataRequest(topics=[]), 9)
        assert await is_closed(client)
        await again.close()


async def test_attack_17_deleted_user(tmp_path: Path) -> None:
    from kafkawire.messages.alter_user_scram_credentials import ScramCredentialDeletion

    for at_once in ("false", "true"):
        async with running_sasl(tmp_path, **QUICK, sasl_deleted_users_disconnect=at_once) as server:
            await alter(port_of(server), upsertion("alice", "a"), upsertion("bob", "b"))
            client, other = await connect(server), await connect(server)
            await log_in_plain(client, "alice", "a")
            await log_in_plain(other, "bob", "b")
            await alter(port_of(server), ScramCredentialDeletion("alice", 1))
            if at_once == "true":
                assert await is_closed(client)
            else:
                assert (await client.call(MetadataRequest(topics=[]), 9)).brokers
                fresh = await connect(server)
                assert (await log_in_plain(fresh, "alice", "a")).error_code == 58
                await fresh.close()
                await client.close()
            assert (await other.call(MetadataRequest(topics=[]), 9)).brokers
            await other.close()


async def test_attack_18_names_that_confuse(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("User:x:pw\n" + "n" * 255 + ":pw\n")  # the first is user "User"
    users.chmod(0o600)
    async with running_sasl(tmp_path / "data", **QUICK, sasl_plain_users_file=str(users)) as server:
        for user, good in (("*", 93), ("a\nb", 93), ("a\0b", 93), ("n" * 256, 93), ("User:x", 0)):
            found = await alter(port_of(server), upsertion(user, "pw"))
            assert found[user][0] == good
        for user, code in (("*", 58), ("a\nb", 58), ("User:x", 0), ("n" * 255, 0)):
            client = await connect(server)
            assert (await log_in_plain(client, user, "pw")).error_code == code
            await client.close()


async def test_number_of_strangers_is_limited(tmp_path: Path) -> None:
    for setting in ("sasl_login_max_connections", "sasl_login_max_connections_per_ip"):
        async with running_sasl(tmp_path, **QUICK, **{setting: "3"}) as server:
            await alter(port_of(server), upsertion("alice", "a"))
            strangers = [await connect(server) for _ in range(3)]
            for stranger in strangers:
                await stranger.call(VERSIONS, 3)
            assert await is_closed(await connect(server))
            assert server.broker.counts.log_ins == {("", "refused"): 1}
            await log_in_plain(strangers[0], "alice", "a")
            client = await connect(server)
            assert (await log_in_plain(client, "alice", "a")).error_code == 0
            await strangers[1].close()
            await until(partial(has_connections, server, 3))
            third = await connect(server)
            assert (await log_in_plain(third, "alice", "a")).error_code == 0
            for each in (strangers[0], strangers[2], client, third):
                await each.close()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sasl_enabled_mechanisms": "OAUTHBEARER"}, "jwks.endpoint.url"),
        ({"sasl_enabled_mechanisms": ""}, "no mechanism"),
        ({"sasl_plain_users_file": "/does/not/exist"}, "cannot be read"),
        (
            {"sasl_enabled_mechanisms": "OAUTHBEARER",
             "sasl_oauthbearer_jwks_endpoint_url": "http://far/keys"},
            "https://",
        ),
    ],
)  # fmt: skip
async def test_settings_that_allow_no_log_in(
    tmp_path: Path, settings: dict[str, str], sentence: str
) -> None:
    with pytest.raises(AddressError, match=sentence):
        async with running_sasl(tmp_path, **settings):
            pass


@pytest.mark.real
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_users_changed_by_other_broker_of_one_database(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    from kafkawire.metadata.sql import open_metadata
    from kafkawire.security.sasl.credentials import CredentialChange, Credentials
    from kafkawire.security.sasl.scram import derive
    from tests.kit.postgres import new_database

    url = f"sqlite:///{tmp_path}/metadata.db"
    if kind == "postgresql":
        url = await new_database(request.getfixturevalue("postgres_url"))
    async with running_sasl(tmp_path / "data", metadata_url=url, **QUICK) as server:
        store = open_metadata(url, "")
        await store.open()
        other = Credentials(store, bytes, no_wait)
        await other.load()
        made = derive(Hash.SHA256, "secret", b"salt", 4096)
        await other.alter([CredentialChange("alice", Hash.SHA256, made)])
        users = await server.broker.load_users()
        assert list(users.users) == ["alice"]
        await other.alter([CredentialChange("alice", Hash.SHA256, None)])
        await until(lambda: not users.users)  # by the broker's own check
        client = await connect(server)
        assert (await log_in_plain(client, "alice", "secret")).error_code == 58
        await client.close()
        await store.close()


async def test_refused_log_ins_are_in_audit_log(tmp_path: Path) -> None:
    log = tmp_path / "audit"
    async with running_sasl(tmp_path / "data", **QUICK, audit_log=str(log)) as server:
        await alter(port_of(server), upsertion("alice", "secret"))
        client = await connect(server)
        assert (await log_in_scram(client, "alice", "wrong-password")).error_code == 58
        await client.close()
        client = await connect(server)
        assert (await handshake(client, "GSSAPI")).error_code == 33
        await client.close()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    failed = [line for line in lines if "reason" in line]
    assert [line["principal"] for line in failed] == ["User:alice", ""]
    assert "wrong-password" not in log.read_text()


@pytest.mark.real
async def test_broker_logs_in_to_others_and_for_backups(tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.username=alice\nsasl.password=secret\n"
    )
    async with running_sasl(
        tmp_path / "data", inter_broker_client_config=str(config), inter_broker_listener_name=SASL
    ) as server:
        await alter(port_of(server), upsertion("alice", "secret"))
        catalog = Catalog("c")
        catalog.add_broker(BrokerInfo(2, dict(server.broker.listeners), None))
        made = server.broker._other_brokers()
        with_log_in = OtherBrokers(server.broker.env, catalog, made._listeners, made._security)
        assert made._listeners[0] == SASL
        assert (await with_log_in.request(2, 3, MetadataRequest(topics=[]))).brokers
        with_log_in.close()
        without = OtherBrokers(server.broker.env, catalog, [SASL])
        with pytest.raises(KafkaError):
            await without.request(2, 3, MetadataRequest(topics=[]))
        address, data = f"127.0.0.1:{sasl_port(server)}", str(tmp_path / "data")
        with pytest.raises(BackupError):
            await make_backup(address, data, "", str(tmp_path / "without"))
        await make_backup(address, data, "", str(tmp_path / "made"), str(config))
        assert any((tmp_path / "made").iterdir())


async def test_name_of_client_stays_in_its_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running_sasl(tmp_path, **QUICK) as server:
        client = await Client.connect(sasl_port(server), "a\nERROR forged")
        await client.call(VERSIONS, 3)
        client.send(MetadataRequest(topics=[]), 9)
        assert await is_closed(client)
    lines = [each for each in caplog.messages if "forged" in each]
    assert lines
    assert not [each for each in lines if "\n" in each]


async def test_users_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "CHECK_FILE_S", 0.0)
    users = tmp_path / "users"
    users.write_text("bob:old\n")
    users.chmod(0o600)
    async with running_sasl(tmp_path / "data", **QUICK, sasl_plain_users_file=str(users)) as server:
        users.write_text("bob:newer\n")
        for password, code in (("old", 58), ("newer", 0)):
            client = await connect(server)
            assert (await log_in_plain(client, "bob", password)).error_code == code
            await client.close()


async def test_derivations_for_plain_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_DERIVING", 2)
    async with running_sasl(tmp_path, **QUICK) as server:
        await alter(port_of(server), upsertion("alice", "secret", Hash.SHA512, 16384))
        clients = [await connect(server) for _ in range(8)]
        for client in clients:
            await handshake(client, "PLAIN")
        for client in clients:
            client.send(SaslAuthenticateRequest(b"\0alice\0secret"), 2)
        results = await asyncio.gather(
            *(client.receive() for client in clients), return_exceptions=True
        )
        good = [each for each in results if getattr(each, "error_code", -1) == 0]
        closed = [each for each in results if isinstance(each, EOFError | ConnectionError)]
        assert good
        assert closed
        assert len(good) + len(closed) == 8
        for client in clients:
            await client.close()


async def test_description_of_users(tmp_path: Path) -> None:
    async with running_sasl(tmp_path) as server:
        client = await Client.connect(port_of(server))

        async def described(names: list[str] | None) -> list[tuple[str, int, int]]:
            rows = None if names is None else [UserName(name) for name in names]
            answer = await client.call(DescribeUserScramCredentialsRequest(rows), 0)
            assert answer.error_code == 0
            return [(row.user, row.error_code, len(row.credential_infos)) for row in answer.results]

        assert await described(None) == []
        await alter(port_of(server), upsertion("a", "x"), upsertion("c", "x", Hash.SHA512))
        assert sorted(await described(None)) == sorted(await described([])) == [
            ("a", 0, 1), ("c", 0, 1),
        ]  # fmt: skip
        assert await described(["a", "b", "c", "c"]) == [("a", 0, 1), ("b", 91, 0), ("c", 92, 0)]
        await client.close()
