"""Requests with and without rights, to Apache Kafka's StandardAuthorizer and to ours: responses are
compared.

Both principals are User:ANONYMOUS: the administrator connects from one address, and the client from
another.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kafkawire.client.connection import ClientConnection
from kafkawire.client.errors import ClientError
from kafkawire.messages.create_acls import AclCreation, CreateAclsRequest
from kafkawire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kafkawire.messages.delete_groups import DeleteGroupsRequest
from kafkawire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kafkawire.messages.describe_acls import DescribeAclsRequest
from kafkawire.messages.describe_cluster import DescribeClusterRequest
from kafkawire.messages.describe_groups import DescribeGroupsRequest
from kafkawire.messages.init_producer_id import InitProducerIdRequest
from kafkawire.messages.list_groups import ListGroupsRequest
from kafkawire.messages.list_transactions import ListTransactionsRequest
from kafkawire.messages.metadata import MetadataRequest, MetadataRequestTopic
from kafkawire.security.acls.model import Acl, Operation, PatternType, Permission, ResourceKind
from tests.java.apache import start, stop
from tests.java.brokers import run_broker
from tests.java.conftest import wait_for_coordinators
from tests.java.twins import KEYS, Twins, create, wait_for_leaders
from tests.kit import access_cases as cases
from tests.kit.access_cases import REFUSALS, Case, codes
from tests.real.conftest import OTHER_BROKER

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",  # until there is the first rule
}
ADMIN, CLIENT = "127.0.0.1", "127.0.0.2"
OURS = 1
O, T, G, C, X = cases.O, cases.T, cases.G, cases.C, cases.X  # noqa: E741


def connect(address: str, source: str) -> ClientConnection:
    host, _, port = address.rpartition(":")
    original = socket.create_connection
    with pytest.MonkeyPatch.context() as patch:
        bound = partial(original, source_address=(source, 0))
        patch.setattr(socket, "create_connection", bound)
        return ClientConnection(host, int(port))


class Guarded:
    """Both brokers: `admin` may do everything, `client` what `allow` allows."""

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses
        self.admin = Twins(*(connect(address, ADMIN) for address in addresses))
        self.client = Twins(*(connect(address, CLIENT) for address in addresses))
        self.ids: list[bytes] = [b"", b""]

    def begin(self) -> None:
        """Make the rules of the administrator, and topic "t"."""
        self.allow(
            *(cases.rule(O.ALL, kind, "*", host=ADMIN) for kind in (T, G, X)),
            cases.rule(O.ALL, C, host=ADMIN),
        )
        self.admin.ask("CreateTopics", create("t"), 7)
        wait_for_leaders(self.admin, "t")
        asked = MetadataRequest([MetadataRequestTopic(name="t")])
        for at, one in enumerate(self.admin.both):
            self.ids[at] = one.request(KEYS["Metadata"], asked).topics[0].topic_id

    def allow(self, *rules: Acl) -> None:
        creations = [
            AclCreation(
                each.resource_type, each.resource_name, each.pattern_type, each.principal,
                each.host, each.operation, each.permission,
            )
            for each in rules
        ]  # fmt: skip
        self.admin.ask("CreateAcls", CreateAclsRequest(creations), 2)
        for each in rules:
            wanted = DescribeAclsRequest(
                each.resource_type, each.resource_name, each.pattern_type, each.principal,
                each.host, each.operation, each.permission,
            )  # fmt: skip
            self.wait(wanted, 1)

    def may(self, operation: Operation, kind: ResourceKind, name: str = "", **more: Any) -> None:
        self.allow(cases.rule(operation, kind, name, host=CLIENT, **more))

    def reset(self) -> None:
        """Remove the rules of the client."""
        gone = DeleteAclsFilter(1, None, 1, None, CLIENT, 1, 1)
        for one in self.admin.both:
            one.request(KEYS["DeleteAcls"], DeleteAclsRequest([gone]))
        self.wait(DescribeAclsRequest(1, None, 1, None, CLIENT, 1, 1), 0)
        # A group that a case made has the topic: what the next case needs would depend on it.
        self.admin.ask("DeleteGroups", DeleteGroupsRequest(["g"]), 2)

    def wait(self, wanted: DescribeAclsRequest, count: int) -> None:
        """Kafka enforces a change some time after its response."""
        end = time.monotonic() + 60
        for one in self.admin.both:
            while len(one.request(KEYS["DescribeAcls"], wanted).resources) != count:
                assert time.monotonic() < end
                time.sleep(0.01)

    def ask(self, api: str, request: Any, version: int, but: tuple[str, ...] = ()) -> Any:
        return self.client.ask(api, request, version, but=but)


@pytest.fixture(scope="module")
def both(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    if OTHER_BROKER:
        pytest.skip("compares ours with Apache Kafka")
    pid, kafka = start(tmp_path_factory.mktemp("apache"), f"{jars}/*", AUTHORIZER)
    try:
        with run_broker(tmp_path_factory.mktemp("ours"), more=AUTHORIZER) as ours:
            addresses = [kafka, ours.bootstrap]
            for address in addresses:
                wait_for_coordinators(address)
            guarded = Guarded(addresses)
            guarded.begin()
            yield guarded
            for one in (*guarded.admin.both, *guarded.client.both):
                one.close()
    finally:
        stop(pid)


@pytest.fixture
def guarded(both: Guarded) -> Guarded:
    both.reset()
    return both


def name_of(case: Case) -> str:
    return repr(case).partition("-")[0]


SINGLE = [case for case in cases.CASES if case.title != "long"]  # Kafka merges repeated partitions
BUT = ("aborted_transactions",)  # null or empty, which are the same to clients


@pytest.mark.parametrize("case", SINGLE, ids=repr)
def test_requests_match_without_rights_and_with_a_part(guarded: Guarded, case: Case) -> None:
    def request(side: int) -> Any:
        return case.request(guarded.ids[side])

    guarded.ask(name_of(case), request, case.version, BUT + case.but)
    for operation, kind in case.needs[:-1]:
        guarded.may(operation, kind)
        guarded.ask(name_of(case), request, case.version, BUT + case.but)
    operation, kind = case.needs[-1]
    guarded.may(operation, kind)
    for side, one in enumerate(guarded.client.both):
        answer = one.request(case.key, request(side), at_most=case.version)
        assert not REFUSALS & codes(answer), ("Apache Kafka", "ours")[side]


def test_topics_are_hidden_or_refused(guarded: Guarded) -> None:
    guarded.ask("Metadata", MetadataRequest(None), 12)
    guarded.may(O.DESCRIBE, T)
    guarded.ask("Metadata", MetadataRequest(None), 12)
    guarded.ask("Metadata", cases.named("t", "absent", "__consumer_offsets"), 12)
    guarded.ask("Metadata", cases.named("t", "absent", create=True), 12)
    guarded.may(O.DESCRIBE, T, "absent")
    guarded.ask("Metadata", cases.named("t", "absent", create=True), 12)

    def by_id(side: int) -> MetadataRequest:
        known = MetadataRequestTopic(guarded.ids[side], None)
        return MetadataRequest([known, MetadataRequestTopic(b"\1" * 16, None)])

    guarded.ask("Metadata", by_id, 12)
    guarded.reset()
    guarded.ask("Metadata", by_id, 12)


def test_authorized_operations_match(guarded: Guarded) -> None:
    guarded.may(O.READ, T)
    guarded.may(O.READ, G)
    shown = {
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
    }
    guarded.ask("Metadata", cases.named("t", "absent", **shown), 9)
    guarded.ask("DescribeCluster", DescribeClusterRequest(True), 0)
    guarded.ask("DescribeGroups", DescribeGroupsRequest(["g", "no"], True), 5)
    guarded.may(O.DESCRIBE, C)
    guarded.may(O.ALTER, C)
    guarded.ask("DescribeCluster", DescribeClusterRequest(True), 0)
    guarded.ask("Metadata", cases.named("t", **shown), 9)


def test_allowed_and_refused_topics_of_one_request(guarded: Guarded) -> None:
    guarded.may(O.WRITE, T)
    guarded.may(O.READ, T)
    guarded.ask("Produce", cases.produce("t", "absent"), 9, ("base_offset",))
    guarded.ask("Produce", cases.produce("__consumer_offsets"), 9)
    offsets = ("high_watermark", "last_stable_offset", "records", *BUT)
    guarded.ask("Fetch", cases.fetch("t", "absent"), 12, offsets)
    guarded.ask("ListOffsets", cases.list_offsets("absent", "t"), 7, ("[t]", ".offset"))
    guarded.may(O.READ, G)
    guarded.ask("OffsetCommit", cases.commit("absent", "t"), 8)
    guarded.ask("OffsetFetch", cases.offset_fetch("absent", "t"), 8)
    guarded.ask("OffsetFetch", cases.offset_fetch(), 8)
    guarded.may(O.WRITE, X)
    guarded.ask("AddPartitionsToTxn", cases.add_partitions("t", "absent"), 3)
    guarded.ask("AddPartitionsToTxn", cases.add_partitions("t", "__consumer_offsets"), 3)


def test_deny_rules_match(guarded: Guarded) -> None:
    guarded.may(O.READ, T)
    guarded.may(O.READ, T, permission=Permission.DENY)
    guarded.ask("Fetch", cases.fetch("t"), 12, BUT)
    guarded.ask("Metadata", cases.named("t"), 12)
    guarded.reset()
    guarded.may(O.READ, T)
    guarded.may(O.DESCRIBE, T, permission=Permission.DENY)
    guarded.ask("Metadata", cases.named("t"), 12)
    guarded.ask("Fetch", cases.fetch("t"), 12, ("high_water", "last_stable", "records", *BUT))
    guarded.reset()
    guarded.may(O.WRITE, T, "p", pattern=PatternType.PREFIXED)
    guarded.may(O.WRITE, T, "p", pattern=PatternType.PREFIXED, permission=Permission.DENY)
    guarded.ask("InitProducerId", InitProducerIdRequest(None), 4)


def test_groups_and_transactions_are_hidden(guarded: Guarded) -> None:
    guarded.ask("ListGroups", ListGroupsRequest(), 4)
    guarded.ask("ListTransactions", ListTransactionsRequest(), 1)
    guarded.ask("DescribeGroups", DescribeGroupsRequest(["a", "b"]), 5)
    guarded.ask("DeleteGroups", DeleteGroupsRequest(["a", "b", "a"]), 2)
    guarded.may(O.DESCRIBE, C)
    kafka, ours = (
        one.request(KEYS["ListGroups"], ListGroupsRequest()) for one in guarded.client.both
    )
    assert kafka.error_code == ours.error_code == 0


def test_topics_are_deleted_with_rights_only(guarded: Guarded) -> None:
    def by_id(side: int) -> DeleteTopicsRequest:
        known = DeleteTopicState(None, guarded.ids[side])
        return DeleteTopicsRequest([known], timeout_ms=5_000)

    names = [DeleteTopicState("t"), DeleteTopicState("absent")]
    for rights in ((), (T,)):
        for kind in rights:
            guarded.may(O.DESCRIBE, kind)
            guarded.may(O.DESCRIBE, kind, "absent")
        guarded.ask("DeleteTopics", by_id, 6)
        for name in names:
            guarded.ask("DeleteTopics", DeleteTopicsRequest([name], timeout_ms=5_000), 6)


def rule_request(*rows: tuple[int, str, int, str, str, int, int]) -> CreateAclsRequest:
    return CreateAclsRequest([AclCreation(*row) for row in rows])


WRONG = (
    (4, "x", 3, "User:a", "*", 3, 3),
    (2, "", 3, "User:a", "*", 3, 3),
    (99, "x", 3, "User:a", "*", 3, 3),
    (2, "x", 99, "User:a", "*", 3, 3),
    (2, "x", 3, "User:a", "*", 99, 3),
    (2, "x", 3, "User:a", "*", 3, 99),
    (2, "x", 3, "alice", "*", 3, 3),
    (2, "x", 3, "User:a", "host", 12, 3),
)


@pytest.mark.parametrize("row", WRONG, ids=str)
def test_wrong_rules_match(guarded: Guarded, row: Any) -> None:
    kafka, ours = guarded.admin.ask("CreateAcls", rule_request(row), 2)
    assert kafka.results[0].error_message == ours.results[0].error_message
    gone = DeleteAclsFilter(1, None, 1, "User:a", None, 1, 1)
    for one in guarded.admin.both:
        one.request(KEYS["DeleteAcls"], DeleteAclsRequest([gone]))


@pytest.mark.parametrize("at", range(4))
def test_zero_closes_the_connection(guarded: Guarded, at: int) -> None:
    values = [2, 3, 3, 3]
    values[at] = 0
    kind, pattern, operation, permission = values
    asked: list[tuple[str, Callable[[], Any]]] = [
        ("CreateAcls", lambda: rule_request((kind, "x", pattern, "User:a", "*", operation,
                                             permission))),
        ("DescribeAcls", lambda: DescribeAclsRequest(kind, None, pattern, None, None, operation,
                                                     permission)),
        ("DeleteAcls", lambda: DeleteAclsRequest([DeleteAclsFilter(
            kind, None, pattern, None, None, operation, permission)])),
    ]  # fmt: skip
    for api, request in asked:
        for address in guarded.addresses:
            one = connect(address, ADMIN)
            with pytest.raises(ClientError, match="closed"):
                one.request(KEYS[api], request(), at_most=2)
            one.close()


def test_filters_match(guarded: Guarded) -> None:
    rows = [
        (2, "foo", 3, "User:f", "*", 3, 3),
        (2, "fo", 4, "User:f", "*", 3, 3),
        (2, "*", 3, "User:f", "*", 3, 3),
        (2, "bar", 3, "User:f", "*", 3, 3),
        (2, "foo", 3, "User:f", "1.1.1.1", 2, 2),
    ]
    guarded.admin.ask("CreateAcls", rule_request(*rows, rows[0]), 2)
    guarded.wait(DescribeAclsRequest(2, None, 1, "User:f", None, 1, 1), 4)
    filters = [
        (2, "foo", 2, "User:f", None, 1, 1),
        (2, "foo", 1, "User:f", None, 1, 1),
        (2, "fo", 4, "User:f", None, 1, 1),
        (1, None, 3, "User:f", "*", 3, 1),
        (2, None, 1, "User:f", "1.1.1.1", 1, 2),
        (2, None, 1, "User:f", None, 2, 1),
        (3, None, 1, "User:f", None, 1, 1),
        (99, None, 1, "User:f", None, 1, 1),
    ]
    for row in filters:
        found = []
        for one in guarded.admin.both:
            answer = one.request(KEYS["DescribeAcls"], DescribeAclsRequest(*row), at_most=2)
            assert not answer.error_code
            found.append(
                {
                    (r.resource_type, r.resource_name, r.pattern_type, a.principal, a.host,
                     a.operation, a.permission_type)
                    for r in answer.resources for a in r.acls
                }
            )  # fmt: skip
        assert found[0] == found[1], row
    wrong = [DeleteAclsFilter(*row) for row in ((99, None, 1, None, None, 1, 1),
             (2, "no", 3, None, None, 99, 1), (2, "no", 3, None, None, 1, 1))]  # fmt: skip
    kafka, ours = guarded.admin.ask("DeleteAcls", DeleteAclsRequest(wrong), 2)
    texts = [[row.error_message for row in each.filter_results] for each in (kafka, ours)]
    assert texts[0] == texts[1]
    gone = [DeleteAclsFilter(*row) for row in (filters[2], (2, None, 1, "User:f", None, 1, 1))]
    removed = []
    for one in guarded.admin.both:
        answer = one.request(KEYS["DeleteAcls"], DeleteAclsRequest(gone), at_most=2)
        removed.append(
            [
                sorted((a.resource_name, a.pattern_type, a.host, a.error_code,
                        str(a.error_message)) for a in row.matching_acls)
                for row in answer.filter_results
            ]
        )  # fmt: skip
    assert removed[0] == removed[1]
    assert [len(each) for each in removed[OURS]] == [1, 5]
