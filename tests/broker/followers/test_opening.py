"""Facts that a start takes from the catalog before it replicates.

Covers: kafkawire.broker.followers.opening.
"""

from __future__ import annotations

from kafkawire.broker.followers.install import leads_any
from kafkawire.broker.followers.opening import expects_any, leads_local
from kafkawire.metadata.catalog import Catalog, NewTopic
from kafkawire.metadata.directory import local_group
from kafkawire.metadata.rows import new_topic


def test_broker_expects_replicated_partitions_that_are_to_be_moved_to_it() -> None:
    """So it has followers that are in sync before it leads them."""
    catalog = Catalog("c")
    catalog.set_groups([local_group(node) for node in (1, 2)])
    catalog.add_topic(new_topic(NewTopic("r", [1], {"durability": "replicated"}), b"r" * 16, 1))
    catalog.add_topic(new_topic(NewTopic("l", [1, 2]), b"l" * 16, 2))
    assert [leads_any(catalog, node) for node in (1, 2)] == [True, False]
    assert [leads_local(catalog, node) for node in (1, 2)] == [True, True]
    catalog.set_moves({2: 2})
    assert not expects_any(catalog, 2)
    catalog.set_moves({1: 2})
    assert [expects_any(catalog, node) for node in (1, 2)] == [False, True]
