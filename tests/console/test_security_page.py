"""The page of users, access rules and quotas.

Covers: kafkawire.console.pages.cluster, kafkawire.console.views.security, kafkawire.client.users.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from kafkawire.client.acls import AclRow, create_acls
from kafkawire.client.cluster import Cluster
from kafkawire.client.quotas import alter_quotas
from kafkawire.client.security import security_of
from kafkawire.console.app import application
from kafkawire.console.views.parts import PAGE
from kafkawire.console.views.security import describe_security, group_rules
from kafkawire.console.web.frame import ConsoleOptions
from kafkawire.console.web.rendering import link
from kafkawire.security.acls.model import Operation, PatternType, Permission, ResourceKind
from kafkawire.testing import InProcessBroker, broker
from tests.console.test_pages import HOSTILE, check_page
from tests.kit.fake_kafka import serving

TOPIC, ALLOW = int(ResourceKind.TOPIC), int(Permission.ALLOW)


def rule(name: str, user: str, operation: Operation, permission: int = ALLOW) -> AclRow:
    literal = int(PatternType.LITERAL)
    return AclRow(TOPIC, name, literal, f"User:{user}", "*", int(operation), permission)


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessBroker]:
    users = {"alice": "secret", "bob": "secret"}
    rules = [("alice", "Read", "topic:orders"), ("alice", "Write", "topic:orders"),
             ("bob", "Read", "topic:ord*")]  # fmt: skip
    with broker(users=users, acls=rules) as started:
        with Cluster(started.bootstrap) as cluster:
            denied = rule("secret", "*", Operation.ALL, int(Permission.DENY))
            create_acls(cluster, [denied, *(rule("x", name, Operation.READ) for name in HOSTILE)])
            alter_quotas(cluster, {"user": "alice"}, {"producer_byte_rate": 1 << 20})
            alter_quotas(cluster, {"client-id": None}, {"request_percentage": 50.0})
        yield started


def test_who_may_do_what_with_a_topic(running: InProcessBroker) -> None:
    with Cluster(running.bootstrap) as cluster:
        found = describe_security(cluster, kind="topic", what="orders")
    assert sorted((row.principal, row.what, list(row.operations)) for row in found.rules.rows) == [
        ("User:alice", "topic", ["read", "write"]),
        ("User:bob", "each topic whose name begins with", ["read"]),
    ]
    assert found.super_users == ["User:ANONYMOUS"]
    assert (found.open_access, found.refused) == (False, [])


def test_what_a_user_may_do(running: InProcessBroker) -> None:
    with Cluster(running.bootstrap) as cluster:
        found = describe_security(cluster, who="ALICE")
    assert {(row.principal, row.allowed, row.resource) for row in found.rules.rows} == {
        ("User:alice", True, "orders"),
        ("User:*", False, "secret"),
    }
    assert [row.user for row in found.users.rows] == ["alice"]
    assert found.users.rows[0].mechanisms == {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}
    assert [(row.quota, row.limit) for row in found.quotas.rows] == [
        ("producer_byte_rate", "1.0 MiB/s")
    ]


def test_hostile_principals_are_text(running: InProcessBroker) -> None:
    app = application(ConsoleOptions(running.bootstrap, ("127.0.0.1",)))
    with TestClient(app, base_url="http://127.0.0.1") as pages:
        for path in ("/security", *(link("security", who=text, what=text) for text in HOSTILE)):
            answer = pages.get(path)
            assert answer.status_code == 200
            check_page(answer.text)
        assert "50%" in pages.get("/security").text
        assert pages.get("/security?kind=planet").status_code == 400


def test_refused_rights_are_sentences(running: InProcessBroker) -> None:
    given = running.client_settings("alice")
    with Cluster(given["bootstrap.servers"], security=security_of(given)) as cluster:
        found = describe_security(cluster)
    assert (found.rules.rows, found.users.rows, found.quotas.rows) == ([], [], [])
    assert len(found.refused) == 4
    assert all("CLUSTER_AUTHORIZATION_FAILED" in each for each in found.refused)


def test_broker_with_few_requests_has_a_page() -> None:
    with serving({}) as fake, Cluster(fake.address) as cluster:
        found = describe_security(cluster)
    assert "does not support DescribeAcls" in found.refused[0]


def test_many_rules_are_in_pages(running: InProcessBroker) -> None:
    rows = [rule(f"t{number}", "carol", Operation.READ) for number in range(PAGE + 1)]
    assert len(group_rules(rows)) == PAGE + 1
    with Cluster(running.bootstrap) as cluster:
        create_acls(cluster, rows)
        found = describe_security(cluster, who="carol", page=2)
    assert (found.rules.pages, len(found.rules.rows)) == (2, 2)  # with that of all users
