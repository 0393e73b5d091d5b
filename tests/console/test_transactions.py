"""The page of transactions.

Covers: kafkawire.console.pages.cluster, kafkawire.console.views.transactions.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from starlette.testclient import TestClient

from kafkawire.client.cluster import Cluster
from kafkawire.client.offsets import call_coordinator, commit
from kafkawire.client.security import security_of
from kafkawire.console.app import application
from kafkawire.console.views import transactions
from kafkawire.console.views.own import OwnBroker
from kafkawire.console.views.snapshot import take_snapshot
from kafkawire.console.views.transactions import describe_open
from kafkawire.console.web.frame import ConsoleOptions
from kafkawire.testing import InProcessBroker, broker, create_topic
from tests.console.test_pages import HOSTILE, check_page

pytestmark = pytest.mark.real
HELD, FREE = "held", "free"


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessBroker]:
    """A broker with an open transaction of each hostile name that writes to HELD; group "waits" has
    read all that is committed, group "reads" has not."""
    users = {"alice": "secret"}
    with broker(users=users, acls=[("alice", "Describe", f"topic:{HELD}")]) as started:
        for topic in (HELD, FREE):
            create_topic(started.bootstrap, topic)
        opened = []
        for number, name in enumerate((*HOSTILE, "done")):
            producer = Producer(
                {"bootstrap.servers": started.bootstrap, "transactional.id": name,
                 "transaction.timeout.ms": 600_000, "log_level": 0}
            )  # fmt: skip
            producer.init_transactions()
            producer.begin_transaction()
            producer.produce(FREE if name == "done" else HELD, b"%d" % number)
            producer.flush()
            if name == "done":
                producer.commit_transaction()
            opened.append(producer)
        with Cluster(started.bootstrap) as cluster:
            for group, topic, offset in (("waits", HELD, 0), ("reads", FREE, 0)):
                call_coordinator(
                    lambda group=group, at=((topic, 0), offset): commit(  # type: ignore[misc]
                        cluster, group, dict([at])
                    )
                )
        yield started
        for producer in opened[:-1]:
            producer.abort_transaction()


def test_open_transactions_and_what_they_hold_back(running: InProcessBroker) -> None:
    with Cluster(running.bootstrap) as cluster:
        found = describe_open(cluster, take_snapshot(cluster, OwnBroker()))
    assert {row.transactional_id for row in found.opened.rows} == set(HOSTILE)
    started = [row.started_ms or 0 for row in found.opened.rows]
    assert started == sorted(started)
    assert found.opened.rows[0].partitions == [f"{HELD}:0"]
    assert not found.opened.rows[0].overdue
    (held,) = found.held
    assert (held.partition, held.stable, held.log_end) == ((HELD, 0), 0, len(HOSTILE))
    assert held.opened is not None
    assert (held.transactional_id, held.opened.start_offset) == (HOSTILE[0], 0)
    assert (held.groups, found.more_held, found.refused) == (["waits"], 0, [])


def test_what_is_left_out_is_counted(
    running: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MAX_DESCRIBED", 2)
    monkeypatch.setattr(transactions, "MAX_HELD", 0)
    with Cluster(running.bootstrap) as cluster:
        found = describe_open(cluster, take_snapshot(cluster, OwnBroker()))
    assert (found.opened.total, found.total) == (2, len(HOSTILE))
    assert (found.held, found.more_held) == ([], 1)


def test_hostile_transactional_ids_are_text(running: InProcessBroker) -> None:
    app = application(ConsoleOptions(running.bootstrap, ("127.0.0.1",)))
    with TestClient(app, base_url="http://127.0.0.1") as pages:
        answer = pages.get("/transactions")
        others = [pages.get(path).text for path in ("/", f"/topics/{HELD}")]
        free = pages.get(f"/topics/{FREE}").text
    assert answer.status_code == 200
    check_page(answer.text)
    assert "waits" in answer.text
    finding = f"Readers of committed records stop at offset 0 of {HELD}:0"
    for text in (answer.text, *others):
        assert finding in text
        assert "End it in its producer" in text
    assert finding not in free


def test_user_without_rights_sees_no_names_of_others(running: InProcessBroker) -> None:
    given = running.client_settings("alice")
    with Cluster(given["bootstrap.servers"], security=security_of(given)) as cluster:
        found = describe_open(cluster, take_snapshot(cluster, OwnBroker()))
    assert found.opened.rows == []
    (held,) = found.held
    assert (held.transactional_id, held.opened) == (None, None)
    assert "TOPIC_AUTHORIZATION_FAILED" in held.error
