"""The replicas of brokers that `kafkawire cluster describe` shows, from answers built by hand.

tests/cli/test_configs.py runs the command.
"""

from __future__ import annotations

from kafkawire.cli.cluster.describe import replicas_led
from kafkawire.messages.metadata import MetadataResponsePartition, MetadataResponseTopic


def topic(*rows: tuple[int, list[int], list[int]]) -> MetadataResponseTopic:
    """Rows are leader, replicas and those in sync of a partition each."""
    return MetadataResponseTopic(
        partitions=[
            MetadataResponsePartition(leader_id=leader, replica_nodes=replicas, isr_nodes=in_sync)
            for leader, replicas, in_sync in rows
        ]
    )


def test_replica_is_in_sync_if_it_is_in_all_partitions() -> None:
    led = replicas_led(
        [
            topic((1, [1, 2, 3], [1, 2, 3]), (2, [2, 3, 1], [2, 1])),
            topic((1, [1, 2, 3], [1, 3]), (2, [2], [2])),
        ]
    )
    assert led == {
        1: {"replicas": [1, 2, 3], "in_sync": [1, 3]},
        2: {"replicas": [1, 2, 3], "in_sync": [1, 2]},
    }


def test_broker_that_leads_nothing_has_no_replicas() -> None:
    assert replicas_led([]) == {}
    assert replicas_led([topic((1, [1], [1]))]) == {1: {"replicas": [1], "in_sync": [1]}}
