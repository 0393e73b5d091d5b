"""`kafkawire groups` with share groups, whose members are requests of this test.

Covers: kafkawire.client.share_groups, kafkawire.client.groups, kafkawire.client.lag,
kafkawire.cli.groups.commands, kafkawire.cli.groups.reset_offsets, kafkawire.cli.groups.why.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kafkawire.client.cluster import Cluster
from kafkawire.client.group_causes import Cause, Observation, causes
from kafkawire.client.groups import SHARE, GroupDescription, GroupMember
from kafkawire.client.lag import GroupLag, PartitionLag
from kafkawire.client.offsets import call_coordinator
from kafkawire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed, no_environment, produce  # noqa: F401  (a fixture, by name)

HEARTBEAT = 76
GROUP, TOPIC = "pool", "jobs"


@pytest.fixture(name="server", scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with a topic of ten and five records."""
    settings = {"share.coordinator.state.topic.num.partitions": "2"}
    with BrokerProcess(tmp_path_factory.mktemp("share"), settings=settings) as broker:
        assert Typed(broker.bootstrap, "topics", "create", TOPIC, "--partitions", "2").code == 0
        produce(broker.bootstrap, TOPIC, {0: 10, 1: 5})
        yield broker.bootstrap


def join(cluster: Cluster, member: str) -> int:
    """Join, and wait for both partitions; the epoch."""
    epoch, topics = 0, [TOPIC]
    for _ in range(100):
        beat = ShareGroupHeartbeatRequest(GROUP, member, epoch, None, topics if not epoch else None)
        answer = cluster.coordinator(GROUP).request(HEARTBEAT, beat)
        assert not answer.error_code, answer.error_message
        epoch = answer.member_epoch
        assigned = answer.assignment.topic_partitions if answer.assignment is not None else []
        if any(len(row.partitions) == 2 for row in assigned):
            return int(epoch)
        time.sleep(0.05)
    raise AssertionError("nothing is assigned")


def offsets(server: str) -> list[tuple[object, ...]]:
    (group,) = Typed(server, "groups", "describe", GROUP, "--json").json
    return [(row["partition"], row["committed"], row["lag"]) for row in group["offsets"]]


def test_life_of_a_share_group(server: str) -> None:
    with Cluster(server) as cluster:
        call_coordinator(lambda: cluster.coordinator_id(GROUP))
        epoch = join(cluster, "m1")
        listed = Typed(server, "groups", "list", "--json").json
        assert [(row["group"], row["state"], row["type"]) for row in listed] == [
            (GROUP, "Stable", SHARE)
        ]
        (group,) = Typed(server, "groups", "describe", GROUP, "--json").json
        assert (group["type"], group["epoch"], group["protocol"]) == (SHARE, epoch, "simple")
        (member,) = group["members"]
        assert (member["member"], member["epoch"], member["target"]) == ("m1", epoch, None)
        assert member["assigned"] == [f"{TOPIC}:0,1"]
        assert [row["member"] for row in group["offsets"]] == [None, None]
        assert offsets(server) == [(0, None, None), (1, None, None)]
        assert f"share group in epoch {epoch}" in Typed(server, "groups", "describe", GROUP).out
        why = Typed(server, "groups", "why", GROUP, "--observe", "0s", "--json").json
        assert {cause["cause"] for cause in why["causes"]} == {"healthy", "never-read"}
        command = ("groups", "reset-offsets", GROUP, "--topic", TOPIC, "--to-offset", "4")
        refused = Typed(server, *command, "--execute")
        assert (refused.code, "is active: it is Stable with 1 member" in refused.err) == (1, True)
        leave = ShareGroupHeartbeatRequest(GROUP, "m1", -1, None, None)
        assert not cluster.coordinator(GROUP).request(HEARTBEAT, leave).error_code
    planned = Typed(server, *command, "--json").json
    assert [(row["from"], row["to"]) for row in planned] == [(None, 4), (None, 4)]
    assert offsets(server) == [(0, None, None), (1, None, None)]
    assert Typed(server, *command, "--execute").code == 0
    assert offsets(server) == [(0, 4, 6), (1, 4, 1)]
    shift = ("groups", "reset-offsets", GROUP, "--all-topics", "--shift-by", "-1", "--execute")
    assert Typed(server, *shift).code == 0
    assert offsets(server) == [(0, 3, 7), (1, 3, 2)]
    (lag,) = Typed(server, "groups", "lag", "--json").json
    assert (lag["group"], lag["state"], lag["lag"]) == (GROUP, "Empty", 9)
    why = Typed(server, "groups", "why", GROUP, "--observe", "0s", "--json").json
    assert [cause["cause"] for cause in why["causes"]] == ["no-members"]
    assert Typed(server, "groups", "delete", GROUP).code == 0
    assert Typed(server, "groups", "describe", GROUP).code == 1


def row(index: int, committed: int | None, left: int | None, owner: str | None) -> PartitionLag:
    place = ("t", index)
    return PartitionLag(place, committed, None, owner, 0, 10, 10, 1, shared=True, left=left)


def found(rows: list[PartitionLag], before: list[PartitionLag] | None = None) -> dict[str, Cause]:
    owned = [each.partition for each in rows if each.owner]
    member = GroupMember("m1", None, "c", "/h", owned, ["t"], 3)
    description = GroupDescription("g", "Stable", SHARE, "simple", 1, [member], SHARE, 3, 3)
    earlier = None if before is None else GroupLag(description, before)
    seen = Observation(GroupLag(description, rows), 1_000_000, earlier, 2.0 if before else 0.0)
    return {cause.kind: cause for cause in causes(seen)}


def test_causes_of_a_share_group() -> None:
    assert list(found([row(0, 10, 0, "m1")])) == ["healthy"]
    # Records after the first unfinished one that are finished do not count.
    assert "lag 2 over" in found([row(0, 4, 2, "m1")])["healthy"].sentence
    assert found([row(0, None, None, "m1")])["never-read"].partitions == [("t", 0)]
    assert found([row(0, 3, 7, "m1"), row(1, None, None, None)])["not-assigned"].partitions == [
        ("t", 1)
    ]


def test_progress_of_a_share_group() -> None:
    stopped = found([row(0, 4, 6, "m1")], [row(0, 4, 6, "m1")])["no-progress"]
    assert stopped.sentence == "No record was acknowledged in 2 s, with a lag of 6."
    # The first record is still unfinished, others after it are not.
    assert "no-progress" not in found([row(0, 4, 3, "m1")], [row(0, 4, 6, "m1")])
