"""Log-ins and users: the same conversations with Apache Kafka and with ours."""

from __future__ import annotations

import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import pack, unpack
from typing import Any

import pytest

from kafkawire.client.connection import ClientConnection
from kafkawire.codec.compile import decode, encode
from kafkawire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kafkawire.messages.api_versions import ApiVersionsRequest
from kafkawire.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
)
from kafkawire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kafkawire.messages.describe_delegation_token import DescribeDelegationTokenRequest
from kafkawire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from kafkawire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from kafkawire.messages.headers import RequestHeader
from kafkawire.messages.metadata import MetadataRequest
from kafkawire.messages.registry import response_class, spec_of
from kafkawire.messages.renew_delegation_token import RenewDelegationTokenRequest
from kafkawire.messages.sasl_authenticate import SaslAuthenticateRequest
from kafkawire.messages.sasl_handshake import SaslHandshakeRequest
from kafkawire.security.sasl.scram import Hash
from kafkawire.testing.process import BrokerProcess
from tests.java.apache import start, stop
from tests.kit.ports import free_port
from tests.kit.sasl import ScramClient, upsertion
from tests.kit.waiting import wait_until

MECHANISMS = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
VERSIONS = ApiVersionsRequest(client_software_name="test", client_software_version="1")
CLOSED = "closed"
SCRAM = (Hash.SHA256, Hash.SHA512)
PREFIX = "listener.name.sasl_plaintext."
OF_LISTENER = {
    "connections.max.reauth.ms": "70000",
    f"{PREFIX}connections.max.reauth.ms": "60000",
    f"{PREFIX}scram-sha-256.connections.max.reauth.ms": "50000",
    f"{PREFIX}sasl.enabled.mechanisms": MECHANISMS,
    f"{PREFIX}max.connections": "900",
}
"""Settings of both brokers, most of them for the listener of log-ins."""


class Conversation:
    """A connection of which a test sees every answer, and where it is closed."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 30)
        self.number = 0

    def ask(self, key: int, version: int, message: Any) -> Any:
        """The decoded answer, or CLOSED."""
        self.number += 1
        spec = spec_of(key)
        header = RequestHeader(key, version, self.number, "test")
        body = encode(header, spec.request_header_version(version)) + encode(message, version)
        answer = self.raw(body)
        if answer == CLOSED:
            return CLOSED
        skip = 5 if spec.response_header_version(version) == 1 else 4
        assert unpack(">i", answer[:4])[0] == self.number
        return decode(response_class(key), version, answer[skip:])

    def raw(self, body: bytes) -> Any:
        """The bytes of the answer to a frame, or CLOSED."""
        try:
            self.socket.sendall(pack(">i", len(body)) + body)
            head = self._exactly(4)
            return self._exactly(unpack(">i", head)[0])
        except (ConnectionError, EOFError):
            return CLOSED

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self.socket.recv(size - len(found))
            if not more:
                raise EOFError
            found += more
        return found

    def close(self) -> None:
        with suppress(OSError):
            self.socket.close()


class SaslTwins:
    """Both brokers: the addresses for log-ins, and connections without."""

    def __init__(self, log_ins: tuple[str, str], plain: tuple[str, str]) -> None:
        self.log_ins = log_ins
        self.plain = plain

    def same(self, talk: Any, plain: bool = False) -> Any:
        """The result of `talk` for a conversation with each broker; it must be equal."""
        found = []
        for address in self.plain if plain else self.log_ins:
            conversation = Conversation(address)
            try:
                found.append(talk(conversation))
            finally:
                conversation.close()
        assert found[0] == found[1]
        return found[1]


@pytest.fixture(scope="module")
def sasl_twins(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslTwins]:
    folder = tmp_path_factory.mktemp("same-sasl")
    kafka, ours = (f"127.0.0.1:{free_port()}" for _ in range(2))
    plain = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    more = {**OF_LISTENER, "sasl.enabled.mechanisms": "PLAIN", plain: f'{module} user_bob="pw";'}
    for kind in SCRAM:
        login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        more[f"listener.name.sasl_plaintext.{kind.mechanism.lower()}.sasl.jaas.config"] = login
    users = folder / "users"
    users.write_text("bob:pw\n")
    users.chmod(0o600)
    settings = {
        **OF_LISTENER, "sasl.enabled.mechanisms": "PLAIN", "sasl.plain.users.file": users,
    }  # fmt: skip
    (folder / "kafka").mkdir()
    pid, address = start(folder / "kafka", f"{jars}/*", more, f"SASL_PLAINTEXT://{kafka}")
    try:
        with BrokerProcess(
            folder / "ours", settings=settings, listeners=[f"SASL_PLAINTEXT://{ours}"]
        ) as process:
            twins = SaslTwins((kafka, ours), (address, process.bootstrap))
            make = AlterUserScramCredentialsRequest([], [upsertion("alice", "secret")])
            wait_until(lambda: _altered(twins, make), "users of both brokers")
            wait_until(lambda: _can_log_in(twins), "log-ins with both brokers")
            yield twins
    finally:
        stop(pid)


def _altered(twins: SaslTwins, request: AlterUserScramCredentialsRequest) -> bool:
    codes = []
    for address in twins.plain:
        connection = _connect(address)
        codes += [row.error_code for row in connection.request(51, request).results]
        connection.close()
    return codes == [0, 0]


def _can_log_in(twins: SaslTwins) -> bool:
    for address in twins.log_ins:
        conversation = Conversation(address)
        found = scram(conversation, "alice", "secret")
        conversation.close()
        if found[0] != 0:
            return False
    return True


def _connect(address: str) -> ClientConnection:
    host, _, port = address.rpartition(":")
    return ClientConnection(host, int(port))


def handshake(talk: Conversation, mechanism: str, version: int = 1) -> Any:
    answer = talk.ask(17, version, SaslHandshakeRequest(mechanism))
    return answer if answer == CLOSED else (answer.error_code, sorted(answer.mechanisms))


def token(talk: Conversation, data: bytes, version: int = 2) -> Any:
    answer = talk.ask(36, version, SaslAuthenticateRequest(data))
    if answer == CLOSED:
        return CLOSED
    return (
        answer.error_code, answer.error_message, bytes(answer.auth_bytes),
        answer.session_lifetime_ms,
    )  # fmt: skip


def scram(talk: Conversation, user: str, password: str, version: int = 2) -> Any:
    assert handshake(talk, "SCRAM-SHA-256")[0] == 0
    client = ScramClient(user, password)
    first = token(talk, client.first, version)
    if first[0]:
        return first
    last = token(talk, client.last(first[2]), version)
    if last[0] == 0:
        assert last[2] == b"v=" + b64encode(client.signature)
    return last[0], last[1], last[3]


def requests(talk: Conversation) -> Any:
    """Whether requests are served."""
    return talk.ask(3, 9, MetadataRequest(topics=[])) != CLOSED


@pytest.mark.parametrize("version", [0, 1, 2])
def test_log_ins_match(sasl_twins: SaslTwins, version: int) -> None:
    def plain(talk: Conversation) -> Any:
        return handshake(talk, "PLAIN"), token(talk, b"\0bob\0pw", version), requests(talk)

    found = sasl_twins.same(plain)
    assert (found[1][0], found[2]) == (0, True)
    found = sasl_twins.same(lambda talk: (scram(talk, "alice", "secret", version), requests(talk)))
    assert found[0][0] == 0
    wrong = sasl_twins.same(lambda talk: (scram(talk, "alice", "wrong", version), requests(talk)))
    assert (wrong[0][0], wrong[1]) == (58, False)
    # Kafka fails at the first message of an unknown user, ours at the last: code and text match
    unknown = []
    for address in sasl_twins.log_ins:
        talk = Conversation(address)
        unknown.append(scram(talk, "nobody", "wrong", version)[:2])
        talk.close()
    assert unknown[0] == unknown[1] == wrong[0][:2]


@pytest.mark.parametrize(
    "data",
    [
        b"", b"bob\0pw", b"\0bob\0pw\0x", b"\0\0pw", b"\0bob\0", b"\0bob\0wrong", b"\0no\0pw",
        b"alice\0bob\0pw", b"alice\0bob\0wrong", b"\0\xff\0pw", b"a\0b\0c\0d\0e",
    ],
)  # fmt: skip
def test_refusals_of_plain_match(sasl_twins: SaslTwins, data: bytes) -> None:
    def talk(each: Conversation) -> Any:
        return handshake(each, "PLAIN"), token(each, data), requests(each)

    assert sasl_twins.same(talk)[1][0] == 58


@pytest.mark.parametrize(
    "data",
    [
        b"", b"y,,n=alice,r=x", b"p=tls-unique,,n=alice,r=x", b"n,,n=a=2,r=x", b"n,,n=,r=x",
        b"n,a=bob,n=alice,r=x", b"n,,n=al\xc3\xa9,r=x", b"c=biws,r=x,p=AAAA", b"n,,n=alice",
    ],
)  # fmt: skip
def test_refusals_of_scram_match(sasl_twins: SaslTwins, data: bytes) -> None:
    def talk(each: Conversation) -> Any:
        return handshake(each, "SCRAM-SHA-256"), token(each, data), requests(each)

    assert sasl_twins.same(talk)[1][0] == 58


@pytest.mark.parametrize("change", ["proof", "nonce"])
def test_forged_last_messages_match(sasl_twins: SaslTwins, change: str) -> None:
    def talk(each: Conversation) -> Any:
        handshake(each, "SCRAM-SHA-256")
        client = ScramClient("alice", "secret")
        last = client.last(token(each, client.first)[2])
        if change == "proof":
            last = last[:-6] + (b"AAAAA=" if last[-6:] != b"AAAAA=" else b"BBBBB=")
        else:  # a cut proof is an unexpected exception in Kafka, which closes the connection
            last = last.replace(b"r=abc", b"r=abd")
        return token(each, last), requests(each)

    assert sasl_twins.same(talk)[0][0] == 58


def test_handshakes_match(sasl_twins: SaslTwins) -> None:
    for version in (0, 1):
        for name in ("GSSAPI", "plain", ""):
            found = sasl_twins.same(
                lambda each, name=name, version=version: (
                    handshake(each, name, version), requests(each),
                )
            )  # fmt: skip
            assert found == ((33, sorted(MECHANISMS.split(","))), False)


def test_raw_tokens_match(sasl_twins: SaslTwins) -> None:
    for data in (b"\0bob\0pw", b"\0bob\0wrong", b""):
        sasl_twins.same(
            lambda each, data=data: (
                handshake(each, "PLAIN", 0), each.raw(data), requests(each),
            )
        )  # fmt: skip


def test_requests_before_log_in_match(sasl_twins: SaslTwins) -> None:
    assert sasl_twins.same(requests) is False
    assert sasl_twins.same(lambda each: token(each, b"x")) == CLOSED
    assert sasl_twins.same(lambda each: each.raw(b"\0")) == CLOSED

    def versions(each: Conversation) -> Any:
        first = each.ask(18, 3, VERSIONS)
        second = each.ask(18, 3, VERSIONS)
        return first.error_code, second == CLOSED

    assert sasl_twins.same(versions) == (0, True)

    def unnamed(each: Conversation) -> Any:
        wrong = each.ask(18, 3, ApiVersionsRequest()).error_code
        return wrong, each.ask(18, 0, ApiVersionsRequest()).error_code, handshake(each, "PLAIN")

    assert sasl_twins.same(unnamed)[:2] == (42, 0)
    for plain in (False, True):
        rows = sasl_twins.same(
            lambda each: sorted(
                (row.api_key, row.min_version, row.max_version)
                for row in each.ask(18, 0, ApiVersionsRequest()).api_keys
                if row.api_key in (17, 36, 50, 51)
            ),
            plain=plain,
        )
        assert rows == [(17, 0, 1), (36, 0, 2), (50, 0, 0), (51, 0, 0)]


def test_sasl_requests_after_log_in_match(sasl_twins: SaslTwins) -> None:
    def after(each: Conversation) -> Any:
        handshake(each, "PLAIN")
        token(each, b"\0bob\0pw")
        refused = token(each, b"x")
        again = handshake(each, "PLAIN"), token(each, b"\0bob\0pw"), requests(each)
        return refused, again, handshake(each, "PLAIN"), requests(each)

    found = sasl_twins.same(after)
    assert (found[0][0], found[1][1][0], found[2]) == (34, 0, (34, []))

    def changed(each: Conversation, mechanism: str, data: bytes) -> Any:
        handshake(each, "PLAIN")
        token(each, b"\0bob\0pw")
        return handshake(each, mechanism), token(each, data), requests(each)

    wrong = sasl_twins.same(lambda each: changed(each, "PLAIN", b"\0bob\0wrong"))
    assert wrong[1][0] == 58
    other = sasl_twins.same(lambda each: changed(each, "SCRAM-SHA-256", b"n,,n=alice,r=x"))
    assert other[1] == CLOSED
    found = sasl_twins.same(
        lambda each: (handshake(each, "PLAIN"), token(each, b"x"), requests(each)), plain=True
    )
    assert (found[0], found[1][0], found[2]) == ((34, []), 34, True)


def test_users_match(sasl_twins: SaslTwins) -> None:
    def altered(each: Conversation) -> Any:
        good = upsertion("carol", "x", Hash.SHA512, 16384)
        request = AlterUserScramCredentialsRequest(
            [
                ScramCredentialDeletion("nobody", 1), ScramCredentialDeletion("twice", 1),
                ScramCredentialDeletion("", 1), ScramCredentialDeletion("odd", 3),
            ],
            [
                good, upsertion("few", "x", Hash.SHA256, 4095),
                upsertion("many", "x", Hash.SHA256, 16385),
                ScramCredentialUpsertion("twice", 2, 4096, b"s", b"p"),
                ScramCredentialUpsertion("zero", 0, 4096, b"s", b"p"),
                ScramCredentialUpsertion("short", 1, 4096, b"", b"p"),
            ],
        )  # fmt: skip
        answer = each.ask(51, 0, request)
        return sorted((row.user, row.error_code, row.error_message) for row in answer.results)

    def described(each: Conversation, names: list[str] | None) -> Any:
        rows = None if names is None else [UserName(name) for name in names]
        answer = each.ask(50, 0, DescribeUserScramCredentialsRequest(rows))
        return (answer.error_code, answer.error_message), sorted(
            (
                row.user, row.error_code, row.error_message,
                sorted((each.mechanism, each.iterations) for each in row.credential_infos),
            )
            for row in answer.results
        )  # fmt: skip

    sasl_twins.same(altered, plain=True)
    kafka = Conversation(sasl_twins.plain[0])  # it applies a change some time after its response
    wait_until(lambda: "carol" in {row[0] for row in described(kafka, None)[1]}, "the change")
    kafka.close()
    for names in (None, [], ["carol", "nobody"], ["alice", "alice"]):
        sasl_twins.same(lambda each, names=names: described(each, names), plain=True)
    gone = [ScramCredentialDeletion("carol", 2), ScramCredentialDeletion("short", 1)]
    sasl_twins.same(
        lambda each: sorted(
            (row.user, row.error_code)
            for row in each.ask(51, 0, AlterUserScramCredentialsRequest(gone, [])).results
        ),
        plain=True,
    )


def test_tokens_without_secret_key_match(sasl_twins: SaslTwins) -> None:
    other = CreateDelegationTokenRequest("User", "other")
    group = CreateDelegationTokenRequest(renewers=[CreatableRenewers("Group", "x")])
    asked: list[tuple[int, int, Any]] = [
        (38, 1, CreateDelegationTokenRequest()), (38, 3, other), (38, 3, group),
        (39, 2, RenewDelegationTokenRequest(b"x", 1)),
        (40, 2, ExpireDelegationTokenRequest(b"x", 1)),
        (41, 3, DescribeDelegationTokenRequest(None)), (41, 3, DescribeDelegationTokenRequest([])),
    ]  # fmt: skip

    def talk(each: Conversation, logs_in: bool) -> list[str]:
        if logs_in:
            handshake(each, "PLAIN")
            token(each, b"\0bob\0pw")
        return [repr(each.ask(*one)) for one in asked]

    found = sasl_twins.same(lambda each: talk(each, True))
    assert ["error_code=61" in row for row in found] == [True, True, False, True, True, True, True]
    assert "error_code=67" in found[2]
    found = sasl_twins.same(lambda each: talk(each, False), plain=True)
    assert ["error_code=64" in row for row in found] == [True] * len(asked)


def test_settings_of_a_listener_match(sasl_twins: SaslTwins) -> None:
    """Which counts, and how they are shown. Defaults of the two differ."""
    found = sasl_twins.same(lambda each: scram(each, "alice", "secret"))
    assert found == (0, "", 50_000)

    def plain(each: Conversation) -> Any:
        handshake(each, "PLAIN")
        return token(each, b"\0bob\0pw")

    assert sasl_twins.same(plain)[3] == 60_000

    def described(each: Conversation) -> list[Any]:
        asked = [DescribeConfigsResource(4, "1", list(OF_LISTENER))]
        answer = each.ask(32, 4, DescribeConfigsRequest(asked, include_synonyms=True))
        return sorted(
            (row.name, row.value, row.config_source, row.is_sensitive, row.config_type,
             row.read_only, [(s.name, s.source) for s in row.synonyms])
            for row in answer.results[0].configs
        )  # fmt: skip

    assert len(sasl_twins.same(described, plain=True)) == len(OF_LISTENER)
