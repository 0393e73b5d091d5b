"""A follower that is gone is replaced by the one of another machine.

Covers: kafkawire.log.followers.in_sync, kafkawire.log.followers.in_sync,
kafkawire.log.followers.service.
"""

from __future__ import annotations

import asyncio

from kafkawire.log.followers.in_sync import InSyncSet, Limits, choose_followers
from kafkawire.offsets.catalog.replica_sets import FollowerRow
from tests.kit.simloop import run
from tests.kit.sinks.follower_lives import ReplicatedLife, ReplicatedWorld

ROWS = [FollowerRow(f"r{node}", node, "host", 1, b"") for node in (1, 2, 3, 4)]


def chosen(failing: set[str], used: set[str]) -> list[str]:
    return [each.replica_id for each in choose_followers(ROWS, 1, "r1", failing, 2, used)]


def test_replacement_stays_when_the_first_choice_is_back() -> None:
    assert chosen(set(), set()) == ["r2", "r3"]
    assert chosen({"r2"}, {"r2", "r3"}) == ["r3", "r4"]
    assert chosen(set(), {"r3", "r4"}) == ["r3", "r4"]
    assert chosen({"r4"}, {"r3", "r4"}) == ["r3", "r2"]


def test_full_set_without_a_follower_to_spare_takes_another_one_first() -> None:
    """If all followers of a group are needed, none can leave before another one has entered."""
    found = InSyncSet(Limits(wanted=1, needed=1, lag_s=1.0), 100, 0.0, 0)
    found.note_connected("a", 100, 0.0)
    found.start_update(found.due(100, 0.0) or ())
    found.note_stored()
    found.note_write(200, 1.0)
    found.note_disconnected("a", 1.0)
    found.note_connected("b", 50, 2.0)
    assert found.due(200, 3.0) is None  # it lacks what was acknowledged
    found.note_acknowledged("b", 200, 3.0)
    assert found.due(200, 3.0) == frozenset("ab")
    found.start_update({"a", "b"})
    assert found.committed_position(200) == 100
    found.note_stored()
    assert found.due(200, 3.0) == frozenset("b")
    found.start_update({"b"})
    assert found.committed_position(200) == 100
    found.note_stored()
    assert found.committed_position(200) == 200


def test_broker_goes_on_with_another_follower_than_the_one_that_is_lost() -> None:
    world = ReplicatedWorld(seed=1, machines=3)
    config = world.config
    config.replica_group_size = config.min_insync_replicas = 2
    config.replica_lag_time_max_ms = 500

    async def main() -> None:
        life = ReplicatedLife(world, world.sites[0])
        await life.start()
        await life.create("t", 1, durability="replicated")
        await asyncio.sleep(2)
        assert life.replication is not None
        in_sync = life.replication.in_sync
        assert in_sync is not None
        assert in_sync.members == {world.sites[1].follower.replica_id}
        world.sites[1].follower.end("power", restart_s=100)
        await asyncio.sleep(45)
        assert in_sync.members == {world.sites[2].follower.replica_id}
        await asyncio.sleep(100)
        assert in_sync.members == {world.sites[2].follower.replica_id}
        await life.close()
        await life.bury()

    run(world.loop, main())
