"""`kafkawire groups` with streams groups, whose members are requests of this test.

Covers: kafkawire.client.groups, kafkawire.client.lag, kafkawire.cli.groups.commands,
kafkawire.cli.groups.reset_offsets, kafkawire.cli.groups.why.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from kafkawire.client.cluster import Cluster
from kafkawire.client.group_causes import Cause, Observation, causes
from kafkawire.client.groups import STREAMS, GroupDescription
from kafkawire.client.lag import GroupLag
from kafkawire.client.offsets import call_coordinator
from kafkawire.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest, Topology
from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed, no_environment, produce  # noqa: F401  (a fixture, by name)
from tests.kit.groups.streams import word_count

HEARTBEAT = 88
GROUP, TOPIC = "words", "t"


@pytest.fixture(name="server", scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with a topic of ten and five records."""
    settings = {
        "group.streams.initial.rebalance.delay.ms": "0",
        "group.streams.assignment.interval.ms": "0",
    }
    with BrokerProcess(tmp_path_factory.mktemp("streams"), settings=settings) as broker:
        assert Typed(broker.bootstrap, "topics", "create", TOPIC, "--partitions", "2").code == 0
        produce(broker.bootstrap, TOPIC, {0: 10, 1: 5})
        yield broker.bootstrap


def beat(
    cluster: Cluster, epoch: int, topology: Topology | None = None, number: int = 1, **more: Any
) -> Any:
    request = StreamsGroupHeartbeatRequest(
        GROUP,
        f"m{number}",
        epoch,
        rebalance_timeout_ms=30_000 if epoch == 0 else -1,
        topology=topology,
        process_id=f"p{number}" if epoch == 0 else None,
        active_tasks=[] if epoch == 0 else None,
        standby_tasks=[] if epoch == 0 else None,
        warmup_tasks=[] if epoch == 0 else None,
        **more,
    )
    answer = cluster.coordinator(GROUP).request(HEARTBEAT, request)
    assert not answer.error_code, answer.error_message
    return answer


def join(cluster: Cluster) -> int:
    """Join, and wait for tasks; the epoch."""
    answer = beat(cluster, 0, word_count())
    for _ in range(100):
        if answer.active_tasks:
            return int(answer.member_epoch)
        time.sleep(0.05)
        answer = beat(cluster, answer.member_epoch)
    raise AssertionError("nothing is assigned")


def test_life_of_a_streams_group(server: str) -> None:
    with Cluster(server) as cluster:
        call_coordinator(lambda: cluster.coordinator_id(GROUP))
        epoch = join(cluster)
        listed = Typed(server, "groups", "list", "--json").json
        assert [(row["group"], row["state"], row["type"]) for row in listed] == [
            (GROUP, "Stable", STREAMS)
        ]
        (group,) = Typed(server, "groups", "describe", GROUP, "--json").json
        assert (group["type"], group["epoch"], group["protocol"]) == (STREAMS, epoch, "sticky")
        (member,) = group["members"]
        assert (member["member"], member["epoch"], member["process"]) == ("m1", epoch, "p1")
        assert member["tasks"] == member["target_tasks"] == ["0:0,1", "1:0,1"]
        assert member["assigned"] == ["r:0,1", "t:0,1"]
        assert (member["standby"], member["warmup"]) == ([], [])
        assert group["topology"] == [
            {"subtopology": "0", "sources": ["t"], "sinks": ["r"], "changelogs": []},
            {"subtopology": "1", "sources": ["r"], "sinks": [], "changelogs": ["c"]},
        ]
        shown = Typed(server, "groups", "describe", GROUP, "--wide").out
        assert f"streams group in epoch {epoch}" in shown
        assert "words, topology" in shown
        (lag,) = Typed(server, "groups", "lag", GROUP, "--json").json
        assert lag["lag"] == 15
        why = Typed(server, "groups", "why", GROUP, "--observe", "0s", "--json").json
        assert "healthy" in {cause["cause"] for cause in why["causes"]}
        command = ("groups", "reset-offsets", GROUP, "--topic", TOPIC, "--to-offset", "4")
        refused = Typed(server, *command, "--execute")
        assert (refused.code, "is active: it is Stable with 1 member" in refused.err) == (1, True)
        # A second member restores its task with state before it runs it.
        beat(cluster, 0, word_count(), 2, task_offsets=[], task_end_offsets=[])
        (group,) = Typed(server, "groups", "describe", GROUP, "--json").json
        (member,) = (each for each in group["members"] if each["member"] == "m2")
        assert (member["tasks"], member["warmup"]) == ([], ["1:1"])
        assert member["target_tasks"] == ["0:1", "1:1"]
        beat(cluster, -1, number=2)
        beat(cluster, -1)
    assert Typed(server, *command, "--execute").code == 0
    (group,) = Typed(server, "groups", "describe", GROUP, "--json").json
    assert [(row["partition"], row["committed"], row["lag"]) for row in group["offsets"]] == [
        (0, 4, 6), (1, 4, 1),
    ]  # fmt: skip
    assert Typed(server, "groups", "delete", GROUP).code == 0
    assert Typed(server, "groups", "describe", GROUP).code == 1


def found(state: str, missing: list[str]) -> dict[str, Cause]:
    description = GroupDescription(
        "g", state, STREAMS, "sticky", 1, [], STREAMS, 3, 2, missing=missing
    )
    seen = Observation(GroupLag(description, []), 1_000_000)
    return {cause.kind: cause for cause in causes(seen)}


def test_why_a_streams_group_has_no_tasks() -> None:
    missing = found("NotReady", ["t", "u"])["not-ready"]
    assert missing.stuck
    assert "these topics of its topology do not exist: t, u." in missing.sentence
    assert "other numbers of partitions" in found("NotReady", [])["not-ready"].sentence
    assert "streams.assignment.interval.ms" in found("Assigning", [])["assigning"].sentence
