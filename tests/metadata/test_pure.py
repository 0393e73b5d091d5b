"""The catalog in memory, and the packed parts of checkpoints, without any database."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.format_errors import FormatError
from kafkawire.metadata import rows
from kafkawire.metadata.catalog import (
    ALL_BROKERS,
    BROKER_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    BrokerInfo,
    Catalog,
    ConfigChange,
    NewTopic,
    PartitionInfo,
    TopicInfo,
)
from kafkawire.metadata.checkpoint import (
    MAX_BATCHES,
    ProducerEntry,
    pack_epochs,
    pack_producers,
    unpack_epochs,
    unpack_producers,
)

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
entries = st.builds(
    ProducerEntry,
    int64,
    int16,
    st.lists(st.tuples(int32, int32, int64, int64), max_size=MAX_BATCHES),
)


@given(st.lists(st.tuples(int32, int64)))
def test_epochs_round_trip(epochs: list[tuple[int, int]]) -> None:
    assert unpack_epochs(pack_epochs(epochs)) == epochs


@given(st.lists(entries))
def test_producers_round_trip(producers: list[ProducerEntry]) -> None:
    assert unpack_producers(pack_producers(producers)) == producers


def test_formats_match_documented_bytes() -> None:
    assert pack_epochs([]) == b"\x01"
    assert pack_epochs([(7, 9)]).hex() == "01" + "00000007" + "0000000000000009"
    packed = pack_producers([ProducerEntry(5, 2, [(0, 1, 2, 3)])])
    assert packed.hex() == (
        "01" + "0000000000000005" + "0002" + "01"
        + "00000000" + "00000001" + "0000000000000002" + "0000000000000003"
    )  # fmt: skip


@given(st.lists(st.tuples(int32, int64), min_size=1), st.lists(entries, min_size=1), st.data())
def test_truncated_bytes_are_refused(
    epochs: list[tuple[int, int]], producers: list[ProducerEntry], data: st.DataObject
) -> None:
    packed = pack_epochs(epochs)
    with pytest.raises(FormatError, match="cut off"):
        unpack_epochs(packed[: -data.draw(st.integers(1, 11))])
    packed = pack_producers(producers)
    last = 11 + 24 * len(producers[-1].batches)
    with pytest.raises(FormatError, match="cut off"):
        unpack_producers(packed[: -data.draw(st.integers(1, last - 1))])


@given(st.binary(max_size=60))
def test_garbage_raises_only_format_error(garbage: bytes) -> None:
    for unpack in (unpack_epochs, unpack_producers):
        try:
            unpack(garbage)
        except FormatError:
            continue
        assert garbage[0] == 1


@pytest.mark.parametrize("packed", [b"", b"\x00", b"\x03" + bytes(12)])
def test_unknown_format_is_refused(packed: bytes) -> None:
    for unpack in (unpack_epochs, unpack_producers):
        with pytest.raises(FormatError, match="does not know"):
            unpack(packed)


def topic(name: str, number: int, count: int = 1) -> TopicInfo:
    partitions = rows.new_partitions([1] * count, number, 0)
    return TopicInfo(number.to_bytes(16, "big"), name, False, partitions, {})


def test_each_change_increments_version() -> None:
    catalog = Catalog("c")
    a = topic("a", 1)
    versions = [catalog.version]
    for change in (
        lambda: catalog.add_broker(BrokerInfo(1, {}, None)),
        lambda: catalog.add_topic(a),
        lambda: catalog.add_partitions(a.id, [PartitionInfo(2, 1, 1, 0)]),
        lambda: catalog.apply_config(ConfigChange(TOPIC_RESOURCE, "a", "k", "v")),
        lambda: catalog.set_leader_epochs({2: 5}),
        lambda: catalog.remove_topic(a.id),
    ):
        change()
        versions.append(catalog.version)
    assert versions == sorted(set(versions))


def test_topic_is_found_by_name_and_id_until_removed() -> None:
    catalog = Catalog("c")
    a, b = topic("a", 1), topic("b", 2)
    catalog.add_topic(a)
    catalog.add_topic(b)
    assert catalog.by_name["a"] == catalog.by_id[a.id] == a
    with pytest.raises(AssertionError):
        catalog.add_topic(topic("a", 3))
    assert catalog.remove_topic(a.id) == a
    assert (list(catalog.by_name), list(catalog.by_id)) == (["b"], [b.id])
    with pytest.raises(KeyError):
        catalog.remove_topic(a.id)


def test_partitions_are_added_in_order() -> None:
    catalog = Catalog("c")
    a = topic("a", 1, count=2)
    catalog.add_topic(a)
    catalog.add_partitions(a.id, rows.new_partitions([1, 2], 10, 2))
    assert catalog.partitions == 4
    added = catalog.by_name["a"].partitions[2:]
    assert [(p.number, p.index, p.leader) for p in added] == [(10, 2, 1), (11, 3, 2)]
    with pytest.raises(AssertionError):
        catalog.add_partitions(a.id, [PartitionInfo(12, 9, 1, 0)])
    catalog.set_leader_epochs({10: 4, 999: 1})
    assert [p.leader_epoch for p in catalog.by_name["a"].partitions] == [0, 0, 4, 0]


def test_broker_settings_override_cluster_default() -> None:
    catalog = Catalog("c")
    for of, value in ((ALL_BROKERS, "1"), ("7", "2")):
        catalog.apply_config(ConfigChange(BROKER_RESOURCE, of, "k", value))
    catalog.apply_config(ConfigChange(BROKER_RESOURCE, ALL_BROKERS, "other", "3"))
    assert catalog.broker_configs(7) == {"k": "2", "other": "3"}
    assert catalog.broker_configs(8) == {"k": "1", "other": "3"}
    catalog.apply_config(ConfigChange(GROUP_RESOURCE, "7", "k", "of the group"))
    assert catalog.group_overrides == {"7": {"k": "of the group"}}
    catalog.apply_config(ConfigChange(GROUP_RESOURCE, "7", "k", None))
    assert catalog.group_overrides == {}
    catalog.apply_config(ConfigChange(BROKER_RESOURCE, "7", "k", None))
    assert catalog.broker_configs(7) == catalog.broker_configs(8)


def test_setting_of_deleted_topic_is_dropped() -> None:
    catalog = Catalog("c")
    catalog.apply_config(ConfigChange(TOPIC_RESOURCE, "gone", "k", "v"))
    assert (len(catalog.by_name), catalog.broker_overrides) == (0, {})


def test_catalog_round_trips_through_rows() -> None:
    topic = NewTopic("a", [1, 2], {"k": "v"}, internal=True)
    made = rows.new_topic(topic, b"i" * 16, 5, created_ms=7)
    broker = BrokerInfo(1, {"P": ("h", 9092)}, "r", folder="f")
    found = rows.catalog(
        "c",
        9,
        brokers=[(1, rows.listeners_text(broker.listeners), "r", 3, "f")],
        topics=[[(made.id, "a", 1, 7)]],
        partitions=[[(memoryview(made.id), 5, 1, 0)], [(b"gone", 9, 1, 0), (made.id, 6, 2, 0)]],
        configs=[tuple(row.values()) for row in rows.config_rows(made)],
        groups=[(1, 1, 0), (2, 2, 0)],
    )
    assert (found.cluster_id, found.version, found.brokers) == ("c", 9, {1: broker})
    assert found.by_name == {"a": made}
    assert found.by_id == {made.id: made}
