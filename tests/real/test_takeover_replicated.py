"""Three machines with durability=replicated that are killed, replaced, stopped and cut off, under
load whose history is checked."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kit.cluster import metadata_url
from tests.kit.history.clients import RecordedLoad
from tests.kit.history.history import Event, waits_for_acks
from tests.kit.machines import REPLICATED, SQL, Machines
from tests.kit.minio import Minio
from tests.kit.proxy import Network
from tests.kit.steady_load import TOPIC as MOVING
from tests.kit.steady_load import check, loaded
from tests.kit.waiting import wait_until

TOPIC, PARTITIONS = "load", 6
SPREAD = [1, 2, 3, 1, 2, 3]
"""Leaders of the partitions."""


@pytest.fixture
def machines(
    tmp_path: Path, request: pytest.FixtureRequest, minio: Minio, tier_url: str
) -> Iterator[Machines]:
    url = metadata_url("postgresql", tmp_path, request)
    with (
        Network() as network,
        Machines(tmp_path, network, url, minio, tier_url, settings=REPLICATED) as made,
    ):
        wait_until(
            lambda: all(made.listed(node) == [1, 2, 3] for node in made.machines), "all brokers"
        )
        made.create_everywhere(TOPIC, SPREAD)
        yield made


def load_of(machines: Machines) -> RecordedLoad:
    """Clients that do not wait for 60 s, as usual, for answers on a connection that is silent."""
    return RecordedLoad(machines.addresses, TOPIC, PARTITIONS, socket_timeout_ms=10_000)


def report(what: str, load: RecordedLoad, fault: Event) -> None:
    """Print the longest time without an acknowledgement in any partition since a fault."""
    waits = waits_for_acks(load.history, since=fault.at, until=time.monotonic())
    print(f"longest wait after {what}: {max(waits.values()):.1f} s")


def test_killed_and_replaced_machines_lose_nothing(machines: Machines, tmp_path: Path) -> None:
    machines.create_everywhere(MOVING, SPREAD)
    with load_of(machines) as load:
        load.wait_for_progress()
        with loaded(machines.addresses) as loads:
            killed = load.history.fault("kill machine 2")
            machines.kill(2)
            machines.wait_for_host(2, {1, 3})
            load.wait_for_progress()
            report("a kill", load, killed)
            for each in loads:
                each.wait_for_more()
            returned = load.history.fault("start machine 2")
            machines.start(2)
            machines.wait_for_host(2, {2})
            load.heal("machine 2 runs its broker")
            report("a return", load, returned)
            for each in loads:
                each.wait_for_more()
            assert check(loads, machines.bootstrap(2)) > 0
        load.history.fault("replace machine 3, whose disk is lost")
        machines.kill(3)
        machines.wipe(3)
        machines.wait_for_host(3, {1, 2})
        load.wait_for_progress()
        machines.start(3)
        machines.wait_for_all_at_home()
        load.heal("machine 3 runs its broker with an empty disk")
        load.history.fault("kill all machines")
        for node in machines.machines:
            machines.kill(node)
        with ThreadPoolExecutor() as threads:  # each start waits for the follower of another one
            list(threads.map(machines.start, machines.machines))
        machines.wait_for_all_at_home()
        load.heal("all at home")
    assert load.findings(machines.bootstrap(1), tmp_path / "history") == []


def test_stopped_machines_and_followers_lose_nothing(machines: Machines, tmp_path: Path) -> None:
    with load_of(machines) as load:
        load.wait_for_progress()
        slow = load.history.fault("pause the follower of machine 1")
        pid = machines.pause_follower(1)
        load.wait_for_progress()
        report("a pause of a follower", load, slow)
        os.kill(pid, signal.SIGCONT)
        load.heal("the follower is back")
        paused = load.history.fault("pause machine 2")
        machines.pause(2)
        machines.wait_for_host(2, {1, 3})
        load.wait_for_progress()
        report("a pause", load, paused)
        machines.resume(2)
        output = "worker 2 has ended with code 3: its partitions"
        wait_until(lambda: output in machines.machines[2].output, "the end of its process")
        machines.wait_for_all_at_home()
        load.heal("machine 2 runs its broker")
        cut = load.history.fault("hold SQL of machine 3")
        with machines.network.silent("3", SQL):
            wait_until(lambda: machines.hosts(3) & {1, 2}, "broker 3 elsewhere")
            load.wait_for_progress()
            report("a loss of SQL", load, cut)
        machines.wait_for_all_at_home()
        load.heal("machine 3 runs its broker")
    assert load.findings(machines.bootstrap(1), tmp_path / "history") == []
