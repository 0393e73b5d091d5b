"""Snapshots: their requests, lists made from them, and the health that they show.

Covers: kafkawire.console.views.topics, kafkawire.console.views.health,
kafkawire.console.views.own.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest

from kafkawire.client.cluster import Cluster
from kafkawire.client.connection import ClientConnection
from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.lag import known_offsets
from kafkawire.client.offsets import LATEST, call_coordinator, commit, list_offsets
from kafkawire.console.views import snapshot
from kafkawire.console.views.groups import list_groups_page
from kafkawire.console.views.health import judge
from kafkawire.console.views.offset_map import RecordPlace
from kafkawire.console.views.own import OwnBroker
from kafkawire.console.views.parts import PAGE, ClusterFinding
from kafkawire.console.views.pool import ClusterPool
from kafkawire.console.views.snapshot import (
    ClusterSnapshot,
    GroupSnapshot,
    Known,
    NodeState,
    PartitionSnapshot,
    SnapshotCache,
    TopicSnapshot,
    count_snapshot,
    take_snapshot,
)
from kafkawire.console.views.topics import SORTS, describe_topic, list_topics
from kafkawire.messages.registry import TIER
from kafkawire.testing import InProcessBroker, TopicProducer, broker, create_topic
from tests.console.conftest import ORDERS, PARTITIONS, RECORDS


class NoPool(ClusterPool):
    """Lends nothing, for functions that use no cluster."""

    def lend(self) -> Any:
        return nullcontext()


def partition(index: int = 0, **values: Any) -> PartitionSnapshot:
    known = {"leader": 1, "replicas": (1,), "in_sync": (1,), "log_start": 0, "log_end": 10,
             "local_start": 0, "tiered_end": None}  # fmt: skip
    return PartitionSnapshot(index, **{**known, **values})


def made_of(
    topics: list[TopicSnapshot], groups: list[GroupSnapshot] | None = None, **values: Any
) -> ClusterSnapshot:
    return ClusterSnapshot(
        1000, "id", 1, (NodeState(1, "host", 9092, None),),
        {topic.name: topic for topic in topics},
        {group.group: group for group in groups or []}, **values,
    )  # fmt: skip


def topic(name: str, *partitions: PartitionSnapshot, internal: bool = False) -> TopicSnapshot:
    return TopicSnapshot(name, bytes(16), internal, partitions or (partition(),))


def group(name: str, lag: int | None, topics: dict[str, int], **values: Any) -> GroupSnapshot:
    known = {"state": "Stable", "kind": "classic", "members": 1, "committed": {}}
    return GroupSnapshot(group=name, lag=lag, topics=topics, **{**known, **values})


def test_number_of_requests_does_not_depend_on_topics(
    running: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: Counter[str] = Counter()
    request, request_own = ClientConnection.request, ClientConnection.request_own

    def counted(self: ClientConnection, key: int, message: object, **options: Any) -> Any:
        sent[type(message).__name__] += 1
        return request(self, key, message, **options)

    def counted_own(self: ClientConnection, key: int, message: object) -> Any:
        sent[type(message).__name__] += 1
        return request_own(self, key, message)

    with Cluster(running.bootstrap) as cluster:
        own = OwnBroker()
        take_snapshot(cluster, own)
        monkeypatch.setattr(ClientConnection, "request", counted)
        monkeypatch.setattr(ClientConnection, "request_own", counted_own)
        few = take_snapshot(cluster, own)
        before, sent = sent.copy(), Counter()
        for number in range(30):
            create_topic(running.bootstrap, f"many-{number}", partitions=2)
            name, at = f"group-{number}", {(f"many-{number}", 0): 0, (f"many-{number}", 1): 0}
            call_coordinator(lambda name=name, at=at: commit(cluster, name, at))  # type: ignore[misc]
        sent.clear()
        many = take_snapshot(cluster, own)
        assert len(many.topics) >= len(few.topics) + 30
        assert len(many.groups) >= 30
        assert many.groups["group-7"].topics == {"many-7": 0}
        # The first group of a cluster needs two that describe groups and read their offsets.
        assert sent - before <= Counter(["DescribeGroupsRequest", "OffsetFetchRequest"])
        assert "GroupActivityRequest" not in sent
    assert own.known is True


def test_large_cluster_has_names_first_and_the_same_numbers_later(
    running: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(running.bootstrap) as cluster:
        own = OwnBroker()
        call_coordinator(lambda: commit(cluster, "numbers", {(ORDERS, 0): 5}))
        whole = take_snapshot(cluster, own)
        monkeypatch.setattr(snapshot, "MAX_COUNTED_AT_ONCE", 1)
        names = take_snapshot(cluster, own)
        assert (whole.counted, names.counted) == (True, False)
        assert (names.topics.keys(), names.groups.keys()) == (
            whole.topics.keys(),
            whole.groups.keys(),
        )
        assert names.groups["numbers"].lag is None
        counted = count_snapshot(cluster, own, names)
    assert counted.groups["numbers"].lag == RECORDS // PARTITIONS - 5
    assert counted.topics == whole.topics
    assert counted.groups == whole.groups


def test_offsets_are_known_next_to_a_partition_with_an_error(running: InProcessBroker) -> None:
    wrong = {(ORDERS, PARTITIONS): 1, ("absent", 0): 1}
    with Cluster(running.bootstrap) as cluster:
        led_by = {(ORDERS, 0): 1, **wrong}
        found = known_offsets(cluster, led_by, LATEST, led_by)
        assert found == {(ORDERS, 0): RECORDS // PARTITIONS}
        with pytest.raises(BrokerError, match=f"{ORDERS}-{PARTITIONS}"):
            list_offsets(cluster, dict.fromkeys(wrong, LATEST), led_by)


def test_pages_wait_for_names_only_and_numbers_follow() -> None:
    counting, may_end = threading.Event(), threading.Event()
    now, taken = 100.0, 0

    def take(cluster: Cluster, own: OwnBroker) -> ClusterSnapshot:
        nonlocal taken
        taken += 1
        return made_of([topic(f"t{taken}", partition(log_end=None))], counted=False)

    def count(cluster: Cluster, own: OwnBroker, found: ClusterSnapshot) -> ClusterSnapshot:
        counting.set()
        may_end.wait(60)
        return made_of([topic(f"t{taken}", partition(log_end=taken))])

    cache = SnapshotCache(NoPool("127.0.0.1:1"), OwnBroker(), lambda: now, take, count)
    first = cache.read()
    assert counting.wait(60)
    assert first.snapshot is not None
    assert (list(first.snapshot.topics), first.snapshot.counted) == (["t1"], False)
    assert "their numbers follow" in judge(first).sentence
    assert cache.read() is first, "no page waits for the numbers"
    may_end.set()
    cache.close()
    second = cache.read()
    assert second.snapshot is not None
    assert second.snapshot.counted
    now += snapshot.FRESH_S
    may_end.clear()
    assert cache.read() is second, "numbers stay until there are newer ones"
    may_end.set()
    cache.close()
    third = cache.read()
    assert third.rates == {}
    assert third.snapshot is not None
    assert list(third.snapshot.topics) == ["t2"]


def test_failure_of_a_large_cluster_is_published_and_ends() -> None:
    now, fails = 100.0, False

    def take(cluster: Cluster, own: OwnBroker) -> ClusterSnapshot:
        if fails:
            raise ClientError("it is gone")
        return made_of([topic("t")], counted=False)

    cache = SnapshotCache(
        NoPool("127.0.0.1:1"),
        OwnBroker(),
        lambda: now,
        take,
        lambda _, __, found: made_of([topic("t")]),
    )
    cache.read()
    cache.close()
    fails = True
    for later in (snapshot.FRESH_S, snapshot.FRESH_S + snapshot.STALE_S):
        now += later
        cache.read()
        cache.close()
        assert cache.read().failure == "it is gone"
    fails = False
    now += snapshot.FRESH_S
    cache.read()
    cache.close()
    assert cache.read().failure == ""


def test_cache_asks_once_for_all_readers() -> None:
    taken = 0
    now = 100.0
    begun, may_end = threading.Event(), threading.Event()

    def take(cluster: Cluster, own: OwnBroker) -> ClusterSnapshot:
        nonlocal taken
        taken += 1
        if taken > 1:
            begun.set()
            may_end.wait(60)
        return made_of([topic("t", partition(log_end=taken))])

    cache = SnapshotCache(NoPool("127.0.0.1:1"), OwnBroker(), lambda: now, take)
    first = cache.read()
    assert cache.read() is first
    now += 3
    thread = threading.Thread(target=cache.read)
    thread.start()
    assert begun.wait(60)
    assert cache.read() is first, "others see the last one while the next is taken"
    may_end.set()
    thread.join(60)
    assert taken == 2
    assert cache.read() is not first


def test_findings_are_read_with_the_numbers_and_less_often() -> None:
    now, asked, fails = 100.0, 0, False

    def find(
        cluster: Cluster, own: OwnBroker, found: ClusterSnapshot, refused: list[str]
    ) -> list[ClusterFinding]:
        nonlocal asked
        asked += 1
        if fails:
            raise ClientError("broker 1 is gone")
        return [ClusterFinding(True, f"wrong in {', '.join(found.topics)}")]

    cache = SnapshotCache(
        NoPool("127.0.0.1:1"), OwnBroker(), lambda: now, lambda *_: made_of([topic("t")]), find=find
    )
    assert [each.sentence for each in judge(cache.read()).findings] == ["wrong in t"]
    now += snapshot.FOUND_S - 1
    assert (judge(cache.read()).state, asked) == ("broken", 1)
    now, fails = now + 1 + snapshot.FRESH_S, True
    gone = judge(cache.read())
    assert ([each.sentence for each in gone.findings], asked) == (["Broker 1 is gone."], 2)
    assert gone.state == "warning"


def test_slow_snapshot_is_shown_for_longer() -> None:
    now, taken = 100.0, 0

    def take(cluster: Cluster, own: OwnBroker) -> ClusterSnapshot:
        nonlocal now, taken
        taken += 1
        now += 3
        return made_of([])

    cache = SnapshotCache(NoPool("127.0.0.1:1"), OwnBroker(), lambda: now, take)
    cache.read()
    for _ in range(29):
        now += 1
        cache.read()
    assert taken == 1
    now += 2
    cache.read()
    assert taken == 2


def test_another_kafka_is_asked_once_for_what_it_does_not_know() -> None:
    with broker() as other:
        create_topic(other.bootstrap, "t")
        TopicProducer(other.bootstrap).send("t", b"v")
        fault = other.drop(TIER, times=None)
        own = OwnBroker()
        with Cluster(other.bootstrap) as cluster:
            for _ in range(3):
                assert take_snapshot(cluster, own).topics["t"].records == 1
                (shown,) = describe_topic(cluster, own, "t").maps
                assert [span.place for span in shown.spans] == [RecordPlace.BROKER]
                assert not shown.exact
        assert fault.used == 1


def test_failure_keeps_the_last_snapshot_with_a_sentence() -> None:
    now = 100.0
    pool = ClusterPool("127.0.0.1:1")
    cache = SnapshotCache(pool, OwnBroker(), lambda: now)
    known = cache.read()
    assert known.snapshot is None
    assert "cannot connect to 127.0.0.1:1" in known.failure
    assert judge(known).sentence == "The broker does not answer."


def test_ten_thousand_topics_are_listed_by_pages() -> None:
    topics = [topic(f"topic-{number:05}") for number in range(10_000)]
    known = Known(made_of(topics), rates={"topic-00042": 7.0})
    found = list_topics(known, "TOPIC-0004", page=1)
    assert (found.matching, found.total, found.pages) == (10, 10_000, 1)
    last = list_topics(known, page=10_000)
    assert (last.page, last.pages, len(last.rows)) == (100, 100, PAGE)
    assert list_topics(known, sort="rate").rows[0].name == "topic-00042"


@pytest.mark.parametrize("sort", SORTS)
def test_orders_of_topics(sort: str) -> None:
    last = topic("z", partition(0, log_end=50, tiered_end=25), partition(1))
    known = Known(
        made_of([topic("a"), last, topic("__internal", internal=True)], [group("g", 5, {"z": 5})]),
        rates={"z": 1.0},
    )
    found = list_topics(known, sort=sort)
    assert [row.name for row in found.rows] == (["a", "z"] if sort == "name" else ["z", "a"])
    row = next(row for row in found.rows if row.name == "z")
    assert (row.records, row.tier_share, row.worst) == (60, 25 / 60, ("g", 5))
    assert list_topics(known, internal=True).matching == 3


def test_groups_are_sorted_by_lag() -> None:
    groups = [group("a", 1, {}), group("b", None, {}, error="refused"), group("c", 9, {})]
    known = Known(made_of([], groups))
    assert [row.group for row in list_groups_page(known).rows] == ["c", "a", "b"]
    assert [row.group for row in list_groups_page(known, "A", "name").rows] == ["a"]


def test_health_names_what_is_wrong() -> None:
    well = judge(Known(made_of([topic("t")], [group("g", 5, {"t": 5})])))
    assert well.well
    assert well.sentence == "All well. 1 topic, 0 records/s in, 1 group with a lag of 5."
    wrong = judge(
        Known(
            made_of(
                [topic("lost", partition(leader=-1)), topic("behind", partition(replicas=(1, 2)))],
                [group("idle", 7, {}, members=0), group("odd", None, {}, error="no right")],
                refused=("groups of broker 1: refused",),
            ),
            found=(ClusterFinding(True, "The tier is paused."),),
        )
    )  # fmt: skip
    assert not wrong.well
    assert [finding.sentence for finding in wrong.findings] == [
        "1 partition of lost: no leader, not served.",
        "1 partition of behind: a replica is not in sync.",
        "The tier is paused.",
        "Group idle has a lag of 7 and no members.",
        "Group odd: no right.",
        "groups of broker 1: refused.",
    ]
    assert wrong.sentence.startswith("6 problems. ")


def test_pool_closes_connections_after_a_failure(running: InProcessBroker) -> None:
    pool = ClusterPool(running.bootstrap)
    with pool.lend() as first:
        pass
    with pool.lend() as again:
        assert again is first
    with pytest.raises(ValueError, match="a defect"), pool.lend():
        raise ValueError("a defect")
    with pool.lend() as other:
        assert other is not first
    pool.close()


def test_pool_refuses_more_callers_than_it_serves(
    running: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kafkawire.console.views import pool as module

    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    pool = ClusterPool(running.bootstrap)
    with ExitStack() as stack:
        for _ in range(module.MAX_CLUSTERS):
            stack.enter_context(pool.lend())
        with pytest.raises(ClientError, match="the console is busy"), pool.lend():
            pass
    pool.close()
