"""Three machines that take over brokers of each other, with load whose history is checked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.history.clients import RecordedLoad
from tests.kit.history.history import Event, waits_for_acks
from tests.kit.machines import LEASE_S, S3, SQL, Machines, running, wait_s
from tests.kit.minio import Minio
from tests.kit.steady_load import PARTITIONS as MOVING_PARTITIONS
from tests.kit.steady_load import TOPIC as MOVING
from tests.kit.steady_load import check, loaded
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.machines

TOPIC, PARTITIONS = "load", 6
SPREAD = [1, 2, 3, 1, 2, 3]
"""Leaders of the partitions."""


@pytest.fixture
def machines(
    tmp_path: Path, request: pytest.FixtureRequest, minio: Minio, tier_url: str
) -> Iterator[Machines]:
    with running(tmp_path, request, minio, tier_url) as made:
        made.create_everywhere(TOPIC, SPREAD)
        yield made


def load_of(machines: Machines) -> RecordedLoad:
    """Clients that do not wait for 60 s, as usual, for answers on a connection that is silent."""
    return RecordedLoad(machines.addresses, TOPIC, PARTITIONS, socket_timeout_ms=10_000)


def longest_wait(load: RecordedLoad, fault: Event) -> float:
    """The longest time without an acknowledgement in any partition since a fault."""
    return max(waits_for_acks(load.history, since=fault.at, until=time.monotonic()).values())


def test_killed_machines_are_taken_over_and_get_their_brokers_back(
    machines: Machines, tmp_path: Path
) -> None:
    assert len(SPREAD) == MOVING_PARTITIONS
    machines.create_everywhere(MOVING, SPREAD)
    with load_of(machines) as load:
        load.wait_for_progress()
        with loaded(machines.addresses) as loads:
            killed = load.history.fault("kill machine 2")
            machines.kill(2)
            machines.wait_for_host(2, {1, 3})
            load.wait_for_progress()
            print(f"longest wait after a kill: {longest_wait(load, killed):.1f} s")
            for each in loads:
                each.wait_for_more()
            returned = load.history.fault("start machine 2")
            machines.start(2)
            machines.wait_for_host(2, {2})
            load.heal("machine 2 runs its broker")
            print(f"longest wait of a return: {longest_wait(load, returned):.1f} s")
            for each in loads:
                each.wait_for_more()
            assert check(loads, machines.bootstrap(2)) > 0
        load.history.fault("kill machine 2, then the one that has its broker")
        machines.kill(2)
        host = machines.wait_for_host(2, {1, 3})
        machines.kill(host)
        (third,) = {1, 3} - {host}
        for node in (2, host):
            machines.wait_for_host(node, {third})
        load.heal("one machine runs all brokers")
        machines.start(host)
        machines.start(2)
        machines.wait_for_all_at_home()
        load.heal("all at home")
    assert load.findings(machines.bootstrap(1), tmp_path / "history") == []


def test_machines_that_are_stopped_or_cut_off_are_taken_over(
    machines: Machines, tmp_path: Path
) -> None:
    network = machines.network
    with load_of(machines) as load:
        load.wait_for_progress()
        load.history.fault("hold SQL of all machines")
        with network.silent("", SQL):
            wait_s(5 * LEASE_S)
            load.wait_for_progress()
        load.heal("SQL is there")
        for node, machine in machines.machines.items():
            assert "is started here" not in machine.output
            assert machines.hosts(node) == {node}
        paused = load.history.fault("pause machine 2")
        machines.pause(2)
        machines.wait_for_host(2, {1, 3})
        load.wait_for_progress()
        print(f"longest wait after a pause: {longest_wait(load, paused):.1f} s")
        machines.resume(2)
        output = "worker 2 has ended with code 3: its partitions"
        wait_until(lambda: output in machines.machines[2].output, "the end of its process")
        machines.wait_for_all_at_home()
        load.heal("machine 2 runs its broker")
        cut = load.history.fault("hold SQL of machine 3")
        with network.silent("3", SQL):
            wait_until(lambda: machines.hosts(3) & {1, 2}, "broker 3 elsewhere")
            load.wait_for_progress()
            print(f"longest wait without SQL: {longest_wait(load, cut):.1f} s")
        machines.wait_for_all_at_home()
        load.heal("machine 3 runs its broker")
    assert load.findings(machines.bootstrap(1), tmp_path / "history") == []


def test_machine_without_its_tier_gives_its_broker_up(machines: Machines, tmp_path: Path) -> None:
    network = machines.network
    with load_of(machines) as load:
        load.wait_for_progress()
        cut = load.history.fault("hold S3 of machine 1")
        with network.silent("1", S3):
            wait_until(lambda: machines.hosts(1) & {2, 3}, "broker 1 elsewhere")
            load.wait_for_progress()
            print(f"longest wait without S3: {longest_wait(load, cut):.1f} s")
        machines.wait_for_all_at_home()
        load.heal("machine 1 runs its broker")
    assert load.findings(machines.bootstrap(2), tmp_path / "history") == []
