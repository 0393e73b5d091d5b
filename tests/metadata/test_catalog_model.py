"""The catalog in columns compared with plain dicts: the same operations on both give the same
content."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kafkawire.metadata import directory, rows
from kafkawire.metadata.catalog import (
    TOPIC_RESOURCE,
    Catalog,
    ConfigChange,
    LeadGroup,
    PartitionInfo,
    TopicInfo,
    alike_key,
)

NAMES = ["a", "b", "a.b", "a_b", "a.b_c", "a_b.c", "x.", "x_", "plain"]
leaders = st.lists(st.integers(1, 3), min_size=1, max_size=4)


class CatalogMachine(RuleBasedStateMachine):
    """`model`: name -> [id, internal, [[number, leader, epoch]], configs]."""

    @initialize(holes=st.integers(0, 3))
    def begin(self, holes: int) -> None:
        self.before = directory.MIN_DELETED_ROWS, directory.KEPT_PARTITIONS
        directory.MIN_DELETED_ROWS, directory.KEPT_PARTITIONS = holes, 5
        self.catalog = Catalog("c")
        self.model: dict[str, TopicInfo] = {}
        self.next_number = 1
        self.next_id = 1

    def teardown(self) -> None:
        if hasattr(self, "before"):
            directory.MIN_DELETED_ROWS, directory.KEPT_PARTITIONS = self.before

    def _numbers(self, chosen: list[int], first_index: int) -> list[PartitionInfo]:
        made = rows.new_partitions(chosen, self.next_number, first_index)
        self.next_number += len(chosen)
        return made

    @rule(name=st.sampled_from(NAMES), chosen=leaders, skip=st.integers(0, 2), flag=st.booleans())
    def add(self, name: str, chosen: list[int], skip: int, flag: bool) -> None:
        if any(alike_key(other) == alike_key(name) for other in self.model):
            return  # such a topic is refused before it reaches the catalog
        self.next_number += skip  # numbers of topics unknown to this broker
        topic_id = self.next_id.to_bytes(16, "big")
        self.next_id += 1
        configs = {"k": "v"} if flag else {}
        info = TopicInfo(topic_id, name, flag, self._numbers(chosen, 0), configs, len(name))
        self.catalog.add_topic(info)
        copies = [PartitionInfo(p.number, p.index, p.leader, 0) for p in info.partitions]
        self.model[name] = TopicInfo(topic_id, name, flag, copies, dict(info.configs), len(name))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        was = self.model.pop(name)
        assert self.catalog.remove_topic(was.id) == was

    @precondition(lambda self: self.model)
    @rule(data=st.data(), chosen=leaders)
    def more_partitions(self, data: st.DataObject, chosen: list[int]) -> None:
        topic = self.model[data.draw(st.sampled_from(sorted(self.model)))]
        added = self._numbers(chosen, len(topic.partitions))
        self.catalog.add_partitions(topic.id, added)
        copies = [PartitionInfo(p.number, p.index, p.leader, 0) for p in added]
        topic.partitions = [*topic.partitions, *copies]

    @rule(name=st.sampled_from(NAMES), key=st.sampled_from("kl"), value=st.sampled_from("vw"))
    def set_config(self, name: str, key: str, value: str) -> None:
        self.catalog.apply_config(ConfigChange(TOPIC_RESOURCE, name, key, value))
        if name in self.model:
            self.model[name].configs = {**self.model[name].configs, key: value}

    @rule(name=st.sampled_from(NAMES), key=st.sampled_from("kl"))
    def drop_config(self, name: str, key: str) -> None:
        self.catalog.apply_config(ConfigChange(TOPIC_RESOURCE, name, key, None))
        if name in self.model:
            was = self.model[name].configs
            self.model[name].configs = {k: v for k, v in was.items() if k != key}

    @rule(number=st.integers(1, 40), epoch=st.integers(1, 9))
    def set_epoch(self, number: int, epoch: int) -> None:
        self.catalog.set_leader_epochs({number: epoch})
        for partition in self._partitions():
            if partition.number == number:
                partition.leader_epoch = epoch

    @rule(leader=st.integers(1, 3))
    def raise_epochs(self, leader: int) -> None:
        self.catalog.raise_leader_epochs(leader)
        for partition in self._partitions():
            partition.leader_epoch += partition.leader == leader

    @precondition(lambda self: self._partitions())
    @rule(data=st.data(), leader=st.integers(1, 3))
    def move(self, data: st.DataObject, leader: int) -> None:
        """Another broker leads a partition, in the next leader epoch."""
        partition = data.draw(st.sampled_from(self._partitions()))
        group = self.catalog.group(leader) or LeadGroup(leader, leader, 0)
        self.catalog.set_groups([group])
        epoch = partition.leader_epoch + 1
        self.catalog.move_partition(partition.number, group.id, epoch - group.epoch)
        partition.leader, partition.leader_epoch = leader, epoch
        led = {p.number for p in self._partitions() if p.leader == leader}
        assert set(self.catalog.partitions_of_group(leader)) == led
        assert sum(self.catalog.sizes_of_group(leader)) == len(led)

    @rule()
    def restart(self) -> None:
        """Rows that are stored and loaded give the same catalog."""
        groups = self.catalog.groups()
        epochs = {group.leader: group.epoch for group in groups}
        topics = [(t.id, t.name, t.internal, t.created_ms) for t in self.model.values()]
        stored = sorted(
            (p.number, t.id, p.leader, p.leader_epoch - epochs[p.leader])
            for t in self.model.values()
            for p in t.partitions
        )
        partitions = [(i, number, leader, epoch) for number, i, leader, epoch in stored]
        configs = [row for t in self.model.values() for row in rows.config_rows(t)]
        self.catalog = rows.catalog(
            "c",
            0,
            [],
            [topics[:2], topics[2:]],
            [partitions[:3], partitions[3:], []],
            [tuple(row.values()) for row in configs],
            groups=groups,
        )

    def _partitions(self) -> list[PartitionInfo]:
        return [partition for topic in self.model.values() for partition in topic.partitions]

    @invariant()
    def both_have_the_same_content(self) -> None:
        if not hasattr(self, "catalog"):
            return
        catalog = self.catalog
        assert catalog.by_name == self.model
        assert catalog.by_id == {topic.id: topic for topic in self.model.values()}
        assert catalog.partitions == len(self._partitions())
        for topic in self.model.values():
            assert catalog.by_name.size_of(topic.name) == len(topic.partitions)
            for at, partition in enumerate(topic.partitions):
                assert catalog.by_id.partition_of(topic.id, at) == partition
                found = catalog.locate(partition.number)
                assert found is not None
                assert (found.topic_id, found.topic, found.index) == (topic.id, topic.name, at)
                assert (found.leader, found.leader_epoch) == (
                    partition.leader, partition.leader_epoch,
                )  # fmt: skip
            assert catalog.by_name.partition_of(topic.name, len(topic.partitions)) is None
        assert catalog.by_name.in_order() == sorted(self.model)
        living = {partition.number for partition in self._partitions()}
        for number in range(self.next_number + 1):
            assert (catalog.leader_of(number) is not None) == (number in living)
        for name in NAMES:
            others = [n for n in self.model if n != name and alike_key(n) == alike_key(name)]
            found_other = catalog.alike(name)
            assert (found_other in others) if others else found_other is None


TestCatalog = CatalogMachine.TestCase
TestCatalog.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)


def test_snapshot_is_immutable() -> None:
    catalog = Catalog("c")
    catalog.add_topic(TopicInfo(b"i" * 16, "a", False, rows.new_partitions([1], 1, 0), {}))
    held = catalog.by_name["a"]
    catalog.apply_config(ConfigChange(TOPIC_RESOURCE, "a", "k", "v"))
    catalog.add_partitions(held.id, rows.new_partitions([1], 5, 1))
    assert (held.configs, len(held.partitions)) == ({}, 1)
    again = catalog.by_name["a"]
    assert (again.configs, len(again.partitions)) == ({"k": "v"}, 2)


def test_log_data_of_topic_is_removed_with_topic() -> None:
    catalog = Catalog("c")
    topic = TopicInfo(b"i" * 16, "a", False, rows.new_partitions([1], 1, 0), {})
    catalog.add_topic(topic)
    assert (catalog.described_in(topic.id), catalog.not_described()) == (0, [topic.id])
    catalog.record_journal(topic.id, 7)
    version = catalog.version
    assert (catalog.described_in(topic.id), catalog.not_described()) == (7, [])
    assert catalog.version == version
    catalog.remove_topic(topic.id)
    catalog.record_journal(topic.id, 9)
    assert catalog.described_in(topic.id) == 0
    catalog.add_topic(TopicInfo(b"j" * 16, "a", False, rows.new_partitions([1], 2, 0), {}))
    assert catalog.described_in(b"j" * 16) == 0  # the row was used again
