"""No request holds the event loop for more than 5 ms of CPU time where 10,000 access rules are
enforced: tests/broker/test_event_loop_time.py, with an authorizer.

Covers: kafkawire.handlers.failures, kafkawire.security.acls.index.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.codec.compile import encode
from kafkawire.handlers.table import ROWS, ApiRow
from kafkawire.messages.create_acls import AclCreation, CreateAclsRequest
from kafkawire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kafkawire.messages.registry import APIS
from kafkawire.security.acls.model import Acl, Operation, Permission, ResourceKind
from tests.broker.test_event_loop_time import check
from tests.kit.access_cases import rule
from tests.kit.codec.extremes import TOPIC, frame
from tests.kit.loop_time import MeasuredBroker, measured

RULES = 10_000
ALL, KINDS = Operation.ALL, (ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.TRANSACTIONAL_ID)

LISTS = [
    row for row in ROWS if row.key in (9, 20, 23, 29, 30, 31, 32, 37, 42, 47, 48, 49, 50, 51, 69)
]
"""APIs whose items are each checked on their own."""


def rules(*, allowed: bool) -> list[Acl]:
    """Of other topics, and one about all resources of each type."""
    found = [rule(Operation.WRITE, KINDS[0], f"other-{number}") for number in range(RULES - 5)]
    found.append(rule(ALL, KINDS[0], "other-9", permission=Permission.DENY))
    permission = Permission.ALLOW if allowed else Permission.DENY
    found += [rule(ALL, kind, "*", permission=permission) for kind in KINDS]
    found.append(rule(ALL, ResourceKind.CLUSTER, permission=permission))
    return found


@pytest.fixture(scope="module", params=[True, False], ids=["allowed", "refused"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MeasuredBroker]:
    """All is allowed until there is the first rule."""
    data: Path = tmp_path_factory.mktemp("guarded")
    settings = {"authorizer": "acl", "allow_everyone_if_no_acl_found": "true"}
    with measured(data / "data", **settings) as started:
        topic = CreatableTopic(name=TOPIC, num_partitions=200, replication_factor=1)
        started.ask(frame(19, 7, encode(CreateTopicsRequest(topics=[topic]), 7)))
        asked = [AclCreation(*acl) for acl in rules(allowed=request.param)]
        started.ask(frame(30, 3, encode(CreateAclsRequest(asked), 3)))
        assert started.server.broker.security.acls is not None
        assert len(started.server.broker.security.acls) == len(asked)
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("row", [pytest.param(row, id=APIS[row.key].name) for row in ROWS])
def test_request_is_checked_in_slices(broker: MeasuredBroker, row: ApiRow) -> None:
    check(broker, row, row.max_version, 1500)


@pytest.mark.slow
@pytest.mark.parametrize("row", [pytest.param(row, id=APIS[row.key].name) for row in LISTS])
def test_maximum_entries_are_checked_in_slices(broker: MeasuredBroker, row: ApiRow) -> None:
    check(broker, row, row.max_version, 24_000)
