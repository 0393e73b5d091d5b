"""Markers on their way: one queue per broker, bounded requests, retries, leaders that move."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.transactions import marker_sender
from kafkawire.transactions.machine.decision import SendMarkers
from kafkawire.transactions.machine.transaction import TopicPartition
from kafkawire.transactions.marker_sender import Leader, MarkerSender, Results
from tests.kit.env import sim_env
from tests.kit.groups.log import fake_env
from tests.kit.memfs import MemFileSystem
from tests.kit.simloop import SimLoop, run
from tests.kit.transactions.bench import FakeCluster
from tests.kit.transactions.desk import T0, T1

OK, LOST = ErrorCode.NONE, ErrorCode.NETWORK_EXCEPTION


def work(*partitions: TopicPartition, id_: str = "T") -> SendMarkers:
    return SendMarkers(id_, 1, 2, True, 3, 2, frozenset(partitions or (T0,)))


class Reports:
    """Takes results, as a coordinator does."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[TopicPartition, Any]]] = []

    def take(self, done: SendMarkers, results: Results) -> None:
        assert set(results) <= done.partitions
        self.got.append((done.transactional_id, dict(results)))


async def spin() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


@pytest.fixture(name="cluster")
def open_cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture(name="sender")
def open_sender(cluster: FakeCluster) -> MarkerSender:
    return MarkerSender(fake_env(), cluster)


@pytest.fixture(name="reports")
def open_reports() -> Reports:
    return Reports()


async def test_each_broker_gets_its_partitions(
    sender: MarkerSender, cluster: FakeCluster, reports: Reports
) -> None:
    cluster.leaders = {T1: Leader(2, 0)}
    sender.send(work(T0, T1), reports.take)
    assert not reports.got  # never from within the call
    await spin()
    sent = [(broker, set(each.partitions)) for broker, each in cluster.sent]
    assert sent == [(1, {T0}), (2, {T1})]
    assert reports.got == [("T", {T0: OK}), ("T", {T1: OK})]


async def test_what_waits_for_a_broker_goes_together(
    sender: MarkerSender, cluster: FakeCluster, reports: Reports
) -> None:
    cluster.held = asyncio.Event()
    sender.send(work(id_="a"), reports.take)
    await spin()
    for name in "bcd":
        sender.send(work(id_=name), reports.take)
    await spin()
    assert (cluster.requests, sender.waiting) == (1, 3)
    cluster.held.set()
    await spin()
    assert (cluster.requests, sender.waiting) == (2, 0)
    assert [name for name, _ in reports.got] == ["a", "b", "c", "d"]


async def test_a_request_is_bounded(
    sender: MarkerSender, cluster: FakeCluster, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marker_sender, "MAX_MARKERS_AT_ONCE", 4)
    sender.send(work(*(("t", n) for n in range(10))), reports.take)
    sender.send(work(T0, T1, id_="u"), reports.take)  # does not wait for all of the others
    await spin()
    assert cluster.requests == 4
    assert [len(each.partitions) for _, each in cluster.sent] == [2, 4, 4, 2]
    assert len(reports.got) == 4


async def test_many_markers_are_queued_in_slices(
    sender: MarkerSender, cluster: FakeCluster, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others run in between; a coordinator that is unloaded meanwhile takes no more."""
    monkeypatch.setattr(marker_sender, "MAX_MARKERS_AT_ONCE", 4)
    cluster.held = asyncio.Event()
    sender.send(work(*(("t", n) for n in range(100))), reports.take)
    assert sender.append_at_once(work()) is None
    await asyncio.sleep(0)
    assert 0 < sender.waiting < 100
    sender.clear_queue(reports.take)
    cluster.held.set()
    await spin()
    assert sender.waiting == 0
    assert cluster.requests <= 1


async def test_a_partition_that_is_gone_is_reported(
    sender: MarkerSender, cluster: FakeCluster, reports: Reports, caplog: pytest.LogCaptureFixture
) -> None:
    """A marker for a deleted topic."""
    cluster.leaders = {T1: None}
    sender.send(work(T0, T1), reports.take)
    assert reports.got == [("T", {T1: None})]
    assert "written to 1 partition of its transaction" in caplog.text
    await spin()
    assert reports.got[1:] == [("T", {T0: OK})]


async def test_a_leader_that_changes_while_its_markers_wait(
    sender: MarkerSender, cluster: FakeCluster, reports: Reports
) -> None:
    cluster.held = asyncio.Event()
    sender.send(work(id_="a"), reports.take)
    await spin()
    sender.send(work(T1, id_="b"), reports.take)
    sender.send(work(T0, id_="c"), reports.take)
    cluster.leaders = {T1: Leader(1, 5)}  # the same broker, since a later epoch
    cluster.held.set()
    await spin()
    assert ("b", {T1: ErrorCode.NOT_LEADER_OR_FOLLOWER}) in reports.got
    assert [each.transactional_id for _, each in cluster.sent] == ["a", "c"]


def test_a_broker_that_does_not_answer_is_tried_more_and_more_slowly() -> None:
    loop = SimLoop()
    cluster, reports = FakeCluster(), Reports()
    times: list[float] = []

    async def main() -> None:
        sender = MarkerSender(
            sim_env(loop, random.Random(1), MemFileSystem(random.Random(2))), cluster
        )

        def again(done: SendMarkers, results: Results) -> None:
            reports.take(done, results)
            times.append(loop.now)
            if results[T0] is LOST:
                if len(times) == 5:
                    cluster.failing = None
                sender.send(done, again)

        cluster.failing = KafkaError(ErrorCode.BROKER_NOT_AVAILABLE)
        sender.send(work(), again)
        await sender._env.sleep(60)

    run(loop, main())
    assert [results for _, results in reports.got] == [{T0: LOST}] * 5 + [{T0: OK}]
    waits = [after - before for before, after in pairwise(times)]
    assert waits == sorted(waits)
    assert waits[0] <= 0.5
    assert waits[-1] <= marker_sender.MAX_WAIT_S


async def test_a_code_that_is_missing_counts_as_lost(
    sender: MarkerSender, cluster: FakeCluster, reports: Reports
) -> None:
    async def half(broker: int, works: Any) -> Any:
        return [{T0: OK} for _ in works]

    cluster.write_markers = half  # type: ignore[method-assign, assignment]
    sender.send(work(T0, T1), reports.take)
    await spin()
    assert reports.got == [("T", {T0: OK, T1: LOST})]


async def test_an_unloaded_coordinator_is_forgotten(
    sender: MarkerSender, cluster: FakeCluster, reports: Reports
) -> None:
    cluster.held = asyncio.Event()
    other = Reports()
    sender.send(work(id_="a"), reports.take)
    await spin()
    sender.send(work(id_="b"), reports.take)
    sender.send(work(id_="c"), other.take)
    sender.clear_queue(reports.take)
    cluster.held.set()
    await spin()
    assert [each.transactional_id for _, each in cluster.sent] == ["a", "c"]
    assert [name for name, _ in other.got] == ["c"]


async def test_after_the_end_nothing_is_sent(
    sender: MarkerSender, cluster: FakeCluster, reports: Reports
) -> None:
    sender.send(work(), reports.take)
    sender.close()
    sender.send(work(), reports.take)
    await spin()
    assert not cluster.sent
