"""Delegation tokens: the same requests to Apache Kafka and to ours, with an authorizer.

Tokens are compared by the names that the tests give them, times by the hours from now.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kafkawire.messages.create_acls import AclCreation, CreateAclsRequest
from kafkawire.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
)
from kafkawire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kafkawire.messages.describe_acls import DescribeAclsRequest
from kafkawire.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from kafkawire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from kafkawire.messages.renew_delegation_token import RenewDelegationTokenRequest
from kafkawire.security.acls.model import Operation, PatternType, Permission, ResourceKind
from kafkawire.security.sasl.delegation import MAX_RENEWERS
from kafkawire.testing.process import BrokerProcess
from tests.java.apache import start, stop
from tests.java.test_same_sasl import Conversation, handshake, token
from tests.kit.ports import free_port
from tests.kit.sasl import ScramClient
from tests.kit.waiting import wait_until
from tests.real.conftest import OTHER_BROKER

KEY = "a-key-of-the-cluster"
USERS = ("alice", "bob", "carol", "eve", "root", "ANONYMOUS")
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:root;User:ANONYMOUS",
}
MECHANISMS = "PLAIN,SCRAM-SHA-256"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
CREATE, RENEW, EXPIRE, DESCRIBE = 38, 39, 40, 41
VERSIONS = {CREATE: (1, 2, 3), RENEW: (1, 2), EXPIRE: (1, 2), DESCRIBE: (1, 2, 3)}
ALL = DescribeDelegationTokenRequest(None)
NO_OWNER = ("", "")
PLAIN = ""
"""The client of the listener without log-ins."""


class Made(NamedTuple):
    """A token of one broker."""

    id: str
    hmac: bytes


class Side:
    """One broker, and a connection of each user."""

    def __init__(self, log_in: str, plain: str) -> None:
        self.log_in_address = log_in
        self.clients = {user: self._logged_in(user) for user in USERS}
        self.clients[PLAIN] = Conversation(plain)
        self.made: dict[str, Made] = {}

    def _logged_in(self, user: str) -> Conversation:
        talk = Conversation(self.log_in_address)
        assert handshake(talk, "PLAIN")[0] == 0
        assert token(talk, f"\0{user}\0pw".encode())[0] == 0
        return talk

    def log_in_with(self, name: str) -> None:
        """Connect a client named after a token with which it logs in."""
        talk = Conversation(self.log_in_address)
        assert handshake(talk, "SCRAM-SHA-256")[0] == 0
        made = self.made[name]
        scram = ScramClient(made.id, b64encode(made.hmac).decode(), more=",tokenauth=true")
        last = token(talk, scram.last(token(talk, scram.first)[2]))
        assert last[0] == 0, last
        self.clients[name] = talk

    def tokens(self) -> list[DescribedDelegationToken]:
        """Return all tokens as the broker shows them."""
        found: list[DescribedDelegationToken] = self.clients["root"].ask(DESCRIBE, 3, ALL).tokens
        return found

    def ends(self) -> dict[str, int]:
        """Return when each token ends, by its id."""
        return {each.token_id: each.expiry_timestamp for each in self.tokens()}

    def wait_for(self, token_id: str, ends_ms: int | None) -> None:
        """Kafka shows a change, and applies it for others, some time after its response."""
        wait_until(lambda: self.ends().get(token_id) == ends_ms, "the change of the token")

    def wait_for_rule(self, rule: DescribeAclsRequest) -> None:
        wait_until(lambda: self.clients["root"].ask(29, 2, rule).resources, "the rule")

    def reset(self) -> None:
        """Remove all tokens and rules."""
        for each in self.tokens():
            is_user = each.principal_type == "User" and each.principal_name in USERS
            client = self.clients[each.principal_name if is_user else "eve"]
            answer = client.ask(EXPIRE, 2, ExpireDelegationTokenRequest(each.hmac, -1))
            assert not answer.error_code, each
        root = self.clients["root"]
        root.ask(31, 2, DeleteAclsRequest([DeleteAclsFilter(1, None, 1, None, None, 1, 1)]))
        rules = DescribeAclsRequest(1, None, 1, None, None, 1, 1)
        wait_until(lambda: not (self.tokens() or root.ask(29, 2, rules).resources), "the removal")
        self.made.clear()

    def close(self) -> None:
        for each in self.clients.values():
            each.close()


class Tokens:
    """Both brokers."""

    def __init__(self, *sides: Side) -> None:
        self.sides = sides

    def ask(self, user: str, api: int, request: Any, version: int | None = None) -> Any:
        """Return the response of both, which must be equal."""
        version = version or VERSIONS[api][-1]
        found = []
        for side in self.sides:
            answer = side.clients[user].ask(api, version, request)
            found.append(_plain(side, answer))
            if api == CREATE and not answer.error_code:
                side.wait_for(answer.token_id, answer.expiry_timestamp_ms)
        assert found[0] == found[1], f"(Apache Kafka, ours) differ for {user!r}, {request}"
        return found[1]

    def change(self, user: str, api: int, name: str, period_ms: int, version: int = 2) -> Any:
        """Renew or end a token; return the response, once each broker shows the change."""
        request = RenewDelegationTokenRequest if api == RENEW else ExpireDelegationTokenRequest
        found = []
        for side in self.sides:
            made = side.made[name]
            answer = side.clients[user].ask(api, version, request(made.hmac, period_ms))
            found.append(_plain(side, answer))
            if not answer.error_code:
                gone = api == EXPIRE and period_ms < 0
                side.wait_for(made.id, None if gone else answer.expiry_timestamp_ms)
        assert found[0] == found[1], (user, api, name, period_ms)
        return found[1]

    def create(self, name: str, user: str, *renewers: str, **fields: Any) -> Any:
        """Create a token for later requests, once each broker shows it."""
        rows = [CreatableRenewers("User", renewer) for renewer in renewers]
        request = CreateDelegationTokenRequest(
            **{"owner_principal_type": None, "owner_principal_name": None, **fields}, renewers=rows
        )
        found = []
        for side in self.sides:
            answer = side.clients[user].ask(CREATE, 3, request)
            assert answer.error_code == 0
            side.made[name] = Made(answer.token_id, bytes(answer.hmac))
            found.append(_plain(side, answer))
            side.wait_for(answer.token_id, answer.expiry_timestamp_ms)
        assert found[0] == found[1]
        return found[1]

    def allow(self, operation: Operation, kind: ResourceKind, name: Callable[[Side], str],
              who: str) -> None:  # fmt: skip
        """Allow a user something, once each broker shows the rule."""
        for side in self.sides:
            values = (int(kind), name(side), int(PatternType.LITERAL), f"User:{who}", "*",
                      int(operation), int(Permission.ALLOW))  # fmt: skip
            root = side.clients["root"]
            answer = root.ask(30, 2, CreateAclsRequest([AclCreation(*values)]))
            assert [row.error_code for row in answer.results] == [0]
            side.wait_for_rule(DescribeAclsRequest(*values))


def _plain(side: Side, value: Any, field: str = "") -> Any:
    """Return a message as values that may be compared."""
    fields = [each for each in getattr(type(value), "__slots__", ()) if each != "unknown_tags"]
    if fields:
        return {each: _plain(side, getattr(value, each), each) for each in fields}
    if isinstance(value, list):
        return sorted((_plain(side, each) for each in value), key=str)
    if "timestamp" in field and value > 0:
        return f"{round((value - time.time() * 1000) / HOUR_MS)} h"
    if field == "token_id":
        known = [name for name, made in side.made.items() if made.id == value]
        return known or bool(value)
    if isinstance(value, bytes | memoryview):
        known = [name for name, made in side.made.items() if made.hmac == value]
        return known or len(value)
    return value


@pytest.fixture(scope="module")
def both(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokens]:
    if OTHER_BROKER:
        pytest.skip("compares ours with Apache Kafka")
    folder = tmp_path_factory.mktemp("same-tokens")
    kafka, ours = (f"127.0.0.1:{free_port()}" for _ in range(2))
    listener = "listener.name.sasl_plaintext"
    module = "org.apache.kafka.common.security"
    known = " ".join(f'user_{user}="pw"' for user in USERS)
    more = {
        **AUTHORIZER,
        "delegation.token.secret.key": KEY,
        "sasl.enabled.mechanisms": MECHANISMS,
        f"{listener}.plain.sasl.jaas.config": f"{module}.plain.PlainLoginModule required {known};",
        f"{listener}.scram-sha-256.sasl.jaas.config":
            f"{module}.scram.ScramLoginModule required;",
    }  # fmt: skip
    users = folder / "users"
    users.write_text("".join(f"{user}:pw\n" for user in USERS))
    users.chmod(0o600)
    settings = {
        **AUTHORIZER, "sasl.enabled.mechanisms": MECHANISMS, "sasl.plain.users.file": users,
    }  # fmt: skip
    (folder / "kafka").mkdir()
    pid, address = start(folder / "kafka", f"{jars}/*", more, f"SASL_PLAINTEXT://{kafka}")
    try:
        with BrokerProcess(
            folder / "ours", settings=settings, listeners=[f"SASL_PLAINTEXT://{ours}"],
            environ={"KAFKAWIRE_SET_DELEGATION_TOKEN_SECRET_KEY": KEY},
        ) as process:  # fmt: skip
            sides = Side(kafka, address), Side(ours, process.bootstrap)
            yield Tokens(*sides)
            for side in sides:
                side.close()
    finally:
        stop(pid)


@pytest.fixture
def tokens(both: Tokens) -> Iterator[Tokens]:
    """Both brokers without tokens and rules."""
    yield both
    for side in both.sides:
        side.reset()


def create(
    owner: tuple[str | None, str | None] = NO_OWNER,
    *renewers: tuple[str, str],
    life_ms: int = -1,
) -> CreateDelegationTokenRequest:
    rows = [CreatableRenewers(*each) for each in renewers]
    return CreateDelegationTokenRequest(*owner, rows, life_ms)


def describe(*owners: tuple[str, str]) -> DescribeDelegationTokenRequest:
    return DescribeDelegationTokenRequest([DescribeDelegationTokenOwner(*each) for each in owners])


@pytest.mark.parametrize("version", VERSIONS[CREATE])
def test_created_tokens_match(tokens: Tokens, version: int) -> None:
    for life_ms in (-5, 0, 1, 2 * HOUR_MS, 30 * DAY_MS, 2**63 - 1, -(2**63)):
        answer = tokens.ask("alice", CREATE, create(life_ms=life_ms), version)
        assert (answer["error_code"], answer["hmac"]) == (0, 64)
    for renewers in ([("User", "bob")], [("User", "bob")] * 2):
        assert tokens.ask("alice", CREATE, create(NO_OWNER, *renewers), version)


EVE = ("User", "eve")
"""A renewer, so that the tests can remove the token."""
RENEWERS: list[tuple[tuple[str, str], ...]] = [
    (("Group", "x"),), (("User", "bob"), ("Group", "x")), (("", "x"),), (("user", "x"),),
]  # fmt: skip


@pytest.mark.parametrize("renewers", RENEWERS, ids=str)
@pytest.mark.parametrize("owner", [NO_OWNER, ("User", "bob"), ("Group", "x")], ids=str)
def test_refused_renewers_and_owners_match(tokens: Tokens, owner: Any, renewers: Any) -> None:
    """Rights are checked before the kinds of renewers."""
    for user in ("alice", "root"):
        answer = tokens.ask(user, CREATE, create(owner, *renewers))
        refused = owner[0] and user == "alice"
        assert (answer["error_code"], answer["max_timestamp_ms"]) == (65 if refused else 67, -1)


@pytest.mark.parametrize(
    "owner",
    [(None, None), NO_OWNER, ("User", ""), ("User", None), ("Group", None), ("User", "alice"),
     ("User", "bob"), ("User", "nobody"), ("Group", "x")],
    ids=str,
)  # fmt: skip
def test_owners_match(tokens: Tokens, owner: Any) -> None:
    answer = tokens.ask("alice", CREATE, create(owner))
    assert answer["error_code"] == (65 if owner[1] in ("bob", "nobody", "x") else 0)
    if owner[0] != "Group":
        assert tokens.ask("root", CREATE, create(owner, EVE))["error_code"] == 0


ODD_NAMES = ("*", "a\nb", "a" * 256)
MANY = [("User", f"user-{number}") for number in range(MAX_RENEWERS + 1)]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (67, create(("Group", "x"), EVE)), (67, create(("", "bob"), EVE)),
        (42, create(NO_OWNER, ("User", ""))), (42, create(NO_OWNER, *MANY)),
        *((42, create(("User", name), EVE)) for name in ODD_NAMES),
        *((42, create(NO_OWNER, ("User", name))) for name in ODD_NAMES),
    ],
)  # fmt: skip
def test_what_only_kafka_accepts(tokens: Tokens, code: int, message: Any) -> None:
    """A log-in with the token of Group:x is User:x in Kafka. Times are 0, as for Kafka's refusals
    by the controller."""
    kafka, ours = (side.clients["root"].ask(CREATE, 3, message) for side in tokens.sides)
    assert kafka.error_code == 0
    tokens.sides[0].wait_for(kafka.token_id, kafka.expiry_timestamp_ms)
    assert (ours.error_code, ours.issue_timestamp_ms, bytes(ours.hmac)) == (code, 0, b"")
    owner = message.owner_principal_name or "root"
    assert (ours.principal_name, ours.token_requester_principal_name) == (owner, "root")


CHANGERS = ("alice", "bob", "carol", "root", "eve")
"""The owner, a renewer, others: root may do everything, eve requested one of the tokens."""
PERIODS = (-(2**63), -2, -1, 0, HOUR_MS, 30 * DAY_MS, 2**62)


def three(tokens: Tokens) -> None:
    """Make a token that bob may renew, one for alice requested by eve, and a short one."""
    tokens.create("own", "alice", "bob")
    tokens.allow(Operation.CREATE_TOKENS, ResourceKind.USER, lambda _: "User:alice", "eve")
    owner = {"owner_principal_type": "User", "owner_principal_name": "alice"}
    tokens.create("requested", "eve", **owner)
    tokens.create("short", "alice", "bob", max_lifetime_ms=2 * HOUR_MS)


@pytest.mark.parametrize("user", CHANGERS)
def test_renewals_match(tokens: Tokens, user: str) -> None:
    three(tokens)
    for name in ("own", "requested", "short"):
        for period_ms in PERIODS:
            code = tokens.change(user, RENEW, name, period_ms)["error_code"]
            allowed = user == "alice" or (user == "bob" and name != "requested")
            assert code == (0 if allowed else 63)


@pytest.mark.parametrize("user", CHANGERS)
def test_ends_match(tokens: Tokens, user: str) -> None:
    three(tokens)
    for name in ("own", "requested", "short"):
        for period_ms in (HOUR_MS, 30 * DAY_MS, 2**62, -1):
            code = tokens.change(user, EXPIRE, name, period_ms)["error_code"]
            allowed = user == "alice" or (user == "bob" and name != "requested")
            assert code == (0 if allowed else 63)


def test_unknown_and_expired_tokens_match(tokens: Tokens) -> None:
    tokens.create("own", "alice", "bob")
    tokens.change("alice", EXPIRE, "own", 1)
    time.sleep(0.01)  # it has ended since its last millisecond
    for user in ("alice", "bob", "carol", "root"):
        for version in (1, 2):
            assert tokens.change(user, RENEW, "own", HOUR_MS, version)["error_code"] == 66
            expired = tokens.change(user, EXPIRE, "own", HOUR_MS, version)["error_code"]
            assert expired == (66 if user in ("alice", "bob") else 63)
            for secret in (b"", b"unknown"):
                for period_ms in (-1, HOUR_MS):
                    renew = RenewDelegationTokenRequest(secret, period_ms)
                    expire = ExpireDelegationTokenRequest(secret, period_ms)
                    for api, request in ((RENEW, renew), (EXPIRE, expire)):
                        answer = tokens.ask(user, api, request, version)
                        assert (answer["error_code"], answer["expiry_timestamp_ms"]) == (62, 0)
        assert tokens.ask(user, DESCRIBE, ALL)["error_code"] == 0
    tokens.change("bob", EXPIRE, "own", -1)
    assert tokens.change("alice", EXPIRE, "own", -1)["error_code"] == 62


OWNERS = [
    (), (("User", "alice"),), (("User", "bob"),), (("User", "alice"), ("User", "alice")),
    (("User", "alice"), ("User", "bob")), (("Group", "alice"),), (("", "alice"),),
    (("User", ""),), (("User", "carol"),), (("User", "eve"),), (("User", "*"),),
]  # fmt: skip


def test_shown_tokens_match(tokens: Tokens) -> None:
    three(tokens)
    tokens.create("of bob", "bob")

    def shown() -> list[int]:
        for user in CHANGERS:
            for owners in OWNERS:
                tokens.ask(user, DESCRIBE, describe(*owners))
            for version in VERSIONS[DESCRIBE]:
                tokens.ask(user, DESCRIBE, ALL, version)
        return [len(tokens.ask(user, DESCRIBE, ALL)["tokens"]) for user in CHANGERS]

    assert shown() == [3, 3, 0, 4, 1]
    kind = ResourceKind.DELEGATION_TOKEN
    tokens.allow(Operation.DESCRIBE, kind, lambda side: side.made["of bob"].id, "carol")
    assert shown() == [3, 3, 1, 4, 1]
    tokens.allow(Operation.DESCRIBE_TOKENS, ResourceKind.USER, lambda _: "User:alice", "carol")
    tokens.allow(Operation.DESCRIBE_TOKENS, ResourceKind.USER, lambda _: "User:eve", "bob")
    assert shown() == [3, 3, 4, 4, 1]


REQUESTS: list[tuple[int, Any]] = [
    (CREATE, create()), (CREATE, create(("User", "bob"))),
    (CREATE, create(("Group", "x"), ("Group", "x"))),
    (RENEW, RenewDelegationTokenRequest(b"unknown", -1)),
    (EXPIRE, ExpireDelegationTokenRequest(b"unknown", -1)),
    (DESCRIBE, ALL), (DESCRIBE, describe()),
]  # fmt: skip


def test_clients_that_may_not_ask_match(tokens: Tokens) -> None:
    """Those without a log-in, and those that logged in with a token."""
    tokens.create("own", "alice")
    for side in tokens.sides:
        side.log_in_with("own")
    for user in (PLAIN, "own"):
        for api, request in REQUESTS:
            has_owner = api == CREATE and request.owner_principal_name
            for version in (3,) if has_owner else VERSIONS[api]:
                answer = tokens.ask(user, api, request, version)
                assert answer["error_code"] == 64
                if api != DESCRIBE:
                    assert answer["expiry_timestamp_ms"] == -1


def test_user_with_the_name_of_clients_without_log_in(tokens: Tokens) -> None:
    for api, request in REQUESTS:
        answer = tokens.ask("ANONYMOUS", api, request)
        assert answer["error_code"] != 64
