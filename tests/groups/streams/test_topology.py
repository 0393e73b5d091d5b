"""The topology of a streams group: its checks, the partitions of internal topics, statuses.

Covers: kafkawire.groups.model.streams_topics.
"""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import ErrorCode as E
from kafkawire.codec.errors import KafkaError
from kafkawire.groups.model.streams_topics import ConfiguredTopology, Status
from kafkawire.groups.streams.topology import check_topology, configure
from kafkawire.messages.stored import StreamsGroupTopologyValue
from kafkawire.messages.streams_group_heartbeat import CopartitionGroup, Subtopology
from tests.kit.groups.log import FakeTopics
from tests.kit.groups.streams import topic, word_count


def configured(*subtopologies: Subtopology, **topics: int) -> ConfiguredTopology:
    check_topology(subtopologies)
    return configure(StreamsGroupTopologyValue(0, list(subtopologies)), FakeTopics(topics))


def created(found: ConfiguredTopology) -> dict[str, int]:
    return {each.name: each.num_partitions for each in found.missing}


def test_internal_topics_get_the_partitions_of_their_sources() -> None:
    found = configured(*word_count().subtopologies, t=5)
    assert created(found) == {"c": 5, "r": 5}
    assert {name: each.tasks for name, each in found.subtopologies.items()} == {"0": 5, "1": 5}
    assert found.fault == (Status.MISSING_INTERNAL_TOPICS, "Internal topics are missing: c, r")
    changelog = found.missing[0]
    assert [(each.name, each.value) for each in changelog.configs] == [
        ("cleanup.policy", "compact")
    ]
    assert changelog.replication_factor == -1
    ready = configured(*word_count().subtopologies, t=5, r=5, c=5)
    assert (ready.fault, ready.missing) == (None, ())


def test_the_largest_source_decides_on_tasks() -> None:
    one = Subtopology("0", ["t", "u"], state_changelog_topics=[topic("c")])
    found = configured(one, t=2, u=7)
    assert (found.subtopologies["0"].tasks, created(found)) == (7, {"c": 7})


def test_repartition_topics_follow_each_other_in_any_order() -> None:
    chain = [
        Subtopology("2", repartition_source_topics=[topic("s")]),
        Subtopology("1", repartition_sink_topics=["s"], repartition_source_topics=[topic("r")]),
        Subtopology("0", ["t"], repartition_sink_topics=["r"]),
    ]
    assert created(configured(*chain, t=3)) == {"r": 3, "s": 3}
    # A number that the application has given wins.
    chain[1].repartition_source_topics = [topic("r", 8)]
    assert created(configured(*chain, t=3)) == {"r": 8, "s": 8}


def joined(*, outer: list[str], inner: list[tuple[str, int]]) -> list[Subtopology]:
    """A subtopology that joins source topics with repartition topics, which another one fills."""
    group = CopartitionGroup(
        list(range(len(outer))), repartition_source_topics=list(range(len(inner)))
    )
    return [
        Subtopology("0", ["big"], repartition_sink_topics=[name for name, _ in inner]),
        Subtopology(
            "1",
            outer,
            repartition_source_topics=[topic(*each) for each in inner],
            copartition_groups=[group],
        ),
    ]


def test_copartitioned_topics_get_equally_many_partitions() -> None:
    assert created(configured(*joined(outer=["t"], inner=[("r", 0)]), big=9, t=3)) == {"r": 3}
    both = joined(outer=[], inner=[("r", 4), ("s", 0)])
    assert created(configured(*both, big=9)) == {"r": 4, "s": 4}
    assert created(configured(*joined(outer=[], inner=[("r", 0), ("s", 0)]), big=9)) == {
        "r": 9, "s": 9,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("outer", "inner", "text"),
    [
        (
            ["t", "u"], [],
            "Following topics do not have the same number of partitions: [{t=3, u=4}]",
        ),
        (
            ["t"], [("r", 5)],
            "Number of partitions [5] of repartition topic [r] doesn't match number of partitions "
            "[3] of the source topic.",
        ),
        (
            [], [("r", 5), ("s", 6)],
            "Following topics do not have the same number of partitions: [{r=5, s=6}]",
        ),
    ],
)  # fmt: skip
def test_copartitioned_topics_that_do_not_fit(
    outer: list[str], inner: list[tuple[str, int]], text: str
) -> None:
    found = configured(*joined(outer=outer, inner=inner), big=9, t=3, u=4)
    assert found == ConfiguredTopology(fault=(Status.INCORRECTLY_PARTITIONED_TOPICS, text))


def test_an_internal_topic_with_other_partitions() -> None:
    found = configured(*word_count().subtopologies, t=5, c=4)
    text = "Existing topic c has different number of partitions: expected 5, found 4"
    assert found.fault == (Status.INCORRECTLY_PARTITIONED_TOPICS, text)
    assert not found.subtopologies


def test_missing_source_topics_are_named() -> None:
    one = Subtopology("0", ["e", "d", "c", "b", "a"])
    text = "Source topics a, c, d and 1 additional topics are missing."
    assert configured(one, b=1).fault == (Status.MISSING_SOURCE_TOPICS, text)


@pytest.mark.parametrize(
    ("subtopologies", "text"),
    [
        ([Subtopology("0")], "No source topics found for subtopology 0"),
        ([Subtopology("0", ["t"]), Subtopology("0", ["u"])], "Subtopology 0 occurs twice."),
        (
            [Subtopology("0", ["t"], copartition_groups=[CopartitionGroup([1])])],
            "A copartition group of subtopology 0 has no such topic.",
        ),
        (
            [Subtopology("0", ["t"], state_changelog_topics=[topic("c", 2)])],
            "Changelog topic c must have an undefined partition count, but it is set to 2.",
        ),
        (
            [Subtopology("0", repartition_source_topics=[topic("r")])],
            "Failed to compute number of partitions for all repartition topics, because a "
            "repartition source topic is never used as a sink topic.",
        ),
        (
            [
                Subtopology(
                    "0",
                    repartition_sink_topics=["r"],
                    repartition_source_topics=[topic("r")],
                )
            ],
            "Failed to compute number of partitions for all repartition topics. There may be loops "
            "in the topology that cannot be resolved.",
        ),
        (
            [Subtopology("0", ["t"] * 5_001)],
            "The topology has more than 5000 topics and their settings.",
        ),
        (
            [Subtopology("0", ["t"], copartition_groups=[CopartitionGroup([0] * 5_000)])],
            "The topology has more than 5000 topics and their settings.",
        ),
        (
            [Subtopology("0", ["t"], copartition_groups=[CopartitionGroup()] * 5_000)],
            "The topology has more than 5000 topics and their settings.",
        ),
        (
            [Subtopology(str(number), ["t"]) for number in range(101)],
            "The topology has more than 100 subtopologies.",
        ),
    ],
)
def test_topologies_that_are_not_valid(subtopologies: list[Subtopology], text: str) -> None:
    with pytest.raises(KafkaError) as refused:
        check_topology(subtopologies)
    assert (refused.value.code, refused.value.message) == (E.STREAMS_INVALID_TOPOLOGY, text)


def test_patterns_are_not_supported() -> None:
    with pytest.raises(KafkaError) as refused:
        check_topology([Subtopology("0", [], [".*"])])
    assert refused.value.code is E.INVALID_REQUEST
