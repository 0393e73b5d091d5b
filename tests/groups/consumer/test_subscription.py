"""The topics of a cluster as consumer groups see them: subscriptions, their hash, the target."""

from __future__ import annotations

import pytest

from kafkawire.groups.consumer.member import NO_TARGET
from kafkawire.groups.consumer.subscription import hash_topics, subscribed_ids, subscribed_names
from kafkawire.groups.consumer.target import gather_input, is_due, select_assignor
from kafkawire.groups.model.topics import ClusterTopics, NoTopics
from kafkawire.log.io.slices import run_at_once
from kafkawire.metadata.catalog import Catalog, PartitionInfo, TopicInfo
from tests.kit.groups.consumers import ConsumerDesk
from tests.kit.groups.log import FakeTopics, id_of


def make_topic(name: str, number: int, partitions: int) -> TopicInfo:
    rows = [PartitionInfo(100 * number + n, n, 1, 0) for n in range(partitions)]
    return TopicInfo(bytes([number]) * 16, name, False, rows, {})


def test_the_catalog_has_the_topics_of_the_cluster() -> None:
    catalog = Catalog("c")
    topics: ClusterTopics = catalog
    revisions = [topics.topic_revision()]
    info = make_topic("t", 1, 2)
    catalog.add_topic(info)
    revisions.append(topics.topic_revision())
    assert (topics.topic_id("t"), topics.topic_name(info.id)) == (info.id, "t")
    assert (topics.topic_size("t"), list(topics.topic_names())) == (2, ["t"])
    catalog.add_partitions(info.id, [PartitionInfo(500, 2, 1, 0)])
    revisions.append(topics.topic_revision())
    assert topics.topic_size("t") == 3
    catalog.remove_topic(info.id)
    revisions.append(topics.topic_revision())
    # The same number of partitions, but another topic.
    catalog.add_topic(make_topic("t", 2, 3))
    revisions.append(topics.topic_revision())
    assert len(set(revisions)) == len(revisions)
    assert topics.topic_name(info.id) is None


@pytest.mark.parametrize("topics", [NoTopics(), Catalog("c")])
def test_a_cluster_may_have_no_topics(topics: ClusterTopics) -> None:
    assert topics.topic_id("t") is None
    assert topics.topic_name(bytes(16)) is None
    assert topics.topic_size("t") is None
    assert list(topics.topic_names()) == []
    assert hash_topics(["t"], topics) == 0


def test_the_hash_changes_with_the_topics_only() -> None:
    topics = FakeTopics({"t": 2, "u": 2})
    before = hash_topics(["t", "missing"], topics)
    assert before == hash_topics(["missing", "t"], topics) != 0
    topics["u"] = 9
    assert hash_topics(["t", "missing"], topics) == before
    found = {before, hash_topics(["t", "u"], topics)}
    topics["t"] = 3
    found.add(hash_topics(["t", "missing"], topics))
    topics["missing"] = 1
    found.add(hash_topics(["t", "missing"], topics))
    assert len(found) == 4
    assert min(found) >= -(2**63)
    assert max(found) < 2**63


def test_names_count_until_their_last_subscriber_leaves() -> None:
    desk = ConsumerDesk()
    desk.beat("a", topics=["t", "u"], subscribed_topic_regex="v")
    desk.beat("b", topics=["u"])
    group = desk.group
    first, second = group.members["a"], group.members["b"]
    assert subscribed_names(group, None, None) == ({"t", "u"}, {"v"})
    assert subscribed_names(group, first, None) == ({"u"}, set())
    assert subscribed_names(group, second, None) == ({"t", "u"}, {"v"})
    assert subscribed_names(group, first, second) == ({"u"}, set())
    assert subscribed_ids(group, first, desk.topics) == {id_of("t"), id_of("u")}


def test_of_a_tie_the_first_assignor_of_the_setting_is_used() -> None:
    desk = ConsumerDesk()
    desk.beat("a", server_assignor="range")
    desk.beat("b", server_assignor="uniform")
    assert select_assignor(desk.group, desk.settings, None, None) == "uniform"
    desk.settings.group_consumer_assignors = ["range", "uniform"]
    assert select_assignor(desk.group, desk.settings, None, None) == "range"
    desk.settings.group_consumer_assignors = ["uniform"]
    assert select_assignor(desk.group, desk.settings, None, None) == "uniform"


def test_a_target_is_due_after_the_interval() -> None:
    desk = ConsumerDesk()
    desk.beat("a")
    group, now_ms = desk.group, desk.now_ms
    assert not is_due(group, group.epoch, 1000, now_ms + 5000)
    assert not is_due(group, group.epoch + 1, 1000, now_ms + 999)
    assert is_due(group, group.epoch + 1, 1000, now_ms + 1000)
    assert is_due(group, group.epoch + 1, 0, now_ms)
    # The clock was set back: without this nothing would be computed for as long.
    assert is_due(group, group.epoch + 1, 1000, now_ms - 1)


def test_the_next_process_of_a_static_member_gets_its_target() -> None:
    desk = ConsumerDesk()
    desk.beat("a", instance_id="i")
    desk.beat("b")
    group = desk.group
    before = group.target["a"]
    old = group.members["a"]
    new = desk.group.members["b"].__class__("z", "i", topics=old.topics)
    given = gather_input(group, desk.settings, desk.topics, group.epoch, old, new)
    targets = run_at_once(given.compute())
    assert targets["z"] == before
    assert targets.get("a", NO_TARGET) == NO_TARGET
