"""A broker with followers while SQL, a follower or the whole network does not answer.

Covers: kafkawire.log.followers.service, kafkawire.log.followers.link.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import batch
from tests.kit.simloop import run
from tests.kit.sinks.follower_lives import ReplicatedLife, ReplicatedWorld

NEVER_S = 1e9
CUT_OFF_S = 200.0
"""In which ten attempts to connect have no answer."""


def replicated(
    test: Callable[[ReplicatedLife], Awaitable[None]], machines: int = 2, group: int = 0
) -> None:
    """Run a test with a broker on machine 1 that needs one follower, and has a topic `t`."""
    world = ReplicatedWorld(seed=1, machines=machines)
    world.config.replica_group_size, world.config.min_insync_replicas = group or machines, 2
    world.config.replica_lag_time_max_ms = 500

    async def main() -> None:
        life = ReplicatedLife(world, world.sites[0])
        await life.start()
        await life.create("t", 1, durability="replicated")
        await asyncio.sleep(2)
        assert refusal(life) == ""
        await test(life)
        for each in world.lives:
            each.die("kill")
            await each.bury()

    run(world.loop, main())


def refusal(life: ReplicatedLife) -> str:
    """Return why produces are refused; an empty string if they are not."""
    why = life.log.commit_log.follower_sink.refusal
    return "" if why is None else str(why.message)


def cut_off_s(life: ReplicatedLife) -> float:
    assert life.replication is not None
    return life.replication.cut_off_s()


def test_followers_stay_connected_while_sql_does_not_answer() -> None:
    async def test(life: ReplicatedLife) -> None:
        follower = life.world.sites[1].follower
        connections = list(follower.connections)
        life.sql_delay_s = NEVER_S
        await asyncio.sleep(100)
        assert follower.connections == connections

    replicated(test)


def test_produces_are_refused_while_neither_sql_nor_a_follower_answers() -> None:
    async def test(life: ReplicatedLife) -> None:
        life.sql_delay_s = NEVER_S
        await asyncio.sleep(30)
        life.world.sites[1].follower.end("kill", restart_s=NEVER_S)
        await asyncio.sleep(2)
        assert refusal(life) == "1 replicas are in sync, min.insync.replicas=2"

    replicated(test)


def test_refusal_names_the_follower_that_lacks_records() -> None:
    async def test(life: ReplicatedLife) -> None:
        life.world.config.replica_lag_time_max_ms = 3_600_000
        await asyncio.sleep(1)
        slow = life.world.sites[2].follower
        slow.silent_until = life.world.loop.now + 12
        (partition,) = await life.partitions()
        partition.append(batch(b"one"), EPOCH_MS)
        await asyncio.sleep(11)
        assert refusal(life) == f"records have waited for more than 10 s for {slow.row.name}"
        await asyncio.sleep(10)
        assert refusal(life) == ""

    replicated(test, machines=3)


def test_refusal_names_the_failure_of_sql(caplog: pytest.LogCaptureFixture) -> None:
    world = ReplicatedWorld(seed=1, machines=2)
    world.config.replica_group_size = world.config.min_insync_replicas = 2

    async def main() -> None:
        life = ReplicatedLife(world, world.sites[0])
        await life.start()
        life.sql_down_until = world.loop.now + 60
        life.log.commit_log.follower_sink.need()
        await asyncio.sleep(50)
        failure = "the registered followers cannot be read from SQL (the connection to the data"
        assert failure in refusal(life)
        assert caplog.text.count(failure) == 1
        await asyncio.sleep(20)
        assert refusal(life) == ""
        life.die("kill")
        await life.bury()

    with caplog.at_level(logging.WARNING):
        run(world.loop, main())


def test_failed_change_of_the_set_is_logged_with_its_end(caplog: pytest.LogCaptureFixture) -> None:
    async def test(life: ReplicatedLife) -> None:
        life.sql_down_until = life.world.loop.now + 60
        life.world.sites[2].follower.end("kill", restart_s=NEVER_S)
        await asyncio.sleep(50)
        assert caplog.text.count("cannot be stored in SQL: the connection to the database") == 1
        assert "can be stored again" not in caplog.text
        await asyncio.sleep(20)
        assert "can be stored again" in caplog.text
        members = f"in-sync followers of broker 1: {life.world.sites[1].follower.row.name}"
        assert caplog.records[-1].getMessage() == members

    with caplog.at_level(logging.INFO):
        replicated(test, machines=3)


def test_follower_that_comes_later_deletes_copies_of_earlier_processes() -> None:
    async def test(life: ReplicatedLife) -> None:
        world, late = life.world, life.world.sites[2].follower
        late.end("kill", restart_s=60)
        for _ in range(2):  # what it has is continued by the next process, but by no later one
            life.die("kill")
            await life.bury()
            life = ReplicatedLife(world, world.sites[0])
            await life.start()
        assert late.copies is None
        await asyncio.sleep(70)
        assert late.copies is not None
        assert list(late.copies._copies) == [life.epoch]

    replicated(test, machines=3)


@pytest.mark.parametrize("spare", [0, 1, 2])
def test_broker_that_reaches_no_machine_is_cut_off(spare: int) -> None:
    """Other followers are used in the meantime, if there are some to spare."""

    async def test(life: ReplicatedLife) -> None:
        assert cut_off_s(life) == 0.0
        life.network.silent_until[""] = life.world.loop.now + CUT_OFF_S
        await asyncio.sleep(35)
        assert 0 < cut_off_s(life) < 30
        await asyncio.sleep(10)
        while life.world.loop.now < CUT_OFF_S:
            assert refusal(life)
            assert cut_off_s(life) > 30
            await asyncio.sleep(0.1)
        await asyncio.sleep(30)
        assert cut_off_s(life) == 0.0
        assert refusal(life) == ""

    replicated(test, machines=3 + spare, group=3)


def test_broker_is_not_cut_off_if_a_machine_refuses_connections() -> None:
    async def test(life: ReplicatedLife) -> None:
        life.world.sites[1].follower.end("kill", restart_s=NEVER_S)
        life.world.sites[2].follower.silent_until = NEVER_S
        await asyncio.sleep(CUT_OFF_S)
        assert refusal(life)
        assert cut_off_s(life) == 0.0

    replicated(test, machines=3)


def test_broker_is_not_cut_off_if_a_machine_accepts_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As that of a follower whose process is stopped with SIGSTOP."""

    async def accept(
        factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> asyncio.Transport:
        made = Silent()
        factory().connection_made(made)
        return made

    async def test(life: ReplicatedLife) -> None:
        monkeypatch.setattr(life.network, "connect", accept)
        for each in list(life.network.connections):
            each.cut()
        await asyncio.sleep(CUT_OFF_S)
        assert refusal(life)
        assert cut_off_s(life) == 0.0

    replicated(test)


class Silent(asyncio.Transport):
    """A connection that was accepted, and over which nothing arrives."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def abort(self) -> None: ...
